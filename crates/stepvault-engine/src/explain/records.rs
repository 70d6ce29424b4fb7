//! Reads the local tier's records: starts, unfinished uploads, and the last state of its agent.

use std::sync::Arc;

use stepvault_core::starts::Start;
use stepvault_diagnose::explain::{Scanner, from_record, from_starts, from_upload};
use stepvault_local::UnfinishedUpload;
use stepvault_local::process;

use super::gathered::{ExplainRequest, Gathered, RECORDS_DEADLINE, within};

pub(super) async fn gather(request: &ExplainRequest, scanner: &Arc<Scanner>, gathered: &mut Gathered) {
    for (what, text) in &request.records {
        gathered.evidence.extend(from_record(what, text, scanner));
    }
    let Some(vault) = request.vault.clone() else {
        return;
    };
    for run in request.runs.clone() {
        let named = format!("the records of '{run}' in {}", vault.root().display());
        let (vault, scanner) = (vault.clone(), Arc::clone(scanner));
        let (rule, now) = (request.restart_loop, request.clock.now());
        let look = move || {
            let starts = vault.starts(&run);
            let starts = starts.map(|history| from_starts(&history, &run, rule, now, &scanner, &runs));
            let uploads = vault.unfinished_uploads(&run);
            let stalled = |upload: &UnfinishedUpload| {
                let UnfinishedUpload { files_done, files, parts_done, .. } = upload;
                let what = format!("{} to {}", upload.id, upload.remote);
                let progress =
                    format!("{files_done} of {files} files are uploaded, and {parts_done} parts of others");
                from_upload(&what, now.seconds_since(upload.written_at), &progress)
            };
            let uploads = uploads.map(|uploads| uploads.iter().filter_map(stalled).collect());
            Ok([starts, uploads])
        };
        match within(RECORDS_DEADLINE, look).await {
            Ok(read) => {
                for evidence in read {
                    match evidence {
                        Ok(evidence) => gathered.evidence.extend(evidence),
                        Err(error) => gathered.miss(named.as_str(), &error, true),
                    }
                }
            }
            Err(error) => gathered.miss(named, &error, true),
        }
    }
}

fn runs(start: &Start) -> bool {
    [&start.process, &start.trainer].into_iter().flatten().any(process::is_running)
}
