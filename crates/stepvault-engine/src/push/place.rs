//! Finding the identity of a checkpoint and sealing it under it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::join_all;
use stepvault_core::attempts::{KnownStep, LaunchPlacement, Placement, place, place_by_launch};
use stepvault_core::ids::{Attempt, RunName, Step, StepId};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::Writer;
use stepvault_core::observe::{Event, Observer};
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::step_name;
use stepvault_local::seal::{LinkPolicy, SealRequest, seal};
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::{Tree, scan_members};
use stepvault_local::vault::Vault;
use tokio::time::Instant;

use super::known::{AtHand, known_locally, known_on, own_parts_on};
use crate::blocking::blocking;
use crate::catalog::is_outage;
use crate::launches::Launches;
use crate::metrics::{MetricsSource, read_metrics};
use crate::run_remote::RunRemote;

/// One checkpoint to take over.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// The run it belongs to.
    pub run: RunName,
    /// The directory or file that the trainer wrote.
    pub source: PathBuf,
    /// The paths below `source` that make it up; none when it is all of it.
    pub members: Vec<RelativePath>,
    /// The name that it is kept under; `None` for that of `source`.
    pub name: Option<String>,
    /// Its step; `None` to read it from the name.
    pub step: Option<Step>,
    /// Its attempt; `None` to find it out.
    pub attempt: Option<Attempt>,
    /// Who writes the step.
    pub writer: Writer,
    /// Since when, by this node's clock, it is part of the writer's launch.
    pub launch_since: Timestamp,
    /// The checkpoint is known to be of that launch; otherwise one that is older is not.
    pub in_launch: bool,
    /// Metrics given by hand; they win over those in the checkpoint.
    pub metrics: BTreeMap<String, f64>,
    /// Where metrics stand in the checkpoint.
    pub metrics_source: MetricsSource,
    /// How files are taken over.
    pub links: LinkPolicy,
    /// The tree as it was when the checkpoint was judged complete.
    pub expected: Option<Tree>,
}

/// A checkpoint under its identity.
#[derive(Debug)]
pub enum Placed {
    /// It is in the vault.
    Sealed {
        /// The step.
        step: Box<SealedStep>,
        /// Whether it was sealed just now.
        new: bool,
    },
    /// Every remote has it already, and it was not worth sealing.
    DurableEverywhere {
        /// Step and attempt.
        id: StepId,
        /// Its name.
        name: String,
        /// Its files.
        file_count: u64,
        /// Its bytes.
        data_bytes: u64,
    },
}

impl Placed {
    /// Identity, name, files and bytes.
    pub fn summary(&self) -> (StepId, String, u64, u64) {
        match self {
            Self::Sealed { step, .. } => {
                let record = step.record();
                (
                    record.id,
                    record.name.clone(),
                    record.files.len() as u64,
                    record.data_bytes(),
                )
            }
            Self::DurableEverywhere {
                id,
                name,
                file_count,
                data_bytes,
            } => (*id, name.clone(), *file_count, *data_bytes),
        }
    }
}

