//! Decides which step is restored, from which tiers and to which paths.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::StepIdMembers;
use stepvault_core::{Error, ErrorKind, Result, StepId, Tier, Timestamp};
use stepvault_formats::handoff::HandoffPlan;
use stepvault_local::tree::absolute;

use super::candidates::{Candidate, Candidates, Faults};
use super::request::{Restore, Target};
use super::resolve::{Resolution, ResolvedStep, Source, resolve};
use super::thaw::thaw_records;

/// The decision of a restore, before anything is done: what `--plan` prints and what a restore executes.
#[derive(Debug, Clone)]
pub struct RestorePlan {
    /// The step to restore.
    pub id: StepId,
    /// Where to put it; for a multi-path step the directory that contains its paths.
    pub path: PathBuf,
    /// The step's paths, in the order in which they appear: `path`, or those of a multi-path step.
    pub paths: Vec<PathBuf>,
    /// The directory in which the trainer looks for its steps. Paths of the handoff are relative to it.
    pub directory: PathBuf,
    /// The tiers to read from, in order.
    pub sources: Vec<Tier>,
    /// When the newest of its files was written, by the trainer's clock.
    pub written_at: Timestamp,
    /// Newer steps that were skipped, the newest first.
    pub skipped: Vec<SkippedStep>,
    /// Unreachable tiers, with the error.
    pub unreachable: Vec<(Tier, String)>,
    /// How the trainer is, or was, made to resume from the step; `None` if that was not requested, and for a partial
    /// step.
    pub handoff: Option<HandoffPlan>,
    /// The steps that it names as the best and that go, or are, beside it.
    pub best: Vec<BestStep>,
    pub(super) step: Arc<ResolvedStep>,
}

impl RestorePlan {
    /// Returns the number of files, after `include`.
    pub fn file_count(&self) -> u64 {
        self.step.files.len() as u64
    }

    /// Returns the bytes of those files.
    pub fn data_bytes(&self) -> u64 {
        self.step.data_bytes()
    }
}

/// A step that the restored one names as the best.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BestStep {
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    pub id: StepId,
    /// Its path; for a step of several paths, their directory.
    pub path: PathBuf,
    /// Bytes of its files.
    #[serde(rename = "bytes")]
    pub data_bytes: u64,
    /// Whether it was already there.
    pub already_there: bool,
}

impl Target {
    /// Returns where a step is, or will be: the directory in which the trainer looks for it, and the step's paths in it, one
    /// or all of a multi-path step.
    fn location(&self, resolved: &ResolvedStep) -> Result<(PathBuf, Vec<PathBuf>)> {
        let (Self::Into(path) | Self::IntoNamed(path, _) | Self::As(path)) = self;
        let path = absolute(path)?;
        if !resolved.members.is_empty() {
            let paths = resolved.members.iter().map(|member| path.join(member)).collect();
            return Ok((path, paths));
        }
        let name = match self {
            Self::Into(_) => Some(&resolved.name),
            Self::IntoNamed(_, name) => Some(name),
            Self::As(_) => None,
        };
        if let Some(name) = name {
            let own = resolved.origin.directory_in(&path);
            return Ok((path, vec![own.join(name)]));
        }
        match (path.parent(), path.file_name()) {
            (Some(directory), Some(_)) => Ok((directory.to_owned(), vec![path])),
            _ => Err(Error::new(ErrorKind::Usage, "cannot restore to this path")
                .on(path.display())
                .because("it has no last component")),
        }
    }
}

/// A step that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SkippedStep {
    /// Its identity.
    #[serde(flatten, with = "StepIdMembers")]
    pub id: StepId,
    /// The reasons, one for each tier.
    pub reasons: Vec<String>,
    /// Whether it may be valid: a tier that has it could not be read, and an older step was allowed.
    pub unread: bool,
    /// Whether it was skipped because the trainer crashes on it.
    #[serde(skip)]
    pub demoted: bool,
    /// Whether a tier or a node is proven to have it damaged.
    #[serde(skip)]
    pub damaged: bool,
}

