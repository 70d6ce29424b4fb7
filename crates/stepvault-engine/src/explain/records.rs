//! Reads the local tier's records: starts, unfinished uploads, and the last state of its agent.

use std::sync::Arc;

use stepvault_core::ids::RunName;
use stepvault_core::starts::{RestartLoopRule, Start};
use stepvault_core::timestamp::Timestamp;
use stepvault_diagnose::explain::{Evidence, Scanner, UploadFacts, from_record, from_starts, from_upload};
use stepvault_local::UnfinishedUpload;
use stepvault_local::process;
use stepvault_local::vault::Vault;

use super::gathered::{ExplainRequest, Gathered, Looked, RECORDS_DEADLINE, too_late, within};

pub(super) async fn gather(request: &ExplainRequest, scanner: &Arc<Scanner>, gathered: &mut Gathered) {
    for (what, text) in &request.records {
        gathered.evidence.extend(from_record(what, text, scanner));
    }
    let Some(vault) = request.vault.clone() else {
        return;
    };
    for run in request.runs.clone() {
        let named = format!("the records of '{run}' in {}", vault.root().display());
        let look = Look {
            vault: vault.clone(),
            run,
            rule: request.restart_loop,
            now: request.clock.now(),
            scanner: Arc::clone(scanner),
        };
        match within(RECORDS_DEADLINE, move || Ok(look.read())).await {
            Looked::At((evidence, faults)) => {
                gathered.evidence.extend(evidence);
                for fault in faults {
                    gathered.miss(named.clone(), fault, true);
                }
            }
            Looked::Failed(why) => gathered.miss(named, why, true),
            Looked::TooLate => gathered.miss(named, too_late(RECORDS_DEADLINE), true),
        }
    }
}

struct Look {
    vault: Vault,
    run: RunName,
    rule: RestartLoopRule,
    now: Timestamp,
    scanner: Arc<Scanner>,
}

impl Look {
    /// Returns the evidence, and the records that could not be read.
    fn read(&self) -> (Vec<Evidence>, Vec<String>) {
        let (mut evidence, mut faults) = (Vec::new(), Vec::new());
        match self.vault.starts(&self.run) {
            Ok(history) => evidence.extend(from_starts(
                &history,
                &self.run,
                self.rule,
                self.now,
                &self.scanner,
                &runs,
            )),
            Err(error) => faults.push(error.to_string()),
        }
        match self.vault.unfinished_uploads(&self.run) {
            Ok(uploads) => evidence.extend(
                uploads
                    .iter()
                    .filter_map(|upload| from_upload(&facts(upload), self.now)),
            ),
            Err(error) => faults.push(error.to_string()),
        }
        (evidence, faults)
    }
}

fn runs(start: &Start) -> bool {
    [&start.process, &start.trainer]
        .into_iter()
        .flatten()
        .any(process::is_running)
}

fn facts(upload: &UnfinishedUpload) -> UploadFacts {
    let UnfinishedUpload {
        files_done,
        files,
        parts_done,
        ..
    } = upload;
    UploadFacts {
        what: format!("{} to {}", upload.id, upload.remote),
        written_at: upload.written_at,
        progress: format!("{files_done} of {files} files are uploaded, and {parts_done} parts of others"),
    }
}
