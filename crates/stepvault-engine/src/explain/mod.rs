//! Gathering the evidence of why a run failed: what disks, records and logs show now. Nothing is written.
//!
//! Everything that is looked at has a deadline of its own, since what failed may be a filesystem that does not answer;
//! that it does not is evidence too.

mod kernel;
mod logs;
mod on_disk;
mod places;
mod records;
mod steps;

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::Result;
use stepvault_core::clock::Clock;
use stepvault_core::explain::{Evidence, Known, Scanner, settled};
use stepvault_core::forecast::Taken;
use stepvault_core::ids::RunName;
use stepvault_core::starts::RestartLoopRule;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::vault::Vault;
use tokio::time::timeout;

use crate::blocking::blocking;

pub use on_disk::{ResumeOnDisk, quoted};

/// What to look at.
pub struct ExplainRequest {
    /// Directories that the trainer writes steps to.
    pub directories: Vec<PathBuf>,
    /// Logs.
    pub logs: Vec<Log>,
    /// Where the trainer's temporary files go.
    pub temporary: Vec<PathBuf>,
    /// Whether the run failed on this machine, so that its disks, its memory and its kernel's log are evidence.
    pub is_here: bool,
    /// The local tier.
    pub vault: Option<Vault>,
    /// The runs whose records in it are looked at.
    pub runs: Vec<RunName>,
    /// Texts that the failure left, each with whose it is.
    pub records: Vec<(String, String)>,
    /// The frameworks that are known.
    pub profiles: Arc<ProfileSet>,
    /// The framework, instead of finding out.
    pub profile: Option<String>,
    /// When starts are a restart loop.
    pub restart_loop: RestartLoopRule,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
}

/// A log.
pub struct Log {
    /// What it is called.
    pub name: String,
    /// Where it comes from.
    pub source: LogSource,
}

/// Where a log comes from.
pub enum LogSource {
    /// A file.
    File(PathBuf),
    /// Something that is read to its end.
    Input(Box<dyn Read + Send>),
}

/// What was found.
#[derive(Debug, Default)]
pub struct Gathered {
    /// The evidence, settled.
    pub evidence: Vec<Evidence>,
    /// The step to go on from in each directory that holds one.
    pub on_disk: Vec<ResumeOnDisk>,
    /// What was named and could not be looked at, and why.
    pub not_looked_at: Vec<NotLookedAt>,
}

/// Something that could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotLookedAt {
    /// What.
    pub what: String,
    /// Why not.
    pub why: String,
    /// Whether the caller had named it.
    pub named: bool,
}

/// How long each part may take.
const PLACE_DEADLINE: Duration = Duration::from_secs(10);
const STEPS_DEADLINE: Duration = Duration::from_mins(1);
const RECORDS_DEADLINE: Duration = Duration::from_secs(20);

/// Gathers everything.
pub async fn gather(request: ExplainRequest) -> Gathered {
    let scanner = Arc::new(Scanner::new());
    let mut gathered = Gathered::default();
    let mut needs = Taken::default();
    for directory in &request.directories {
        let look = steps::Look {
            directory: directory.clone(),
            profiles: Arc::clone(&request.profiles),
            profile: request.profile.clone(),
            clock: Arc::clone(&request.clock),
        };
        match within(STEPS_DEADLINE, move || look.look()).await {
            Looked::At(found) => {
                needs.bytes = needs.bytes.max(found.needs.bytes);
                needs.files = needs.files.max(found.needs.files);
                gathered.evidence.extend(found.evidence);
                gathered.on_disk.extend(found.on_disk);
            }
            // Whether it is there, and what keeps this user out, is told with its other facts.
            Looked::Failed(_) if request.is_here && !directory.exists() => {}
            Looked::Failed(why) => gathered.miss(directory.display().to_string(), why, true),
            Looked::TooLate => gathered.miss(directory.display().to_string(), too_late(STEPS_DEADLINE), true),
        }
    }
    if request.is_here {
        let devices = places::gather(&request, needs, &mut gathered).await;
        kernel::gather(devices, &scanner, &mut gathered).await;
    }
    records::gather(&request, &scanner, &mut gathered).await;
    let known = Known {
        checkpoints: texts(&request.directories),
        temporary: texts(&request.temporary),
    };
    logs::gather(request.logs, &scanner, &mut gathered).await;
    gathered.evidence = settled(gathered.evidence, &known);
    gathered
}

impl Gathered {
    fn miss(&mut self, what: String, why: String, named: bool) {
        self.not_looked_at.push(NotLookedAt { what, why, named });
    }
}

/// What became of a look.
enum Looked<T> {
    At(T),
    Failed(String),
    TooLate,
}

/// Looks, and gives up waiting at the deadline: whoever hangs in the kernel is left behind.
async fn within<T: Send + 'static>(
    deadline: Duration,
    look: impl FnOnce() -> Result<T> + Send + 'static,
) -> Looked<T> {
    match timeout(deadline, blocking(look)).await {
        Ok(Ok(found)) => Looked::At(found),
        Ok(Err(error)) => Looked::Failed(error.to_string()),
        Err(_) => Looked::TooLate,
    }
}

fn too_late(deadline: Duration) -> String {
    format!("it was not done within {} s", deadline.as_secs())
}

fn texts(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}
