//! Files to write, and what to look at afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stepvault_agent::AgentRemote;
use stepvault_core::Error;
use stepvault_core::ids::StepId;
use stepvault_core::retention::KeepRules;
use stepvault_engine::tier::catalog::committed_ids;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::random::Random;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::read_tree;

use crate::harness::{Node, run_name};

pub fn write_files(root: &Path, files: &[(&str, usize)], age_seconds: u64) {
    for (path, size) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes(*size, age_seconds)).unwrap();
        let time = SystemTime::now() - Duration::from_secs(age_seconds);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    }
}

/// Bytes that repeat nowhere near.
pub fn bytes(length: usize, seed: u64) -> Vec<u8> {
    Random(seed + length as u64).bytes(length)
}

/// Makes every request fail.
pub fn fail_all(server: &StrictS3, action: &FaultAction) {
    for method in ["GET", "HEAD", "PUT", "POST"] {
        server.faults().inject(method, "", u64::MAX, action.clone());
    }
}

/// The run on a remote.
pub fn on_remote(remote: &AgentRemote) -> RunRemote {
    RunRemote::new(Arc::clone(&remote.store), Arc::clone(&remote.settings), run_name())
}

/// What is committed on a remote.
pub async fn committed(remote: &AgentRemote) -> Vec<StepId> {
    committed_ids(&on_remote(remote)).await.unwrap().into_keys().collect()
}

/// The steps in the vault.
pub fn sealed(node: &Node) -> Vec<StepId> {
    node.vault()
        .steps(&run_name())
        .unwrap()
        .steps
        .iter()
        .map(stepvault_local::sealed::SealedStep::id)
        .collect()
}

/// The files below a directory, with their bytes.
pub fn files_below(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = read_tree(root).into_iter();
    files.map(|(path, (_, bytes))| (path.display().to_string(), bytes)).collect()
}

pub fn keep_last(count: u32) -> KeepRules {
    KeepRules { last: Some(count), ..KeepRules::default() }
}

/// The text of an error, with its hint.
pub fn text(error: &Error) -> String {
    format!("{error} | {}", error.hint_text().unwrap_or_default())
}
