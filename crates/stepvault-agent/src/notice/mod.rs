//! Notices that the machine will be reclaimed: the providers' metadata services, and a file.
//!
//! Each source is watched by its own task. A task without a source ends; one that finds a notice asks the service to
//! stop, with the notice's deadline.

mod ec2;
mod file;
mod gce;
mod metadata;

use tokio::task::JoinSet;

use crate::drain::DrainState;
use crate::options::NoticeOptions;
use crate::reporter::Reporter;

/// Starts the tasks that watch for notices.
pub(crate) fn watch(
    options: &NoticeOptions,
    reporter: &Reporter,
    drain: &DrainState,
    tasks: &mut JoinSet<()>,
) {
    let (reporter, stop) = (|| reporter.clone(), || drain.stop.clone());
    if let Some(endpoint) = options.ec2_endpoint.clone() {
        tasks.spawn_local(ec2::watch(reporter(), drain.clone(), endpoint, options.clone()));
    }
    if let Some(endpoint) = options.gce_endpoint.clone() {
        tasks.spawn_local(gce::watch(reporter(), stop(), endpoint, options.expected));
    }
    if let Some(path) = options.drain_file.clone() {
        tasks.spawn_local(file::watch(reporter(), stop(), path));
    }
}