/// Seals a checkpoint under the identity that what is known of the run gives it.
///
/// A remote that cannot be reached does not stop the sealing: the step is staged under what the others know.
///
/// # Errors
/// [`ErrorKind::Refused`] for an old save whose place is taken or that retention removed; [`ErrorKind::Conflict`]
/// when an attempt was given and holds other files at that step.
pub async fn stage(
    vault: &Vault,
    remotes: &[RunRemote],
    request: StageRequest,
    observer: &Arc<dyn Observer>,
) -> Result<Placed> {
    let source = absolute(&request.source)?;
    let name = match &request.name {
        Some(name) => name.clone(),
        None => name_of(&source)?,
    };
    let step = match request.step {
        Some(step) => step,
        None => step_of(&name)?,
    };
    let (scanned, members) = (source.clone(), request.members.clone());
    let tree = blocking(move || scan_members(&scanned, &members)).await?;
    if tree.files.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "there is nothing to push")
            .on(source.display())
            .because("it holds no file"));
    }
    let at_hand = AtHand {
        source: &source,
        step,
        tree: &tree,
    };
    let (vault_copy, run) = (vault.clone(), request.run.clone());
    let sealed = blocking(move || vault_copy.steps(&run)).await?;
    let known = Known {
        local: known_locally(&sealed.steps, &at_hand),
        ..ask_remotes(remotes, &at_hand, &request.writer, observer).await
    };
    let (known, missing_somewhere) = known.merged(remotes.is_empty());
    let placement = match request.attempt {
        Some(attempt) => place_as(&known, StepId::new(attempt, step))?,
        None if request.writer.goes_by_launch() => {
            place_in_launch(vault, remotes, &request, &known, step, &tree).await?
        }
        None => place(&known, step, tree.newest_mtime())?,
    };
    let id = match placement {
        Placement::Known(id) => {
            if let Some(step) = sealed.steps.into_iter().find(|sealed| sealed.id() == id) {
                return Ok(Placed::Sealed {
                    step: Box::new(step),
                    new: false,
                });
            }
            if !missing_somewhere {
                let (file_count, data_bytes) = (tree.files.len() as u64, tree.data_bytes());
                return Ok(Placed::DurableEverywhere {
                    id,
                    name,
                    file_count,
                    data_bytes,
                });
            }
            id
        }
        Placement::New(id) => id,
        Placement::Stale(id) => {
            return Err(Error::new(ErrorKind::Refused, "will not take an old save over")
                .on(source.display())
                .because(format!(
                    "{id} was removed by retention, or another save took its place since"
                ))
                .hint("to keep it nevertheless, push it as a new attempt with --attempt"));
        }
    };
    let begun = Instant::now();
    observer.on_event(&Event::SealStarted {
        id,
        source: &source,
        files: tree.files.len() as u64,
        bytes: tree.data_bytes(),
    });
    let sealed = seal_as(vault, request, id, source.clone(), name).await;
    let seconds = begun.elapsed().as_secs_f64();
    observer.on_event(&match &sealed {
        Ok(step) => Event::Sealed {
            id,
            source: &source,
            files: step.record().files.len() as u64,
            bytes: step.record().data_bytes(),
            seconds,
        },
        Err(error) => Event::SealFailed {
            id,
            source: &source,
            seconds,
            error,
        },
    });
    let step = sealed?;
    Ok(Placed::Sealed {
        step: Box::new(step),
        new: true,
    })
}

async fn seal_as(
    vault: &Vault,
    request: StageRequest,
    id: StepId,
    source: PathBuf,
    name: String,
) -> Result<SealedStep> {
    let vault = vault.clone();
    blocking(move || {
        let mut metrics = read_metrics(&source, &request.metrics_source)?;
        metrics.extend(request.metrics);
        let request = SealRequest {
            run: request.run,
            id,
            writer: request.writer,
            source,
            members: request.members,
            name,
            metrics,
            links: request.links,
            expected: request.expected,
        };
        seal(&vault, &request)
    })
    .await
}

/// What the tiers know.
#[derive(Default)]
struct Known {
    local: Vec<KnownStep>,
    remote: Vec<KnownStep>,
    /// Whether a remote lacks the checkpoint, as far as could be asked.
    missing_somewhere: bool,
}

impl Known {
    /// As one list. The same step on two tiers is one step; content that matches on one matches.
    fn merged(self, alone: bool) -> (Vec<KnownStep>, bool) {
        let mut known = self.local;
        for entry in self.remote {
            match known.iter_mut().find(|other| other.id == entry.id) {
                Some(other) => {
                    other.same_content |= entry.same_content;
                    other.written_at = other.written_at.max(entry.written_at);
                }
                None => known.push(entry),
            }
        }
        (known, self.missing_somewhere || alone)
    }
}

