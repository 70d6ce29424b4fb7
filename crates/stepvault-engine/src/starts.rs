//! Copies the history of starts to remotes, for nodes whose disks do not survive.
//!
//! This is best effort. An unreadable history counts as empty, and a failed write is dropped: neither prevents a start.

use futures::future::join_all;
use stepvault_core::Result;
use stepvault_core::ids::NodeName;
use stepvault_core::starts::{Start, StartHistory, merged};

use crate::tier::catalog::latest_objects;
use crate::tier::run_remote::RunRemote;

/// Returns the starts of every node according to the remotes, and the errors of remotes that could not be read.
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
    let prefix = remote.keys.starts_prefix();
    let objects = latest_objects(remote, &prefix).await?;
    let records = objects.iter().map(|object| remote.read_record::<StartHistory>(&object.key));
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

/// Writes a node's history to the remotes, replacing its earlier one; returns the errors.
pub async fn write_starts(remotes: &[RunRemote], node: &NodeName, starts: &[Start]) -> Vec<String> {
    let history = StartHistory::of(starts.to_vec());
    let writes = remotes.iter().map(|remote| write(remote, node, &history));
    let written = join_all(writes).await;
    let faults = remotes.iter().zip(written);
    faults.filter_map(|(remote, written)| Some(format!("{}: {}", remote.name(), written.err()?))).collect()
}

/// Writes nothing where there is no marker: no step was ever uploaded there, or it is the wrong remote.
async fn write(remote: &RunRemote, node: &NodeName, history: &StartHistory) -> Result<()> {
    if remote.marker().await?.is_none() {
        return Ok(());
    }
    remote.replace_record(&remote.keys.starts(node), history).await
}
