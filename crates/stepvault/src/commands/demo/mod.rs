//! `demo`: seal, upload, restore and prune on one machine, without a server.
//!
//! It calls the same code as `push`, `restore`, `prune` and `list`; only the trainer, the lost node and the damage are
//! simulated.

mod node;
mod scene;
mod trainer;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use stepvault_core::{Error, ErrorKind, Result};

use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::session::Session;
use scene::Scene;

/// Run seal, upload, restore and prune once in a temporary directory: no server, under a minute
///
/// A trainer writes five safetensors checkpoints; each is sealed and uploaded to a directory that serves as the remote;
/// the node is lost; the newest remote copy is damaged; the newest valid step is restored and compared; the remote
/// is pruned. The command fails if any result is not as expected.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Run in DIR and keep all files there
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// The result of the demo.
#[derive(Debug, Serialize)]
struct DemoDocument {
    /// Directory with all files; null if it was removed.
    directory: Option<PathBuf>,
    stages: Vec<Stage>,
    restored_step: u64,
    /// Steps on the remote at the end, the newest first.
    remaining_steps: Vec<u64>,
    seconds: f64,
}

/// One stage of the demo.
#[derive(Debug, Serialize)]
struct Stage {
    what: String,
    outcome: String,
    seconds: f64,
}

/// The stages so far, with the start time of the current one.
#[derive(Debug)]
struct Stages<'a> {
    session: &'a Session,
    done: Vec<Stage>,
    began: Instant,
}

impl Stages<'_> {
    /// Records a stage that ends now.
    fn done(&mut self, what: &str, outcome: String) {
        let length = self.began.elapsed();
        tracing::info!("{what}: {outcome}");
        self.done.push(Stage {
            what: what.to_owned(),
            outcome,
            seconds: length.as_secs_f64(),
        });
        self.began = Instant::now();
    }
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: DemoArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let scene = Scene::set(arguments.keep).await?;
    let mut stages = Stages {
        session,
        done: Vec::new(),
        began,
    };
    let outcome = play(&scene, &mut stages).await;
    let (restored_step, remaining_steps) = match outcome {
        Ok(ending) => ending,
        Err(error) => {
            let directory = scene.leave();
            return Err(error.hint(format!(
                "inspect the files of the demo in {}",
                directory.display()
            )));
        }
    };
    let document = DemoDocument {
        directory: scene.clear()?,
        stages: stages.done,
        restored_step,
        remaining_steps,
        seconds: began.elapsed().as_secs_f64(),
    };
    session.output.result(&document)?;
    Ok(ExitCode::Done)
}

async fn play(scene: &Scene, stages: &mut Stages<'_>) -> Result<(u64, Vec<u64>)> {
    let mut node = scene.first_node(stages.session).await?;
    for (step, loss) in scene::LOSSES {
        let written = node.train(step, loss).await?;
        stages.done(
            &format!("train step {step}"),
            format!(
                "{}, {}, loss {loss}",
                human::count(written.files.len() as u64, "file"),
                human::bytes(written.bytes())
            ),
        );
        let outcome = node.push(&written).await?;
        stages.done(&format!("push step {step}"), outcome);
    }
    let written = node.lose()?;
    stages.done("lose the node", "checkpoints and vault are gone".to_owned());
    let outcome = scene.damage_newest()?;
    stages.done("damage the remote", outcome);
    let node = scene.second_node(stages.session).await?;
    let restored = node.restore().await?;
    let reasons: Vec<String> = restored
        .skipped
        .iter()
        .map(|step| format!("; skipped step {}: {}", step.id.step, step.reasons.join("; ")))
        .collect();
    stages.done("restore", format!("step {}{}", restored.step, reasons.concat()));
    let outcome = node::compare(&restored, &written)?;
    stages.done("compare", outcome);
    let outcome = node.prune(stages.session).await?;
    stages.done("prune", outcome);
    let remaining = node.list().await?;
    let shown: Vec<String> = remaining.iter().map(ToString::to_string).collect();
    stages.done("list", format!("the remote holds steps {}", shown.join(", ")));
    Ok((restored.step, remaining))
}

/// Fails unless `holds`.
fn expect(holds: bool, what: &str, found: impl std::fmt::Display) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Failed, "the demo failed")
        .on(what)
        .because(format!("found {found}")))
}

impl Report for DemoDocument {
    fn human(&self) -> String {
        let mut stages = table::table(&["stage", "what happened", "time"], &[2]);
        for stage in &self.stages {
            let length = human::seconds(stage.seconds);
            stages.add_row([stage.what.clone(), stage.outcome.clone(), length]);
        }
        let total = human::seconds(self.seconds);
        let place = self
            .directory
            .as_ref()
            .map(|directory| format!("; the files are in {}", directory.display()));
        format!(
            "{}\n\nall results were as expected, in {total}{}",
            table::text(&stages),
            place.unwrap_or_default()
        )
    }
}
