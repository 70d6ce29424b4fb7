//! The arguments of `doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::arguments::values;

/// Check directories, disks, limits, remotes and throughput before training
///
/// It briefly performs the operations of the service: it writes, syncs, renames, links and deletes its own test files
/// in each directory, measures each disk with at most 256 MiB in a few seconds, and removes its files. On each remote
/// it creates objects of its own below the run's keys, checks that they cannot be overwritten, reads, lists and deletes
/// them, and measures both directions. It also reports leftovers, and whether saves, uploads and notices fit into the
/// available time and space. A mount or a store that does not answer is a finding. Each line is pass, warn (works, but
/// at a cost) or fail, with the measurement and a remedy. Run it as the trainer's user, in the trainer's environment.
/// The exit code is 14 if a check fails.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Directory that the trainer writes its steps to; by default those of the configured runs
    #[arg(value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,
    /// Expected size of the next step, such as "60 GiB"; by default estimated from the existing steps
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(super) step_size: Option<u64>,
    /// Expected number of files of the next step
    #[arg(long, value_name = "N")]
    pub(super) step_files: Option<u64>,
    /// Interval between saves, such as "10m"; by default estimated from the existing steps
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub(super) save_interval: Option<Duration>,
    /// Upload rate of a remote in bytes per second, such as "200 MiB", instead of the measured one
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(super) upload_rate: Option<u64>,
    /// Skip the remotes
    #[arg(long)]
    pub(super) no_remotes: bool,
    /// Notice period before the machine is taken away; by default that of this machine's provider
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub(super) notice: Option<Duration>,
}
