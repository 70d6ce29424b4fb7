//! What to examine, and what was found.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::clock::Clock;
use stepvault_core::ids::RunName;
use stepvault_core::starts::RestartLoopRule;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_diagnose::explain::Evidence;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::vault::Vault;
use tokio::time::timeout;

use super::on_disk::ResumeOnDisk;
use crate::blocking::blocking;

/// What to examine.
pub struct ExplainRequest {
    /// Directories in which the trainer writes steps.
    pub directories: Vec<PathBuf>,
    /// Logs.
    pub logs: Vec<Log>,
    /// The directories of the trainer's temporary files.
    pub temporary: Vec<PathBuf>,
    /// Whether the run failed on this machine, so that its disks, its memory and its kernel's log are evidence.
    pub is_here: bool,
    /// The local tier.
    pub vault: Option<Vault>,
    /// The runs whose records in the vault are examined.
    pub runs: Vec<RunName>,
    /// Texts that the failure left, each with its source.
    pub records: Vec<(String, String)>,
    /// The known frameworks.
    pub profiles: Arc<ProfileSet>,
    /// The framework to use instead of detecting it.
    pub profile: Option<String>,
    /// The rule by which starts are a restart loop.
    pub restart_loop: RestartLoopRule,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// A log.
pub struct Log {
    /// Its name.
    pub name: String,
    /// Its source.
    pub source: LogSource,
}

/// The source of a log.
pub enum LogSource {
    /// A file.
    File(PathBuf),
    /// A stream that is read to its end.
    Input(Box<dyn Read + Send>),
}

/// The gathered evidence.
#[derive(Debug, Default)]
pub struct Gathered {
    /// The evidence, settled.
    pub evidence: Vec<Evidence>,
    /// The step to resume from in each directory that contains one.
    pub on_disk: Vec<ResumeOnDisk>,
    /// Sources that could not be examined, with the cause.
    pub not_looked_at: Vec<NotLookedAt>,
}

/// A source that could not be examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotLookedAt {
    /// A path, a log or a tier.
    pub what: String,
    /// The reason, as text.
    #[serde(rename = "reason")]
    pub why: String,
    /// Whether the caller had named it explicitly.
    #[serde(skip)]
    pub named: bool,
}

impl NotLookedAt {
    /// Returns a source that the caller had named explicitly.
    pub fn named(what: &str, why: impl Into<String>) -> Self {
        Self { what: what.to_owned(), why: why.into(), named: true }
    }
}

/// Time limit for each source.
pub(super) const PLACE_DEADLINE: Duration = Duration::from_secs(10);
pub(super) const STEPS_DEADLINE: Duration = Duration::from_mins(1);
pub(super) const RECORDS_DEADLINE: Duration = Duration::from_secs(20);

impl Gathered {
    pub(super) fn miss(&mut self, what: impl Into<String>, why: &impl ToString, named: bool) {
        let (what, why) = (what.into(), why.to_string());
        self.not_looked_at.push(NotLookedAt { what, why, named });
    }
}

/// Runs the work and stops waiting at the deadline: a thread that hangs in the kernel is abandoned. The error is then
/// [`ErrorKind::Unreachable`].
pub(super) async fn within<T: Send + 'static>(
    deadline: Duration,
    look: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    within_grace(deadline, Duration::ZERO, look).await
}

/// Like [`within`], for work that observes the deadline, and is abandoned a little later only if it hangs.
pub(super) async fn within_grace<T: Send + 'static>(
    deadline: Duration,
    grace: Duration,
    look: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    timeout(deadline + grace, blocking(look)).await.unwrap_or_else(|_| {
        let seconds = deadline.as_secs();
        Err(Error::new(ErrorKind::Unreachable, format!("it did not finish within {seconds} s")))
    })
}
