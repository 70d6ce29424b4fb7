//! `restore`: restores the newest valid step, or the given one.

pub(super) mod document;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use itertools::Itertools as _;
use stepvault_core::{Attempt, Clock as _, Error, ErrorKind, Result, Revision, Step};
use stepvault_engine::blocking::blocking;
use stepvault_engine::restore::{
    HandoffOptions, Parts, RestoreContext, RestoreReport, RestoreRequest, Target, ThawOptions, Together,
    WantedSteps, plan, remember_remotes, remember_resumption, restore,
};
use stepvault_local::rank_turn::{RankTurn, check_rank};
use stepvault_local::staging::Existing;
use stepvault_local::{SystemClock, Vault};
use stepvault_remote::store::ThawSpeed;

use super::notify::{notify, restored_older};
use super::starts::demoted_steps;
use crate::arguments::values::{checked, duration, thaw_speed};
use crate::context::{DefaultVault, Settings, Tiers, vault_beside};
use crate::exit_code::ExitCode;
use crate::session::Session;
use document::{RestoreDocument, SharedDocument, planned, restored};

/// Restore the newest valid step, or the given one
///
/// Each byte is verified as it arrives; damaged steps are skipped, with the reason. The target is complete or absent.
/// An interrupted restore continues where it stopped. A step from which the trainer of 'stepvault run' crashed several
/// times in a row is skipped too, unless --step names it.
///
/// With --into the trainer resumes from the step: files on which it would fail, or which it would load instead, are
/// moved aside, never deleted, and the pointer that it reads (latest, a tracker file, a link) is written once the step
/// is in place. The steps that it names as the best so far are restored beside it.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).args(["into", "exact"]))]
pub(crate) struct RestoreArguments {
    /// Directory of the trainer's steps; the step gets its own name, in the subdirectory that it had
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Path to restore the step as
    #[arg(long = "as", id = "exact", value_name = "PATH")]
    exact: Option<PathBuf>,
    /// Restore this step instead of the newest valid one
    #[arg(long, value_name = "N", value_parser = checked::<Step>)]
    step: Option<Step>,
    /// Attempt to restore from
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// Revision of the step to restore instead of its newest valid one
    #[arg(long, value_name = "N", value_parser = checked::<Revision>, requires = "step")]
    revision: Option<Revision>,
    /// Restore only files that match; repeatable: --include '*.safetensors'
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Print what would be restored and from where, and change nothing
    #[arg(long)]
    plan: bool,
    /// Replace other content that has the step's name
    #[arg(long)]
    replace: bool,
    /// Restore an older step if a newer one exists but cannot be read
    ///
    /// Without this flag such a restore fails with code 12, because the newer step may be valid. A step that is proven
    /// damaged is always skipped.
    #[arg(long)]
    allow_older: bool,
    #[command(flatten)]
    archive: ArchiveArguments,
    #[command(flatten)]
    turn: TurnArguments,
    #[command(flatten)]
    nodes: NodesArguments,
    #[command(flatten)]
    trainer: TrainerArguments,
}

/// What to do if objects are in an archive class.
#[derive(Debug, Args)]
pub(crate) struct ArchiveArguments {
    /// Request archived objects from the store, which takes minutes to days and is charged: expedited, standard or bulk
    ///
    /// Without this flag, a step in an archive class ends the restore with code 15.
    #[arg(long, value_name = "SPEED", value_parser = thaw_speed)]
    thaw: Option<ThawSpeed>,
    /// How long to wait for archived objects; after it, or at once by default, the command ends with code 15
    ///
    /// The objects stay requested: run the same command again later.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, requires = "thaw")]
    timeout: Duration,
}

impl ArchiveArguments {
    /// Returns the options of a restore; `None` if nothing is to be requested.
    pub(super) fn options(&self) -> Option<ThawOptions> {
        self.thaw.map(|speed| ThawOptions { speed, patience: self.timeout })
    }
}

/// Options for processes that restore into one directory.
#[derive(Debug, Args)]
struct TurnArguments {
    /// Wait while another restore with this flag uses the same vault, instead of ending with code 13
    #[arg(long, conflicts_with = "plan")]
    wait_for_turn: bool,
    /// Restore once for all ranks of this node, each of which calls this with its own process ID
    ///
    /// The first one restores. The others, which the same launcher has started, wait for it and print its result.
    #[arg(long, value_name = "PID", conflicts_with_all = ["plan", "print_resume"])]
    rank_process: Option<u32>,
}

/// Options for steps that several nodes wrote together.
#[derive(Debug, Args)]
pub(super) struct NodesArguments {
    /// Parts to restore: all, own (written by this node), or a glob on node names; repeatable
    ///
    /// Use own for a trainer whose ranks read only what they wrote, on the same number of nodes.
    #[arg(long, value_name = "all|own|GLOB", default_value = "all")]
    parts: Vec<String>,
    /// How long to wait for the other nodes to start, and for progress while they upload
    ///
    /// A step that is newer than the newest durable one is restored if the nodes hold all of its parts: they upload them
    /// first, for as long as any node makes progress.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    wait_for_nodes: Duration,
}

