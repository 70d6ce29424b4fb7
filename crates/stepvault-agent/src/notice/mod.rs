//! Notices that the machine will be reclaimed: the providers' metadata services, and a file.
//!
//! Each source is watched by its own task. A task without a source ends; one that finds a notice asks the service to
//! stop, with the notice's deadline.

mod ec2;
mod file;
mod gce;
mod metadata;

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::shared::Shared;

/// Starts the tasks that watch for notices.
pub(crate) fn watch(shared: &Arc<Shared>, tasks: &mut JoinSet<()>) {
    let options = &shared.options.notices;
    if let Some(endpoint) = options.ec2_endpoint.clone() {
        tasks.spawn_local(ec2::watch(Arc::clone(shared), endpoint));
    }
    if let Some(endpoint) = options.gce_endpoint.clone() {
        tasks.spawn_local(gce::watch(Arc::clone(shared), endpoint));
    }
    if let Some(path) = options.drain_file.clone() {
        tasks.spawn_local(file::watch(Arc::clone(shared), path));
    }
}
