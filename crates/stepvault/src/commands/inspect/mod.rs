//! `inspect`: identifies and validates the steps in a directory of checkpoints, or below a prefix of a bucket.

mod place;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use console::Color;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::{Clock as _, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::inspect::{InspectRequest, InspectedStep, Inspection, Verdict};
use stepvault_formats::deep::DeepCheck;
use stepvault_formats::find::{FindOptions, RunBelow};
use stepvault_local::clock::SystemClock;

use self::place::{Place, ReadsDocument, StepvaultRun, shown};
use crate::arguments::values;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::progress::{Progress, Style};
use crate::session::Session;

/// Show which framework wrote a directory, which steps it holds, and whether each is complete and sound
///
/// It needs no vault and no remote, and writes nothing; of a configuration it uses only the profiles. It checks the
/// headers of files, and executes no pickles; it reads tensors only with --deep.
///
/// What lies in a bucket is judged like a directory, of any writer, by one listing and ranges of the objects. The
/// times of objects are those of their upload: the order in which files were written is not judged.
#[derive(Debug, Args)]
#[expect(clippy::doc_markdown, reason = "the comments are the help texts")]
pub(crate) struct InspectArguments {
    /// Directory of checkpoints, one checkpoint, or a file; or the URL of one, such as s3://bucket/prefix
    ///
    /// Options go in the URL's query, as in those of --remote: s3://bucket/prefix?region=eu-west-1&anonymous=true.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Framework that wrote the checkpoints; detected by default
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Number of ranks of the run: a step with fewer is incomplete
    #[arg(long, value_name = "N")]
    world_size: Option<u32>,
    /// Time without writes after which a save counts as finished, if nothing else proves it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::duration)]
    quiet_time: Duration,
    /// Read all data of every step, and compare it with the checksums that its formats carry
    ///
    /// ZIP archives (torch, npz, Keras), DCP files, the index of OCDBT, zarr chunks with the codec crc32c, TensorFlow's
    /// tensors and Megatron's integrity.json have checksums; safetensors and most other formats have none.
    #[arg(long)]
    deep: bool,
}

/// The result of `inspect`.
#[derive(Serialize, JsonSchema)]
pub(super) struct InspectDocument {
    /// PATH; the trial's directory if PATH is inside a trial of `AReaL`, whose steps have parts beside PATH.
    path: PathBuf,
    /// The name of the profile.
    framework: String,
    /// The evidence for this framework.
    why: Vec<String>,
    /// Every step, in the order of their numbers.
    steps: Vec<StepDocument>,
    #[serde(skip)]
    conclusion: Option<String>,
    /// The pointer that the trainer reads to find the step to resume from; null if there is none.
    pointer: Option<PointerDocument>,
    /// Paths with a name that the framework uses only while it writes.
    temporary: Vec<String>,
    /// The subdirectories with steps of a framework, if PATH itself has none; at most three levels deep.
    subdirectories: Vec<SubdirectoryDocument>,
    /// What a user should know besides: a pointer to nothing, a step whose content is of another number, a step that lacks
    /// a file which all earlier ones have.
    warnings: Vec<String>,
    /// The runs of stepvault whose records lie at or below PATH; 'list' shows their steps.
    runs: Vec<StepvaultRun>,
    /// What was requested of a bucket; null for a directory.
    reads: Option<ReadsDocument>,
}

#[derive(Serialize, JsonSchema)]
struct SubdirectoryDocument {
    /// Its path, relative to PATH.
    path: String,
    /// The name of the profile.
    framework: String,
    /// The path of its newest complete step, relative to the subdirectory; null if none is complete.
    newest_complete: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct StepDocument {
    /// Its path, relative to PATH.
    path: String,
    /// The step's number; null if neither its name nor its content states one.
    step: Option<u64>,
    /// Whether its framework finished writing it.
    complete: bool,
    /// Whether its files obey the rules of their formats; null if only a digest could prove it.
    sound: Option<bool>,
    /// Bytes of all files of the step.
    bytes: u64,
    /// Number of files of the step.
    files: u64,
    /// Number of ranks that wrote it; null if unknown.
    ranks: Option<u32>,
    /// Whether the trainer can resume from it; false for weights alone.
    resumable: bool,
    /// Why it is incomplete or not sound; empty if it is both complete and sound.
    reasons: Vec<String>,
    /// What reading all its data has shown; null without --deep.
    deep: Option<DeepCheck>,
}

#[derive(Serialize, JsonSchema)]
struct PointerDocument {
    /// Its path, relative to PATH.
    path: String,
    /// The content of the pointer.
    says: String,
    /// The number of the step that it names; null if unknown.
    step: Option<u64>,
    /// Whether it names a step that does not exist, or cannot be parsed.
    dangling: bool,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: InspectArguments) -> Result<ExitCode> {
    let (path, quiet_time, deep) = (shown(&arguments.path), arguments.quiet_time, arguments.deep);
    let progress = Progress::start(&[], Style::of(&session.output), &session.output);
    let (place, guard) = Place::find(session, &arguments.path, deep, &progress).await?;
    let profiles = Settings::load(session)?.profiles()?;
    let observer = deep.then(|| progress.observer());
    let inspected = place.clone();
    let inspection = blocking(move || {
        let request = InspectRequest {
            profiles: &profiles,
            profile: arguments.profile.as_deref(),
            options: FindOptions {
                quiet_seconds: quiet_time.as_secs(),
                expected_world: arguments.world_size,
                ..FindOptions::default()
            },
            reads_best: false,
            deep: observer.as_deref(),
        };
        inspected.inspect(&request, SystemClock.now())
    })
    .await;
    drop(guard);
    progress.finish();
    let inspection = inspection?;
    let code = match inspection.verdict() {
        Verdict::Newest => ExitCode::Done,
        Verdict::Older => ExitCode::Partly,
        Verdict::NoneValid => ExitCode::NoneValid,
        Verdict::NoStep => ExitCode::NotFound,
    };
    session.output.result(&InspectDocument::of(&path, inspection, place.reads(deep)))?;
    Ok(code)
}

impl InspectDocument {
    fn of(path: &Path, inspection: Inspection, reads: Option<ReadsDocument>) -> Self {
        let pointer = inspection.found.pointer().map(|pointer| PointerDocument {
            path: pointer.path.clone(),
            says: pointer.says.clone(),
            step: pointer.target_step,
            dangling: pointer.dangling,
        });
        let subdirectory = |run: RunBelow| SubdirectoryDocument {
            path: run.directory,
            framework: run.profile,
            newest_complete: run.newest.map(|step| step.path),
        };
        Self {
            pointer,
            conclusion: conclusion(&inspection),
            steps: inspection.steps.iter().map(StepDocument::of).collect(),
            path: inspection.directory.unwrap_or_else(|| path.to_owned()),
            framework: inspection.framework,
            why: inspection.why,
            temporary: inspection.found.temporary,
            subdirectories: inspection.below.into_iter().map(subdirectory).collect(),
            warnings: inspection.warnings,
            runs: StepvaultRun::all(path, &inspection.runs),
            reads,
        }
    }

