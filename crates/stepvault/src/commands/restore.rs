//! `restore`: the newest valid step, or the one asked for, back on disk.

pub(super) mod document;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use stepvault_agent::SystemClock;
use stepvault_core::clock::Clock as _;
use stepvault_core::ids::{Attempt, Step};
use stepvault_core::nodes::Writer;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::restore::{
    HandoverOptions, Parts, RestoreContext, RestoreRequest, Target, Together, plan, restore,
};
use stepvault_local::staging::Existing;

use super::Session;
use super::starts::demoted_steps;
use crate::arguments::values::{checked, duration};
use crate::context::{DefaultVault, Settings, Tiers, vault_beside};
use crate::exit_code::ExitCode;
use document::{planned, restored};

/// Put the newest valid step back, or the one asked for
///
/// Each byte is verified as it arrives; damaged steps are passed over, and the reason is given. The target appears
/// whole or not at all. An interrupted restore goes on where it ended. A step after which the trainer of 'stepvault run'
/// crashed several times running is passed over too, unless --step names it.
///
/// With --into the trainer goes on from the step: what it would fail over or take instead is moved aside, never
/// deleted, and the pointer that it reads (latest, a tracker file, a link) is written once the step is in place.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).args(["into", "exact"]))]
pub(crate) struct RestoreArguments {
    /// The directory to put the step into, under its own name
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// The path that the step itself is to have
    #[arg(long = "as", id = "exact", value_name = "PATH")]
    exact: Option<PathBuf>,
    /// This step instead of the newest valid one
    #[arg(long, value_name = "N", value_parser = checked::<Step>)]
    step: Option<Step>,
    /// Of this attempt
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// Only files that match; repeatable: --include '*.safetensors'
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Print what would be restored from where, and do nothing
    #[arg(long)]
    plan: bool,
    /// Put the step in the place of something else that has its name
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    nodes: NodesArguments,
    #[command(flatten)]
    trainer: TrainerArguments,
}

/// Where several nodes wrote a step together.
#[derive(Debug, Args)]
pub(super) struct NodesArguments {
    /// Whose files of the step: all, own (what this node wrote), or a glob on the names of nodes; repeatable
    ///
    /// Own is enough for a trainer that reads back what its rank wrote, on as many nodes as before.
    #[arg(long, value_name = "all|own|GLOB", default_value = "all")]
    parts: Vec<String>,
    /// How long to wait for the other nodes' word on a step that is newer than the newest durable one
    ///
    /// Such a step is taken where each node still has its part sealed in its vault, and says so in time.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    wait_for_nodes: Duration,
}

/// What is done and said for the trainer.
#[derive(Debug, Args)]
struct TrainerArguments {
    /// The framework whose checkpoints these are; found out when not given
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Leave the trainer's pointers, and everything else in DIR, as they are
    #[arg(long)]
    no_pointer: bool,
    /// Print nothing but how to start the trainer
    #[arg(long, conflicts_with = "include")]
    print_resume: bool,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: RestoreArguments) -> Result<ExitCode> {
    let began = Instant::now();
    if arguments.trainer.print_resume && session.output.is_json() {
        return Err(Error::new(ErrorKind::Usage, "cannot print both")
            .on("--print-resume and --json")
            .because("each prints one thing and nothing else")
            .hint("the JSON document has the text as 'resume'"));
    }
    let settings = Settings::load(session)?;
    let (step_path, target) = match (arguments.into, arguments.exact) {
        (Some(directory), _) => (directory.join("step"), Target::Into(directory)),
        (None, path) => {
            let path = path.unwrap_or_default();
            (path.clone(), Target::As(path))
        }
    };
    // A target that leaves no place for a vault has none, which is fine here.
    // One of several nodes remembers in its vault since when it is part of the launch: what the trainer saves before the
    // agent starts is of the launch then.
    let remembers = !arguments.plan && settings.writer()?.place.nodes().is_several();
    let default = match vault_beside(&step_path) {
        Ok(vault) if remembers => DefaultVault::Created(vault),
        Ok(vault) => DefaultVault::Existing(vault),
        Err(_) => DefaultVault::None,
    };
    let tiers = Tiers::open(&settings, default, &session.output).await?;
    tiers.require_any()?;
    let context = restore_context(&tiers);
    let demoted = if arguments.step.is_some() {
        BTreeMap::new()
    } else {
        demoted_steps(&settings, &tiers, &session.output).await
    };
    let request = RestoreRequest {
        run: tiers.run_name().clone(),
        target,
        step: arguments.step,
        attempt: arguments.attempt,
        parts: arguments.nodes.parts(&tiers.writer),
        together: Some(arguments.nodes.together(&tiers.writer)),
        include: arguments.include,
        existing: if arguments.replace {
            Existing::Replace
        } else {
            Existing::Refuse
        },
        handover: Some(HandoverOptions {
            profiles: settings.profiles()?,
            profile: arguments.trainer.profile.or_else(|| tiers.run.profile.clone()),
            write: !arguments.trainer.no_pointer,
        }),
        demoted,
    };
    let mut document = if arguments.plan {
        planned(&tiers, plan(&context, &request).await?, &request.demoted)
    } else {
        restored(&tiers, restore(&context, &request).await?, &request.demoted)
    };
    document.seconds = began.elapsed().as_secs_f64();
    tiers.progress.finish();
    if arguments.trainer.print_resume {
        session.output.text(document.resume_line()?);
    } else {
        session.output.result(&document)?;
    }
    Ok(ExitCode::Done)
}

impl NodesArguments {
    /// The parts that are asked for; "all" wins over the others.
    pub(super) fn parts(&self, writer: &Writer) -> Parts {
        let own = writer.place.node();
        match self.parts.as_slice() {
            words if words.iter().any(|word| word == "all") => Parts::All,
            [word] if word == "own" => Parts::Of(own.clone()),
            words => {
                let pattern = |word: &String| {
                    if word == "own" {
                        own.to_string()
                    } else {
                        word.clone()
                    }
                };
                Parts::Matching(words.iter().map(pattern).collect())
            }
        }
    }

    /// The nodes that restore at the same time.
    pub(super) fn together(&self, writer: &Writer) -> Together {
        Together {
            writer: writer.clone(),
            since: SystemClock.now(),
            patience: self.wait_for_nodes,
        }
    }
}

/// What the engine restores with.
pub(super) fn restore_context(tiers: &Tiers) -> RestoreContext {
    RestoreContext {
        vault: tiers.vault.clone(),
        remotes: tiers.remotes.clone(),
        budget: tiers.budget.clone(),
        observer: tiers.observer(),
    }
}