impl SkippedStep {
    fn new(id: StepId, reasons: Vec<String>) -> Self {
        Self { id, reasons, unread: false, demoted: false, damaged: false }
    }
}

impl fmt::Display for SkippedStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = self.reasons.join("; ");
        write!(out, "{}: {reasons}", self.id)
    }
}

/// The steps that a search considers.
#[derive(Debug)]
pub(super) enum Scope {
    /// Every candidate of the request.
    All,
    /// Committed steps without these, which some node has found damaged.
    Durable(BTreeSet<StepId>),
}

/// The search for a step to restore. It yields one plan after the other, the newest step first, until one of them is
/// executed.
#[derive(Debug)]
pub(super) struct Search<'a> {
    restore: Restore<'a>,
    scope: Scope,
    candidates: Candidates,
    /// Demoted candidates, the newest first: they are tried when no other is left.
    demoted: VecDeque<Candidate>,
    /// The candidate that is being tried, with the versions that are left of it.
    current: Option<(StepId, Resolution)>,
    skipped: Vec<SkippedStep>,
}

impl<'a> Search<'a> {
    /// Lists the candidates.
    pub(super) async fn begin(restore: Restore<'a>, scope: Scope) -> Result<Self> {
        Ok(Self {
            restore,
            scope,
            candidates: Candidates::list(restore).await?,
            demoted: VecDeque::new(),
            current: None,
            skipped: Vec::new(),
        })
    }

    /// Returns the plan for the newest step that is left, or for the next version of the step that was rejected; `None`
    /// when no step is left.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when a step may be valid: a tier that has it could not be read, and no older step is
    /// allowed in its place; [`ErrorKind::Archived`] if each such tier has it in an archive.
    pub(super) async fn next(&mut self) -> Result<Option<RestorePlan>> {
        loop {
            if let Some((id, mut resolution)) = self.current.take() {
                if let Some(step) = resolution.versions.pop_front() {
                    self.current = Some((id, resolution));
                    return self.plan(step).map(Some);
                }
                self.skip(id, resolution.faults)?;
            }
            let Some(candidate) = self.next_candidate() else {
                return Ok(None);
            };
            let id = candidate.id;
            let mut resolution = resolve(self.restore, candidate.clone()).await?;
            if let Some(options) = self.restore.request.thaw
                && resolution.faults.archived > 0
            {
                thaw_records(self.restore.context, &candidate, options).await?;
                resolution = resolve(self.restore, candidate).await?;
            }
            self.current = Some((id, resolution));
        }
    }

    /// Rejects the version that [`Self::next`] returned: its bytes cannot be restored.
    pub(super) fn reject(&mut self, faults: Faults) {
        if let Some((_, resolution)) = &mut self.current {
            resolution.faults.extend(faults);
        }
    }

    /// Returns the candidate to try next: the newest, and demoted ones only when no other is left. An explicitly
    /// requested step is never demoted.
    fn next_candidate(&mut self) -> Option<Candidate> {
        while let Some(candidate) = self.candidates.pop_newest() {
            let id = candidate.id;
            if let Scope::Durable(damaged) = &self.scope {
                if candidate.remotes.is_empty() {
                    continue;
                }
                if damaged.contains(&id) {
                    let reason = "a node of this run found it damaged".to_owned();
                    self.add_skipped(id, SkippedStep { damaged: true, ..SkippedStep::new(id, vec![reason]) });
                    continue;
                }
            }
            let request = self.restore.request;
            match request.demoted.get(&id) {
                Some(reason) if request.wanted.step.is_none() => {
                    let skipped = SkippedStep::new(id, vec![reason.clone()]);
                    self.add_skipped(id, SkippedStep { demoted: true, ..skipped });
                    self.demoted.push_back(candidate);
                }
                _ => return Some(candidate),
            }
        }
        let candidate = self.demoted.pop_front()?;
        let text = format!("{} is restored despite this: no other step is left", candidate.id);
        self.restore.context.observer.warn(text);
        self.skipped.retain(|other| other.id != candidate.id);
        Some(candidate)
    }