/// Options for the resume handoff to the trainer.
#[derive(Debug, Args)]
struct TrainerArguments {
    /// Framework that wrote the checkpoints; detected by default
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Restore the step alone, and do not change the trainer's pointers or anything else in DIR
    #[arg(long)]
    no_pointer: bool,
    /// Print only how to start the trainer
    #[arg(long, conflicts_with = "include")]
    print_resume: bool,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, mut arguments: RestoreArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let rank = arguments.turn.rank_process.take();
    let (requested, step_path) = (format!("{arguments:?}"), arguments.step_path());
    let prints_resume = arguments.trainer.print_resume;
    if prints_resume && session.output.json {
        return Err(Error::new(ErrorKind::Usage, "cannot combine")
            .on("--print-resume and --json")
            .because("each prints a single result")
            .hint("read the text from 'resume' in the JSON document"));
    }
    let settings = Settings::load(session)?;
    rank.map_or(Ok(()), check_rank)?;
    let turn = if rank.is_some() || arguments.turn.wait_for_turn {
        take_turn(session, &settings, &step_path, rank, &requested).await?
    } else {
        Turn::None
    };
    if let Turn::Shared(document) = turn {
        session.output.result(&SharedDocument(document))?;
        return Ok(ExitCode::Done);
    }
    // A restore needs no vault, so a target without room for one is fine.
    // One of several nodes records in its vault when it joined the launch, so that a step that the trainer saves before
    // the agent starts belongs to the launch.
    let remembers = !arguments.plan && settings.writer()?.place.nodes().is_several();
    let default = match vault_beside(&step_path) {
        Ok(vault) if remembers => DefaultVault::Created(vault),
        Ok(vault) => DefaultVault::Existing(vault),
        Err(_) => DefaultVault::None,
    };
    let tiers = Tiers::open(&settings, default, &session.output).await?;
    tiers.require_any()?;
    let mut document = execute(&tiers, arguments).await?;
    document.seconds = began.elapsed().as_secs_f64();
    document.ask_given_up(&tiers).await;
    tiers.progress.finish();
    if prints_resume {
        session.output.text(document.resume_line()?)?;
    } else {
        session.output.result(&document)?;
    }
    if let Turn::Taken(turn) = turn {
        pass_on(turn, &document, session).await;
    }
    Ok(ExitCode::Done)
}

/// Restores the selected step, or plans to.
pub(super) async fn execute(tiers: &Tiers, arguments: RestoreArguments) -> Result<RestoreDocument> {
    let step_path = arguments.step_path();
    let target = match (arguments.into, arguments.exact) {
        (Some(directory), _) => Target::Into(directory),
        (None, path) => Target::As(path.unwrap_or_default()),
    };
    let resumes = !arguments.plan && resumes_from(tiers, &target);
    let demoted = if arguments.step.is_some() { BTreeMap::new() } else { demoted_steps(tiers).await };
    let request = RestoreRequest {
        wanted: WantedSteps {
            step: arguments.step,
            attempt: arguments.attempt,
            revision: arguments.revision,
        },
        resumes,
        include: arguments.include,
        existing: existing(arguments.replace),
        handoff: Some(handoff_options(tiers, arguments.trainer.profile, arguments.trainer.no_pointer)?),
        demoted,
        allow_older: arguments.allow_older,
        thaw: arguments.archive.options(),
        ..arguments.nodes.request(tiers, target)
    };
    let context = restore_context(tiers);
    if arguments.plan {
        return Ok(planned(tiers.run_name(), plan(&context, &request).await?));
    }
    let report = restore(&context, &request).await?;
    if resumes && tiers.vault.is_none() {
        remember(tiers, &step_path, &request, &report).await;
    }
    notify(tiers, restored_older(tiers.run_name(), &report.plan)).await;
    Ok(restored(tiers.run_name(), report))
}

impl RestoreArguments {
    /// Returns the path of a step at the target, which may not exist yet.
    fn step_path(&self) -> PathBuf {
        match (&self.into, &self.exact) {
            (Some(directory), _) => directory.join("step"),
            (None, path) => path.clone().unwrap_or_default(),
        }
    }
}

/// Keeps the result for the other ranks. Without it they find the step in its place, and read it again.
async fn pass_on(turn: RankTurn, document: &RestoreDocument, session: &Session) {
    let kept = match serde_json::to_string(document) {
        Ok(text) => blocking(move || turn.finish(text)).await,
        Err(error) => Err(Error::new(ErrorKind::Failed, "cannot encode the result").caused_by(error)),
    };
    if let Err(error) = kept {
        let warning = format!("cannot pass the result to the other ranks: {error}");
        session.output.warn(&warning);
    }
}

/// How often it is looked whether the restore before this one has ended.
const TURN_INTERVAL: Duration = Duration::from_millis(100);

enum Turn {
    /// This process restores.
    Taken(RankTurn),
    /// Another rank has restored, with this result.
    Shared(serde_json::Value),
    /// This process restores without regard to others.
    None,
}

