//! Gathers the evidence of why a run failed: the present state of disks, records and logs. Writes nothing.
//!
//! Every source has its own deadline, because the cause may be a filesystem that does not answer; that it does not
//! answer is evidence too.

mod gathered;
mod on_disk;
mod steps;

use std::path::PathBuf;
use std::sync::Arc;

pub use self::gathered::{ExplainRequest, Gathered, Log, LogSource, NotLookedAt};
pub use self::on_disk::{ResumeOnDisk, quoted};
use stepvault_core::disk_facts::{DirectoryCondition, DirectoryRole};
use stepvault_core::forecast::Taken;
use stepvault_core::starts::Start;
use stepvault_diagnose::explain::{
    Cause, Evidence, Scanner, from_place, from_record, from_starts, from_upload, settled,
};
use stepvault_local::cgroup::oom_kills;
use stepvault_local::condition::{Condition, block_devices, directory_condition, silent};
use stepvault_local::{UnfinishedUpload, process};

use self::gathered::{PLACE_DEADLINE, RECORDS_DEADLINE, STEPS_DEADLINE, within};

/// Gathers all evidence.
pub async fn gather(request: ExplainRequest) -> Gathered {
    let scanner = Arc::new(Scanner::default());
    let mut gathered = Gathered::default();
    let mut needs = Taken::default();
    for directory in &request.directories {
        let (looked_at, profiles, profile) =
            (directory.clone(), Arc::clone(&request.profiles), request.profile.clone());
        let (is_here, now) = (request.is_here, request.clock.now());
        let find = move || match steps::find(&looked_at, &profiles, profile.as_deref(), now) {
            // Its existence, and what this user may not access, are reported with its other facts.
            Err(_) if is_here && !looked_at.exists() => Ok(None),
            found => found.map(Some),
        };
        match within(STEPS_DEADLINE, find).await {
            Ok(None) => {}
            Ok(Some(found)) => {
                needs.bytes = needs.bytes.max(found.needs.bytes);
                needs.files = needs.files.max(found.needs.files);
                gathered.evidence.extend(found.evidence);
                gathered.on_disk.extend(found.on_disk);
            }
            Err(error) => gathered.miss(directory.display().to_string(), &error, true),
        }
    }
    if request.is_here {
        let devices = gather_places(&request, needs, &mut gathered).await;
        gathered::gather_kernel_log(devices, &scanner, &mut gathered).await;
    }
    gather_records(&request, &scanner, &mut gathered).await;
    gathered::gather_logs(request.logs, &scanner, &mut gathered).await;
    gathered.evidence = settled(gathered.evidence, &texts(&request.directories), &texts(&request.temporary));
    gathered
}

fn texts(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

const SHARED_MEMORY: &str = "/dev/shm";

/// Checks each directory, and returns the block devices they are on.
async fn gather_places(request: &ExplainRequest, needs: Taken, gathered: &mut Gathered) -> Vec<String> {
    let mut places: Vec<(DirectoryRole, PathBuf)> = Vec::new();
    let mut add = |role, paths: &[PathBuf]| places.extend(paths.iter().map(|path| (role, path.clone())));
    add(DirectoryRole::Checkpoints, &request.directories);
    let vault = request.vault.as_ref().map(|vault| vault.root().to_path_buf());
    add(DirectoryRole::Vault, vault.as_slice());
    add(DirectoryRole::Temporary, &request.temporary);
    add(DirectoryRole::SharedMemory, &[PathBuf::from(SHARED_MEMORY)]);
    let mut seen: Vec<Condition> = Vec::new();
    for (role, path) in places {
        let looked_at = path.clone();
        let condition = within(PLACE_DEADLINE, move || Ok(directory_condition(role, &looked_at))).await;
        let condition = condition.unwrap_or_else(|_| silent(role, &path));
        let shares_disk =
            condition.device.is_some() && seen.iter().any(|other| other.device == condition.device);
        let facts = DirectoryCondition {
            // A disk's free space is reported once, for the first directory on it.
            room: condition.facts.room.filter(|_| !shares_disk),
            ..condition.facts.clone()
        };
        gathered.evidence.extend(from_place(&facts, needs));
        seen.push(condition);
    }
    if let Ok(Some(found)) = within(PLACE_DEADLINE, || Ok(oom_kills())).await {
        let limit =
            found.limit_bytes.map_or_else(String::new, |bytes| format!("; its limit is {bytes} bytes"));
        let text = format!("{}: oom_kill {}{limit}", found.file.display(), found.kills);
        let kills = Evidence::now(Cause::OutOfMemory, 50, text);
        gathered.evidence.push(kills);
    }
    let devices: Vec<u64> = seen.iter().filter_map(|condition| condition.device).collect();
    let names = move || Ok(devices.into_iter().flat_map(block_devices).collect());
    within(PLACE_DEADLINE, names).await.unwrap_or_default()
}

async fn gather_records(request: &ExplainRequest, scanner: &Arc<Scanner>, gathered: &mut Gathered) {
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
            let starts = starts.map(|history| from_starts(&history, &run, rule, now, &scanner, &is_running));
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

fn is_running(start: &Start) -> bool {
    [&start.process, &start.trainer].into_iter().flatten().any(process::is_running)
}