    fn skip(&mut self, id: StepId, faults: Faults) -> Result<()> {
        let unread = !faults.unread.is_empty();
        let is_archived = unread && faults.archived == faults.unread.len();
        let damaged = faults.is_damaged;
        let reasons: Vec<String> = faults.unread.into_iter().chain(faults.proven).collect();
        let request = self.restore.request;
        if unread && !request.allow_older {
            let (kind, first) = if is_archived {
                (ErrorKind::Archived, "request its objects with --thaw standard")
            } else {
                (ErrorKind::Unreachable, "retry when its tier is readable")
            };
            return Err(Error::new(kind, "cannot read a step")
                .on(format!("{id} of run '{}'", request.run))
                .because(reasons.join("; "))
                .hint(format!(
                    "{first}, or restore the newest readable step with --allow-older; nothing was restored because the \
                     step may be valid"
                ))
                .lasting());
        }
        let skipped = SkippedStep::new(id, reasons);
        self.add_skipped(id, SkippedStep { unread, damaged, ..skipped });
        Ok(())
    }

    fn add_skipped(&mut self, id: StepId, step: SkippedStep) {
        self.restore.context.observer.warn(format!("{id} is skipped: {}", step.reasons.join("; ")));
        self.skipped.push(step);
    }

    fn plan(&self, step: ResolvedStep) -> Result<RestorePlan> {
        let (directory, paths) = self.restore.request.target.location(&step)?;
        let unreachable = self.candidates.unreachable.iter();
        Ok(RestorePlan {
            id: step.id,
            path: match paths.as_slice() {
                [path] if step.members.is_empty() => path.clone(),
                _ => directory.clone(),
            },
            paths,
            directory,
            sources: step.sources.iter().map(Source::tier).collect(),
            written_at: step.files.iter().map(|file| file.mtime).max().unwrap_or_default(),
            skipped: self.skipped.clone(),
            unreachable: unreachable.map(|(tier, error)| (tier.clone(), error.to_string())).collect(),
            handoff: None,
            best: Vec::new(),
            step: Arc::new(step),
        })
    }

    /// Returns the error of a search that has no step left.
    pub(super) fn none_left(&self) -> Error {
        let (request, skipped) = (self.restore.request, &self.skipped);
        let wanted = match (request.wanted.step, request.wanted.attempt) {
            (Some(step), Some(attempt)) => {
                format!("step {step} (attempt {attempt}) of run '{}'", request.run)
            }
            (Some(step), None) => format!("step {step} of run '{}'", request.run),
            (None, Some(attempt)) => format!("any step of attempt {attempt} of run '{}'", request.run),
            (None, None) => format!("any step of run '{}'", request.run),
        };
        let reasons: Vec<String> = skipped.iter().map(ToString::to_string).collect();
        let reasons = reasons.join(" | ");
        // This comes first: an unreachable tier may have what the others lack, so neither 'none is valid' nor 'none
        // exists' is known, and no trainer may start from scratch because of it.
        if let Some((tier, error)) = self.candidates.unreachable.first() {
            let found = if skipped.is_empty() {
                "no reachable tier has a checkpoint".to_owned()
            } else {
                format!("no reachable tier has a valid one ({reasons})")
            };
            let own = error.hint_text().map_or_else(String::new, |hint| format!("{hint}; "));
            return error.clone().hint(format!("{own}{found}; {tier} was unreachable"));
        }
        if skipped.iter().any(|step| step.unread) {
            return Error::new(ErrorKind::Unreachable, "cannot read any checkpoint")
                .on(wanted)
                .because(reasons)
                .hint("retry when the tiers are readable")
                .lasting();
        }
        if !skipped.is_empty() {
            return Error::new(ErrorKind::NoneValid, "no valid checkpoint")
                .on(wanted)
                .because(reasons)
                .hint("run 'stepvault verify --deep' to see what is wrong with each");
        }
        Error::new(ErrorKind::NotFound, "no such checkpoint")
            .on(wanted)
            .because("no tier has it")
            .hint("run 'stepvault list' to see the steps")
    }
}
