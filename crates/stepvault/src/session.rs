//! What every command has.

use tokio_util::sync::CancellationToken;

use crate::arguments::global::GlobalArguments;
use crate::interrupt::ExitDeadline;
use crate::output::Output;

/// The context of every command.
#[derive(Debug)]
pub(crate) struct Session {
    /// The global options.
    pub(crate) global: GlobalArguments,
    /// The output to print to.
    pub(crate) output: Output,
    /// Cancelled when the process receives a signal to stop.
    pub(crate) interrupt: CancellationToken,
    /// The deadline by which the process must have exited.
    pub(crate) exit_deadline: ExitDeadline,
}