    /// Returns the lines about runs of stepvault, and about what was read of a bucket.
    fn remarks(&self) -> impl Iterator<Item = String> {
        let reads = self.reads.iter().flat_map(ReadsDocument::lines);
        self.runs.iter().map(StepvaultRun::line).chain(reads)
    }
}

/// Returns the sentence about the step to resume from; `None` when there is none.
fn conclusion(inspection: &Inspection) -> Option<String> {
    let named = |entry: &InspectedStep| match entry.step.step {
        Some(number) => format!("step {number} ({})", entry.step.path),
        None => entry.step.path.clone(),
    };
    let newest = inspection.newest_valid()?;
    let sound = inspection.newest_sound().map(named);
    let sound = sound.map(|sound| format!("{sound} is the newest complete and sound step"));
    if newest.check.is_sound() == Some(true) {
        return sound;
    }
    let unknown =
        format!("{} is the newest complete step, and whether it is sound is unknown", named(newest));
    Some(sound.map_or_else(|| unknown.clone(), |sound| format!("{unknown}; {sound}")))
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
            deep: entry.deep.clone(),
        }
    }
}

fn deep_text(deep: &DeepCheck) -> String {
    let proved = format!("{} match their checksums", human::bytes(deep.checksummed_bytes));
    let unproved = deep.unproved_bytes.iter();
    let unproved = unproved.map(|(format, bytes)| format!("{} of {format}", human::bytes(*bytes))).join(", ");
    match (deep.checksummed_bytes, unproved.as_str()) {
        (_, "") => proved,
        (0, _) => format!("no checksum covers its data, which was only read: {unproved}"),
        _ => format!("{proved}; only read, as no checksum covers them: {unproved}"),
    }
}

