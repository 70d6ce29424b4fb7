//! Checks directories (those of checkpoints, vault and temporary files) and memory.

use std::path::PathBuf;

use stepvault_core::disk_facts::{DirectoryCondition, DirectoryRole};
use stepvault_core::forecast::Taken;
use stepvault_diagnose::explain::{Cause, Evidence, from_place};
use stepvault_local::cgroup::oom_kills;
use stepvault_local::condition::{Condition, block_devices, directory_condition, silent};

use super::gathered::{ExplainRequest, Gathered, PLACE_DEADLINE, within};

const SHARED_MEMORY: &str = "/dev/shm";

/// Checks each directory, and returns the block devices they are on.
pub(super) async fn gather(request: &ExplainRequest, needs: Taken, gathered: &mut Gathered) -> Vec<String> {
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
