//! `inspect`: what stands in a directory of checkpoints.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use stepvault_agent::SystemClock;
use stepvault_core::Result;
use stepvault_engine::blocking::blocking;
use stepvault_engine::inspect::{InspectRequest, InspectedStep, Inspection, Verdict, inspect};
use stepvault_formats::find::FindOptions;
use stepvault_formats::pointer::PointerFound;

use super::Session;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};

/// Say which framework wrote a directory, which steps are in it, and whether each is complete and sound
///
/// It needs no vault and no remote, and writes nothing; of a configuration it takes the profiles. Files are opened and their headers checked;
/// tensors are not read and pickles are not executed.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// A directory of checkpoints, one checkpoint, or a file
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The framework, instead of finding out
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// How many ranks the run has: fewer are then too few
    #[arg(long, value_name = "N")]
    world_size: Option<u32>,
    /// How long nothing must have been written where nothing else proves that a save is over
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    quiet_time: Duration,
}

/// What was found.
#[derive(Serialize)]
struct InspectDocument {
    path: PathBuf,
    framework: String,
    /// What shows that it is this framework.
    why: Vec<String>,
    steps: Vec<StepDocument>,
    #[serde(skip)]
    newest_valid: Option<String>,
    /// What the trainer reads to find the step to go on from; null where there is none.
    pointer: Option<PointerDocument>,
    /// Paths with a name that is only given while writing.
    temporary: Vec<String>,
}

#[derive(Serialize)]
struct StepDocument {
    path: String,
    step: Option<u64>,
    complete: bool,
    /// Null where only a digest could tell.
    sound: Option<bool>,
    bytes: u64,
    files: u64,
    /// How many ranks wrote it, where that can be told.
    ranks: Option<u32>,
    /// Whether the trainer can go on from it.
    resumable: bool,
    /// Why it is not complete, or not sound.
    reasons: Vec<String>,
}

#[derive(Serialize)]
struct PointerDocument {
    path: String,
    says: String,
    /// The step that it names.
    step: Option<u64>,
    /// True when it names a step that is not there.
    dangling: bool,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: InspectArguments) -> Result<ExitCode> {
    let InspectArguments {
        path,
        profile,
        world_size,
        quiet_time,
    } = arguments;
    let looked_at = path.clone();
    let profiles = Settings::load(session)?.profiles()?;
    let inspection = blocking(move || {
        let request = InspectRequest {
            profiles: &profiles,
            profile: profile.as_deref(),
            options: FindOptions {
                quiet_seconds: quiet_time.as_secs(),
                expected_world: world_size,
                ..FindOptions::default()
            },
        };
        inspect(&looked_at, &request, &SystemClock)
    })
    .await?;
    let code = match inspection.verdict() {
        Verdict::Newest => ExitCode::Done,
        Verdict::Older => ExitCode::Partly,
        Verdict::NoneValid => ExitCode::NoneValid,
        Verdict::NoStep => ExitCode::NotFound,
    };
    session.output.result(&document(&path, &inspection))?;
    Ok(code)
}

fn document(path: &Path, inspection: &Inspection) -> InspectDocument {
    InspectDocument {
        path: path.to_owned(),
        framework: inspection.framework.clone(),
        why: inspection.why.clone(),
        steps: inspection.steps.iter().map(StepDocument::of).collect(),
        newest_valid: inspection.newest_valid().map(|entry| {
            let path = &entry.step.path;
            match entry.step.step {
                Some(number) => format!("step {number} ({path})"),
                None => path.clone(),
            }
        }),
        pointer: inspection.found.pointer().map(PointerDocument::of),
        temporary: inspection.found.temporary.clone(),
    }
}

impl StepDocument {
    fn of(entry: &InspectedStep) -> Self {
        Self {
            path: entry.step.path.clone(),
            step: entry.step.step,
            complete: entry.step.is_complete(),
            sound: entry.check.is_sound(),
            bytes: entry.step.bytes,
            files: entry.step.files,
            ranks: entry.step.ranks,
            resumable: entry.step.resumable,
            reasons: entry.reasons(),
        }
    }
}

impl PointerDocument {
    fn of(pointer: &PointerFound) -> Self {
        Self {
            path: pointer.path.clone(),
            says: pointer.says.clone(),
            step: pointer.target_step,
            dangling: pointer.dangling,
        }
    }
}

impl Report for InspectDocument {
    fn human(&self) -> String {
        let head = format!(
            "{}: {} ({})",
            self.path.display(),
            self.framework,
            self.why.join("; ")
        );
        if self.steps.is_empty() {
            return format!("{head}\nit holds no step");
        }
        let mut steps = table::table(
            &["step", "path", "complete", "sound", "size", "files", "ranks"],
            &[0, 4, 5, 6],
        );
        for step in &self.steps {
            steps.add_row([
                step.step
                    .map_or_else(|| "-".to_owned(), |number| number.to_string()),
                step.path.clone(),
                if step.complete { "yes" } else { "NO" }.to_owned(),
                match step.sound {
                    Some(true) => "yes",
                    Some(false) => "NO",
                    None => "unknown",
                }
                .to_owned(),
                human::bytes(step.bytes),
                step.files.to_string(),
                step.ranks.map_or_else(String::new, |ranks| ranks.to_string()),
            ]);
        }
        let reasons = self.steps.iter().flat_map(|step| {
            let said = step.reasons.iter();
            said.map(|reason| match reason.strip_prefix(step.path.as_str()) {
                // It begins with a path inside the step already.
                Some(rest) if rest.starts_with([':', '/']) => format!("\n{reason}"),
                _ => format!("\n{}: {reason}", step.path),
            })
        });
        let pointer = self.pointer.as_ref().filter(|pointer| !pointer.says.is_empty());
        let pointer = pointer.map_or_else(String::new, |pointer| {
            let dangling = if pointer.dangling {
                ", and there is no such step"
            } else {
                ""
            };
            format!("\n{} says {}{dangling}", pointer.path, pointer.says)
        });
        let newest = self.newest_valid.as_ref().map_or_else(
            || "\nno step is complete and sound".to_owned(),
            |newest| format!("\n{newest} is the newest that is complete and sound"),
        );
        format!(
            "{head}\n{}{}{pointer}{newest}",
            table::text(&steps),
            reasons.collect::<String>()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_wrong_with_which_step() {
        let step = |number: u64, complete: bool, reasons: &[&str]| StepDocument {
            path: format!("checkpoint-{number}"),
            step: Some(number),
            complete,
            sound: Some(true),
            bytes: 3 << 20,
            files: 4,
            ranks: Some(2),
            resumable: true,
            reasons: reasons.iter().map(|&reason| reason.to_owned()).collect(),
        };
        let document = InspectDocument {
            path: PathBuf::from("outputs"),
            framework: "hf-trainer".to_owned(),
            why: vec!["checkpoint-5/trainer_state.json".to_owned()],
            steps: vec![
                step(5, true, &[]),
                step(10, false, &["trainer_state.json is not there yet"]),
            ],
            newest_valid: Some("step 5 (checkpoint-5)".to_owned()),
            pointer: None,
            temporary: Vec::new(),
        };
        let text = document.human();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "outputs: hf-trainer (checkpoint-5/trainer_state.json)");
        assert!(
            lines[3].contains("10  checkpoint-10  NO        yes    3.0 MiB      4      2"),
            "{text}"
        );
        assert_eq!(lines[4], "checkpoint-10: trainer_state.json is not there yet");
        assert_eq!(
            lines[5],
            "step 5 (checkpoint-5) is the newest that is complete and sound"
        );
    }
}