impl Report for InspectDocument {
    fn human(&self) -> String {
        let head = format!("{}: {} ({})", self.path.display(), self.framework, self.why.join("; "));
        let mut lines = vec![head];
        if self.steps.is_empty() {
            lines.push("no step found".to_owned());
            for SubdirectoryDocument { path, framework, newest_complete } in &self.subdirectories {
                lines.push(match newest_complete {
                    Some(step) => format!("{path}: {framework}, {step} is its newest complete step"),
                    None => format!("{path}: {framework}, no complete step"),
                });
            }
            lines.extend(self.remarks());
            return lines.join("\n");
        }
        let yes = |is_so| if is_so { "yes" } else { "NO" };
        let rows = self.steps.iter().map(|step| {
            [
                step.step.map_or_else(|| "-".to_owned(), |number| number.to_string()),
                step.path.clone(),
                yes(step.complete).to_owned(),
                step.sound.map_or("unknown", yes).to_owned(),
                human::bytes(step.bytes),
                step.files.to_string(),
                step.ranks.map_or_else(String::new, |ranks| ranks.to_string()),
            ]
        });
        let headings = ["step", "path", "complete", "sound", "size", "files", "ranks"];
        lines.push(table::text(&headings, &[0, 4, 5, 6], rows));
        for StepDocument { path, reasons, .. } in &self.steps {
            lines.extend(reasons.iter().map(|reason| match reason.strip_prefix(path.as_str()) {
                // The reason already starts with a path inside the step.
                Some(rest) if rest.starts_with([':', '/']) => reason.clone(),
                _ => format!("{path}: {reason}"),
            }));
        }
        for StepDocument { path, deep, .. } in &self.steps {
            lines.extend(deep.as_ref().map(|deep| format!("{path}: {}", deep_text(deep))));
        }
        if let Some(PointerDocument { path, says, dangling, .. }) = &self.pointer
            && !says.is_empty()
        {
            let dangling = if *dangling { ", which does not exist" } else { "" };
            lines.push(format!("{path} says {says}{dangling}"));
        }
        lines.extend(self.warnings.iter().map(|warning| format!("warning: {warning}")));
        lines.extend(self.remarks());
        let newest = self.conclusion.as_deref();
        lines.push(newest.unwrap_or("no step is complete and sound").to_owned());
        lines.join("\n")
    }

    fn verdicts(&self) -> &'static [(&'static str, Color)] {
        &[("NO", Color::Red)]
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
            deep: None,
        };
        let document = InspectDocument {
            path: PathBuf::from("outputs"),
            framework: "hf-trainer".to_owned(),
            why: vec!["checkpoint-5/trainer_state.json".to_owned()],
            steps: vec![step(5, true, &[]), step(10, false, &["trainer_state.json does not exist yet"])],
            conclusion: Some("step 5 (checkpoint-5) is the newest complete and sound step".to_owned()),
            pointer: None,
            temporary: Vec::new(),
            subdirectories: Vec::new(),
            warnings: Vec::new(),
            runs: Vec::new(),
            reads: None,
        };
        let text = document.human();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "outputs: hf-trainer (checkpoint-5/trainer_state.json)");
        assert!(lines[3].contains("10  checkpoint-10  NO        yes    3.0 MiB      4      2"), "{text}");
        assert_eq!(lines[4], "checkpoint-10: trainer_state.json does not exist yet");
        assert_eq!(lines[5], "step 5 (checkpoint-5) is the newest complete and sound step");
    }
}