async fn ask_remotes(
    remotes: &[RunRemote],
    at_hand: &AtHand<'_>,
    writer: &Writer,
    observer: &Arc<dyn Observer>,
) -> Known {
    let mut known = Known::default();
    let answers = join_all(remotes.iter().map(|remote| async move {
        if writer.place.nodes().is_several() {
            return own_parts_on(remote, at_hand, writer).await;
        }
        let found = known_on(remote, at_hand).await?;
        let is_there = found.iter().any(|entry| entry.same_content);
        Ok((found, is_there))
    }))
    .await;
    for (remote, found) in remotes.iter().zip(answers) {
        match found {
            Ok((found, is_there)) => {
                known.missing_somewhere |= !is_there;
                known.remote.extend(found);
            }
            Err(error) => {
                known.missing_somewhere = true;
                observer.on_event(&Event::Warning {
                    message: &format!("{} was not asked what it holds: {error}", remote.name()),
                });
            }
        }
    }
    known
}

/// The attempt is that of the launch, on which all nodes agree.
///
/// # Errors
/// When this node does not know it yet and the first remote cannot be asked: a number of its own making could be
/// another launch's.
async fn place_in_launch(
    vault: &Vault,
    remotes: &[RunRemote],
    request: &StageRequest,
    known: &[KnownStep],
    step: Step,
    tree: &Tree,
) -> Result<Placement> {
    let unnamed = LaunchName::unnamed();
    let launch = request.writer.launch.as_ref().unwrap_or(&unnamed);
    let Some(remote) = remotes.first() else {
        return place(known, step, tree.newest_mtime());
    };
    let mut launches = Launches::open(Some(vault), remote).await?;
    let written_at = tree.newest_mtime();
    match launches.join(launch, request.launch_since).await {
        // One node needs nobody's agreement: its own files tell an attempt from another, as without a launcher.
        Err(error) if is_outage(&error) && !request.writer.place.nodes().is_several() => {
            return place(known, step, written_at);
        }
        joined => joined?,
    };
    let spans = launches.spans();
    match place_by_launch(known, &spans, step, written_at, request.in_launch) {
        Some(LaunchPlacement::Placed(placement)) => Ok(placement),
        Some(LaunchPlacement::WentBack(over)) => {
            let attempt = launches.go_back(launch, over, written_at).await?;
            Ok(Placement::New(StepId::new(attempt, step)))
        }
        // Of a node that writes alone it is one of its own, whenever that was.
        Some(LaunchPlacement::OfUnknownLaunch) if !request.writer.place.nodes().is_several() => {
            place(known, step, written_at)
        }
        // Older than all this node knows of launches: a new disk holds what was written since the launch began, though its
        // agent may have come later than the first save.
        Some(LaunchPlacement::OfUnknownLaunch) => {
            let attempt = spans.first().map_or(Attempt::FIRST, |span| span.attempt);
            let id = StepId::new(attempt, step);
            Ok(if known.iter().any(|entry| entry.id == id) {
                Placement::Stale(id)
            } else {
                Placement::New(id)
            })
        }
        None => place(known, step, written_at),
    }
}

fn place_as(known: &[KnownStep], id: StepId) -> Result<Placement> {
    match known.iter().find(|entry| entry.id == id) {
        None => Ok(Placement::New(id)),
        Some(entry) if entry.same_content => Ok(Placement::Known(id)),
        Some(_) => Err(Error::new(ErrorKind::Conflict, format!("{id} is taken"))
            .because("other files stand there, or stood there before")
            .hint("leave --attempt out, or give a higher one")),
    }
}

fn absolute(source: &Path) -> Result<PathBuf> {
    std::path::absolute(source).map_err(|error| {
        Error::new(ErrorKind::Usage, "not a path")
            .on(source.display())
            .caused_by(error)
    })
}

fn name_of(source: &Path) -> Result<String> {
    let fault = |why: &str| {
        Error::new(ErrorKind::Usage, "cannot name the step")
            .on(source.display())
            .because(why)
    };
    let name = source
        .file_name()
        .ok_or_else(|| fault("the path has no last component"))?;
    let name = name.to_str().ok_or_else(|| fault("its name is not UTF-8"))?;
    stepvault_core::keys::check_step_name(name)?;
    Ok(name.to_owned())
}

/// The step's number from its name.
pub(crate) fn step_of(name: &str) -> Result<Step> {
    let number = step_name::parse(name).ok_or_else(|| {
        Error::new(ErrorKind::Usage, "cannot tell the step's number")
            .on(name)
            .because("its name has none")
            .hint("give it with --step N")
    })?;
    Step::new(number)
}
