//! Files to write, and what to look at afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stepvault_agent::AgentRemote;
use stepvault_core::Error;
use stepvault_core::ids::StepId;
use stepvault_core::retention::KeepRules;
use stepvault_engine::catalog::committed_ids;
use stepvault_engine::run_remote::RunRemote;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, run_name};

pub fn write_files(root: &Path, files: &[(&str, usize)], age_seconds: u64) {
    for (path, size) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes(*size, age_seconds)).unwrap();
        let time = SystemTime::now() - Duration::from_secs(age_seconds);
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
}

/// Bytes that repeat nowhere near.
pub fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = (seed + length as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Makes every request fail.
pub fn fail_all(server: &StrictS3, action: &FaultAction) {
    for method in ["GET", "HEAD", "PUT", "POST"] {
        server.faults().inject(method, "", u64::MAX, action.clone());
    }
}

/// The run on a remote.
pub fn on_remote(remote: &AgentRemote) -> RunRemote {
    RunRemote::new(
        Arc::clone(&remote.store),
        Arc::clone(&remote.settings),
        run_name(),
    )
}

/// What is committed on a remote.
pub async fn committed(remote: &AgentRemote) -> Vec<StepId> {
    committed_ids(&on_remote(remote))
        .await
        .unwrap()
        .into_keys()
        .collect()
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
    let mut files = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

pub fn keep_last(count: u32) -> KeepRules {
    KeepRules {
        last: Some(count),
        ..KeepRules::default()
    }
}

/// The text of an error, with its hint.
pub fn text(error: &Error) -> String {
    format!("{error} | {}", error.hint_text().unwrap_or_default())
}