/// Takes a turn to restore what is `requested`. Without a place to meet, each process restores for itself.
async fn take_turn(
    session: &Session,
    settings: &Settings,
    step_path: &Path,
    rank: Option<u32>,
    requested: &str,
) -> Result<Turn> {
    let run = settings.run()?;
    let remotes = settings.remotes(&run);
    let remotes = remotes.iter().map(|remote| remote.url.to_string()).collect_vec();
    let place = std::path::absolute(step_path).ok();
    let request = format!("{} {remotes:?} {requested} {place:?}", run.name);
    let taken = async { wait_for_turn(rank, local_vault(settings, step_path).await?, request).await };
    Ok(taken.await.unwrap_or_else(|error| {
        let warning = format!("cannot take turns with other restores: {error}");
        session.output.warn(&warning);
        Turn::None
    }))
}

/// Waits while others restore. Each of them ends by its own deadlines, and its turn ends with it.
async fn wait_for_turn(rank: Option<u32>, vault: Vault, request: String) -> Result<Turn> {
    let began = Instant::now();
    loop {
        let (vault, request) = (vault.clone(), request.clone());
        let taken = blocking(move || {
            let Some(turn) = RankTurn::take(&vault, &request, rank)? else {
                return Ok(None);
            };
            let shared = turn.result_of_another(began.elapsed())?;
            let shared = shared.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
            Ok(Some(match shared.filter(document::is_there) {
                Some(document) => Turn::Shared(document),
                None => Turn::Taken(turn),
            }))
        });
        if let Some(turn) = taken.await? {
            return Ok(turn);
        }
        tokio::time::sleep(TURN_INTERVAL).await;
    }
}

/// Opens the configured vault, or else the one beside the steps, and creates it if it does not exist.
async fn local_vault(settings: &Settings, step_path: &Path) -> Result<Vault> {
    let configured = settings.local_directory();
    let directory = configured.map_or_else(|| vault_beside(step_path), Ok)?;
    let parents = settings.vault_parents();
    blocking(move || Vault::open_or_create_below(&directory, parents)).await
}

/// Returns whether the trainer resumes from `target`: it must be the watched directory, if there is one.
fn resumes_from(tiers: &Tiers, target: &Target) -> bool {
    let Target::Into(directory) = target else {
        return false;
    };
    let absolute = |path: &Path| std::path::absolute(path).ok();
    let watched = tiers.run.watch.as_deref();
    watched.is_none_or(|watched| absolute(watched) == absolute(directory))
}

/// Creates a vault and records in it the step that the trainer resumes from and the archives at the remotes, so that
/// the next step gets the right attempt even if no remote answers then. An error does not fail the restore.
async fn remember(tiers: &Tiers, step_path: &Path, request: &RestoreRequest, report: &RestoreReport) {
    let remembered = async {
        let vault = local_vault(&tiers.settings, step_path).await?;
        remember_remotes(&vault, &tiers.remotes).await;
        remember_resumption(&vault, request, &report.plan).await
    };
    if let Err(error) = remembered.await {
        let warning = format!("cannot record the restored step in a vault: {error}");
        tiers.output.warn(&warning);
    }
}

impl NodesArguments {
    /// Returns the request for the newest step: the selected parts ("all" overrides the others), and how to agree with
    /// the nodes that restore at the same time.
    pub(super) fn request(&self, tiers: &Tiers, target: Target) -> RestoreRequest {
        let (writer, own) = (tiers.writer.clone(), tiers.writer.place.node());
        let parts = match self.parts.as_slice() {
            words if words.iter().any(|word| word == "all") => Parts::All,
            [word] if word == "own" => Parts::Of(own.clone()),
            words => {
                let pattern = |word: &String| if word == "own" { own.as_str() } else { word }.to_owned();
                Parts::Matching(words.iter().map(pattern).collect())
            }
        };
        let together = Together { writer, since: SystemClock.now(), patience: self.wait_for_nodes };
        RestoreRequest {
            parts,
            together: Some(together),
            ..RestoreRequest::newest(tiers.run_name().clone(), target)
        }
    }
}

/// Returns how to make the trainer resume from the step.
pub(super) fn handoff_options(
    tiers: &Tiers,
    profile: Option<String>,
    no_pointer: bool,
) -> Result<HandoffOptions> {
    Ok(HandoffOptions {
        profiles: tiers.settings.profiles()?,
        profile: profile.or_else(|| tiers.run.profile.clone()),
        write: !no_pointer,
    })
}

/// Returns what to do with other content that has the step's name.
pub(super) const fn existing(replace: bool) -> Existing {
    if replace { Existing::Replace } else { Existing::Refuse }
}

/// Returns the engine's context for a restore.
pub(super) fn restore_context(tiers: &Tiers) -> RestoreContext {
    RestoreContext {
        vault: tiers.vault.clone(),
        remotes: tiers.remotes.clone(),
        sync: tiers.settings.config.restore_sync,
        budget: tiers.budget.clone(),
        observer: tiers.observer(),
    }
}
