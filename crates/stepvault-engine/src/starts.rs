//! Histories of starts on remotes: copies for nodes whose disks do not outlive them.
//!
//! All of this is done as well as it can be. A history that cannot be read is none, and one that cannot be written is
//! missed: neither keeps anybody from starting.

use std::cmp::Reverse;

use futures::future::join_all;
use stepvault_core::Result;
use stepvault_core::ids::NodeName;
use stepvault_core::keys::KeyKind;
use stepvault_core::starts::{Start, StartHistory, merged};
use stepvault_remote::store::ObjectInfo;

use crate::run_remote::RunRemote;

/// Most nodes whose histories are read from one remote: those that wrote last, by the store's clock.
const MAXIMUM_NODES: usize = 64;

/// What the remotes remember of every node's starts, and what kept one from telling.
pub async fn read_starts(remotes: &[RunRemote]) -> (Vec<Start>, Vec<String>) {
    let mut starts = Vec::new();
    let mut faults = Vec::new();
    for (remote, read) in remotes.iter().zip(join_all(remotes.iter().map(read)).await) {
        match read {
            Ok((found, unreadable)) => {
                starts = merged(found, starts);
                faults.extend(unreadable);
            }
            Err(error) => faults.push(format!("{}: {error}", remote.name())),
        }
    }
    (starts, faults)
}

async fn read(remote: &RunRemote) -> Result<(Vec<Start>, Vec<String>)> {
    let mut objects: Vec<ObjectInfo> = remote.list(&remote.keys.starts_prefix()).await?;
    objects.retain(|object| matches!(remote.keys.classify(&object.key), Some(KeyKind::Starts(_))));
    objects.sort_by_key(|object| Reverse(object.modified));
    objects.truncate(MAXIMUM_NODES);
    let records = objects
        .iter()
        .map(|object| remote.read_record::<StartHistory>(&object.key));
    let (mut starts, mut unreadable) = (Vec::new(), Vec::new());
    for record in join_all(records).await {
        match record {
            Ok(Some((history, _))) => starts = merged(starts, history.starts),
            Ok(None) => {}
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    Ok((starts, unreadable))
}

/// Puts a node's history on the remotes, over the one that it had there; what kept a remote from taking it.
pub async fn write_starts(remotes: &[RunRemote], node: &NodeName, starts: &[Start]) -> Vec<String> {
    let history = StartHistory::of(starts.to_vec());
    let writes = remotes.iter().map(|remote| write(remote, node, &history));
    let written = join_all(writes).await;
    let faults = remotes.iter().zip(written);
    faults
        .filter_map(|(remote, written)| Some(format!("{}: {}", remote.name(), written.err()?)))
        .collect()
}

/// Nothing is written beside nothing: without a marker no step was ever uploaded there, or it is the wrong place.
async fn write(remote: &RunRemote, node: &NodeName, history: &StartHistory) -> Result<()> {
    if remote.marker().await?.is_none() {
        return Ok(());
    }
    remote.replace_record(&remote.keys.starts(node), history).await
}
