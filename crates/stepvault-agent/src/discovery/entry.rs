//! The state of one entry of a watched directory over time.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::path::Path;
use std::time::Duration;

use stepvault_core::{ErrorKind, RelativePath, Sha256Digest, Step, Timestamp};
use stepvault_engine::content::{tree_is_linked, tree_matches_record};
use stepvault_formats::check::{StepCheck, check_extent};
use stepvault_formats::find::{Extent, Found, FoundStep, QuietRule};
use stepvault_formats::not_checkpoint::is_in_clutter;
use stepvault_formats::profile::Profile;
use stepvault_formats::tree::Tree as SurveyTree;
use stepvault_formats::warnings::lacks;
use stepvault_local::survey::SurveyFiles;
use stepvault_local::{Checkpoint, SealedStep, Tree};
use tokio::time::Instant;

use super::missing_files::SealedFiles;
use super::quiet::{QuietTimes, Sighting, not_quiet};
use crate::pause::{LONGEST, Pause};

/// Why a finished step is not sealed between the scan that found it finished and the next one.
pub(crate) const WAITS_FOR_SCAN: &str = "it is finished, and waits for the next scan";

/// How often a handled entry whose own directory is unchanged is scanned again.
const HANDLED_SCAN_INTERVAL: Duration = Duration::from_mins(1);
/// How long a step must be unchanged whose files are proved whole by their formats.
const BRIEF_QUIET_TIME: Duration = Duration::from_secs(2);
/// How soon an entry that changed during its scan is scanned again.
const CHANGING_PAUSE: Duration = Duration::from_secs(1);

/// The result of checking an entry.
#[derive(Debug)]
pub(super) enum EntryOutcome {
    /// Nothing to do.
    NoAction,
    /// Not finished; the latest time of the next check, if known.
    Later(Option<Instant>),
    /// It is skipped, with the cause.
    Skipped(String),
    /// It is finished, with these files.
    Ready(Tree),
}

/// What one scan has found; its entries are checked against it.
pub(super) struct ScanFacts<'a> {
    pub(super) directory: &'a Path,
    pub(super) profile: &'a Profile,
    pub(super) survey: &'a SurveyTree,
    pub(super) files: &'a SurveyFiles,
    pub(super) found: &'a Found,
    pub(super) extent: Extent,
    pub(super) quiet: QuietTimes,
    pub(super) now: Timestamp,
    /// The steps in the vault, if an entry is new.
    pub(super) sealed: &'a [SealedStep],
    pub(super) sealed_files: &'a SealedFiles,
}

impl ScanFacts<'_> {
    /// Checks the structure of a step's files.
    fn structure(&self, step: &FoundStep) -> StepCheck {
        match self.profile.names {
            Some(_) => StepCheck::default(),
            None => check_extent(self.extent, step, self.survey, self.files),
        }
    }

    /// Returns the files that all earlier steps have and this one lacks, if nothing but its files proves it whole.
    fn missing(&self, step: &FoundStep, checkpoint: &Checkpoint, tree: &Tree) -> Vec<String> {
        match (self.found.missing.get(&step.path), step.step) {
            (Some(missing), Some(number)) => {
                self.sealed_files.missing(checkpoint, number, tree, missing.as_ref())
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the files of a state of an entry by path, size and time, as hashes; what tools leave among them aside.
fn file_states(tree: &Tree) -> impl Iterator<Item = u64> {
    let files = tree.files.iter().filter(|file| !is_in_clutter(file.path.as_str()));
    files.map(|file| file_state(&file.path, file.size_bytes, file.mtime))
}

fn file_state(path: &RelativePath, size_bytes: u64, mtime: Timestamp) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((path, size_bytes, mtime))
}

/// A state of an entry that needs no more work.
#[derive(Debug)]
struct Handled {
    fingerprint: Sha256Digest,
    /// By [`file_states`].
    files: HashSet<u64>,
    /// As [`FoundStep::content`], if known.
    content: Option<u64>,
}

impl Handled {
    fn of(tree: &Tree, content: Option<u64>) -> Self {
        Self { fingerprint: tree.fingerprint(), files: file_states(tree).collect(), content }
    }
}

/// Whether the files are those of the step when it was found.
pub(super) fn is_as_found(tree: &Tree, step: &FoundStep) -> bool {
    tree.newest_mtime() == step.written_at
        && tree.data_bytes() == step.bytes
        && tree.files.len() as u64 == step.files
}

/// What keeps an entry from being sealed.
#[derive(Debug, Default)]
pub(super) enum EntryState {
    /// Nothing: it was not checked yet, was handled, or is skipped.
    #[default]
    Settled,
    /// It is not finished, with the cause.
    Unfinished(String),
    /// It has all its files, and nothing but silence is waited for.
    Waiting(String),
    /// It is finished, as far as known, and is tried again.
    Unsealed(String),
    /// It is finished, and cannot be sealed as it is: it is ignored until it changes.
    LeftAlone(String),
}

/// What the files of an entry say of one state of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// Their formats prove it whole.
    Proved,
    /// Nothing proves it whole or damaged.
    Plausible,
    Damaged,
}

/// The stored state of an entry.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) state: EntryState,
    sighting: Option<Sighting>,
    handled: Option<Handled>,
    /// Whether it was ever handled.
    pub(super) was_handled: bool,
    /// The number that the content stated that was sealed last.
    pub(super) last_number: Option<Step>,
    /// When it was last listed.
    pub(super) surveyed: Option<Instant>,
    /// Whether it was compared with the steps in the vault.
    pub(super) compared: bool,
    /// A fingerprint of it, and what its files say of that state.
    judged: Option<(Sha256Digest, Judgement)>,
    /// Why it was skipped, if that was reported.
    reported: Option<String>,
    pub(super) pause: Pause,
    /// What it lacks of the files that all earlier steps have.
    lacks: Option<String>,
}

impl Entry {
    /// Checks a step that a profile has found.
    pub(super) fn check(
        &mut self,
        facts: &ScanFacts<'_>,
        step: &FoundStep,
        checkpoint: &Checkpoint,
    ) -> EntryOutcome {
        self.lacks = None;
        if self.pause.until().is_some() {
            return EntryOutcome::NoAction;
        }
        // Any other file at a path that is rewritten is another step, whatever its time is.
        let is_rewritten = step.rewritten && step.files == step.members.len() as u64;
        let handled = self.handled.as_ref();
        if handled.is_some_and(|handled| handled.content == Some(step.content)) {
            return EntryOutcome::NoAction;
        }
        if !step.is_complete() {
            self.handled = None;
            self.sighting = None;
            // A directory that cannot be read seems to be empty.
            if step.files == 0
                && let Err(error) = checkpoint.scan()
            {
                return self.unreadable(&error);
            }
            return self.later(EntryState::Unfinished(step.reasons().join("; ")), None);
        }
        let tree = match checkpoint.scan() {
            Ok(tree) => tree,
            Err(error) => return self.unreadable(&error),
        };
        if !is_as_found(&tree, step) {
            // The judgement applies to its state of a moment ago.
            self.sighting = None;
            let why = "it was modified while it was checked".to_owned();
            return self.later(EntryState::Unfinished(why), Some(CHANGING_PAUSE));
        }
        if let Some(outcome) = self.known_at_first(&checkpoint.name, &tree, facts.sealed, is_rewritten) {
            return outcome;
        }
        if self.is_handled(&tree, step.content) {
            return EntryOutcome::NoAction;
        }
        let sighting = Sighting::again(self.sighting, tree.fingerprint());
        self.sighting = Some(sighting);
        if self.judged == Some((sighting.fingerprint, Judgement::Damaged)) {
            return EntryOutcome::NoAction;
        }
        let may_be_brief = !self.was_handled || is_rewritten;
        let is_proved =
            may_be_brief && step.quiet_rule() == QuietRule::Briefly && self.is_proved(facts, step, sighting);
        if let Some(quiet_time) = self.quiet_time(facts, step, is_proved)
            && let Some(not_yet) = not_quiet(quiet_time, tree.newest_mtime(), sighting, facts.now)
        {
            return self.later(EntryState::Waiting(not_yet.why), Some(not_yet.wait));
        }
        let missing = facts.missing(step, checkpoint, &tree);
        if !missing.is_empty() {
            let lacks = self.lacks.insert(format!("it {}", lacks(&missing))).clone();
            let left = facts.quiet.patience().saturating_sub(sighting.since.elapsed());
            if !left.is_zero() {
                return self.later(EntryState::Waiting(lacks), Some(left));
            }
        }
        let reasons = facts.structure(step).damage();
        if reasons.is_empty() {
            return self.ready(tree);
        }
        self.judged = Some((sighting.fingerprint, Judgement::Damaged));
        let reason = format!("its files are all there, but it is damaged: {}", reasons.join("; "));
        self.state =
            if self.was_handled { EntryState::Settled } else { EntryState::LeftAlone(reason.clone()) };
        EntryOutcome::Skipped(reason)
    }

    /// Returns how long the step must be unchanged; `None` if it need not be.
    fn quiet_time(&self, facts: &ScanFacts<'_>, step: &FoundStep, is_proved: bool) -> Option<Duration> {
        let quiet_time = facts.quiet.of_steps;
        let own = match step.quiet_rule() {
            QuietRule::Briefly if is_proved => Some(quiet_time.min(BRIEF_QUIET_TIME)),
            QuietRule::Always | QuietRule::Briefly => Some(quiet_time),
            QuietRule::OnceSealed => self.was_handled.then_some(quiet_time),
            QuietRule::Never => None,
        };
        own.max(facts.quiet.announced_within)
    }

    /// Whether the formats of the files prove this state of the step whole. Checked once for each state.
    fn is_proved(&mut self, facts: &ScanFacts<'_>, step: &FoundStep, sighting: Sighting) -> bool {
        if self.judged.is_none_or(|(state, _)| state != sighting.fingerprint) {
            let is_proved = facts.structure(step).is_proved();
            let judgement = if is_proved { Judgement::Proved } else { Judgement::Plausible };
            self.judged = Some((sighting.fingerprint, judgement));
        }
        self.judged == Some((sighting.fingerprint, Judgement::Proved))
    }

    fn ready(&mut self, tree: Tree) -> EntryOutcome {
        let why = match std::mem::take(&mut self.state) {
            EntryState::Unsealed(why) | EntryState::LeftAlone(why) => why,
            _ => WAITS_FOR_SCAN.to_owned(),
        };
        self.state = EntryState::Unsealed(why);
        EntryOutcome::Ready(tree)
    }

    fn later(&mut self, state: EntryState, wait: Option<Duration>) -> EntryOutcome {
        self.state = state;
        EntryOutcome::Later(wait.map(|wait| Instant::now() + wait))
    }

    /// Marks it as skipped; returns the cause if it is new.
    pub(super) fn skip(&mut self, reason: String) -> Option<String> {
        self.state = EntryState::Settled;
        if self.reported.as_ref() == Some(&reason) {
            return None;
        }
        self.reported = Some(reason.clone());
        Some(reason)
    }

    /// Returns its fingerprint when it was handled.
    pub(super) fn handled_as(&self) -> Option<Sha256Digest> {
        self.handled.as_ref().map(|handled| handled.fingerprint)
    }

    /// Whether it was handled, and listed recently.
    pub(super) fn is_settled(&self) -> bool {
        self.handled.is_some() && self.surveyed.is_some_and(|time| time.elapsed() < HANDLED_SCAN_INTERVAL)
    }

    /// Returns a new entry that was listed just now.
    pub(super) fn just_surveyed() -> Self {
        Self { surveyed: Some(Instant::now()), ..Self::default() }
    }

    fn unreadable(&mut self, error: &stepvault_core::Error) -> EntryOutcome {
        self.sighting = None;
        let text = error.text_with_hint();
        let is_news = self.trouble() != Some(&text);
        // It is being modified or deleted at this moment.
        if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::SourceChanged) {
            return self.later(EntryState::Unfinished(text), Some(CHANGING_PAUSE));
        }
        // It may be finished, which cannot be determined.
        self.state = EntryState::Unsealed(text.clone());
        match error.kind() {
            ErrorKind::Usage if is_news => EntryOutcome::Skipped(text),
            ErrorKind::Usage => EntryOutcome::NoAction,
            _ => {
                self.pause.failed(LONGEST, None);
                EntryOutcome::Later(self.pause.until())
            }
        }
    }

    /// Compares an entry that is seen for the first time with the steps in the vault.
    fn known_at_first(
        &mut self,
        name: &str,
        tree: &Tree,
        sealed: &[SealedStep],
        is_rewritten: bool,
    ) -> Option<EntryOutcome> {
        if std::mem::replace(&mut self.compared, true) {
            return None;
        }
        let mut same_name = sealed.iter().filter(|step| step.name() == name).peekable();
        same_name.peek()?;
        let mut had_all = None;
        for step in same_name {
            if tree_matches_record(tree, step.record()) {
                if !tree_is_linked(tree, step.record()) {
                    // Only the bytes tell whether the sealed files are still there.
                    return None;
                }
                self.handled(tree);
                return Some(EntryOutcome::NoAction);
            }
            let sealed = step.record().files.iter();
            let sealed: HashSet<u64> =
                sealed.map(|file| file_state(&file.path, file.size_bytes, file.mtime)).collect();
            if !is_rewritten && file_states(tree).all(|state| sealed.contains(&state)) {
                had_all = Some(step.id());
            }
        }
        let id = had_all?;
        self.handled(tree);
        Some(EntryOutcome::Skipped(format!(
            "its files differ from those sealed as {id}, and none of them is newer: a process is deleting it"
        )))
    }

    /// Whether it was handled in its current state, or has only lost files since.
    ///
    /// A trainer that deletes an old step file by file, or leaves some of its files behind, has not saved it again.
    fn is_handled(&mut self, tree: &Tree, content: u64) -> bool {
        let handled = self.handled.take();
        let is_it = handled.is_some_and(|old| file_states(tree).all(|state| old.files.contains(&state)));
        // What was deleted and comes back is new.
        self.handled = is_it.then(|| Handled::of(tree, Some(content)));
        is_it
    }

    /// Records that this state of it needs no more work.
    pub(super) fn handled(&mut self, tree: &Tree) {
        self.handled = Some(Handled::of(tree, None));
        self.was_handled = true;
        self.sighting = None;
        self.state = EntryState::Settled;
        self.pause.clear();
    }

    /// Records that it cannot be sealed as it is, and ignores it until it changes.
    pub(super) fn skipped(&mut self, tree: &Tree, reason: String) {
        self.handled(tree);
        self.state = EntryState::LeftAlone(reason);
    }

    pub(super) fn failed(&mut self, longest: Duration, reason: String) {
        self.pause.failed(longest, None);
        self.sighting = None;
        self.state = EntryState::Unsealed(reason);
    }

    /// Returns why it is not sealed although it is finished, as far as known; `None` for any other entry.
    pub(super) fn unsealed(&self) -> Option<&str> {
        match &self.state {
            EntryState::Unsealed(why) | EntryState::LeftAlone(why) => Some(why),
            _ => None,
        }
    }

    /// Returns why it is not sealed yet if it has all its files and nothing but silence is waited for.
    pub(super) fn waiting(&self) -> Option<&str> {
        match &self.state {
            EntryState::Waiting(why) => Some(why),
            _ => None,
        }
    }

    /// Returns why it is not sealed yet; `None` when it was handled.
    pub(super) fn trouble(&self) -> Option<&str> {
        match &self.state {
            EntryState::Unfinished(why) | EntryState::Waiting(why) | EntryState::Unsealed(why) => Some(why),
            EntryState::Settled | EntryState::LeftAlone(_) => None,
        }
    }

    /// Whether it has all its files, no earlier state of it was sealed, and nothing but silence is waited for.
    pub(super) fn is_waiting_at_first(&self) -> bool {
        self.waiting().is_some() && !self.was_handled && self.lacks.is_none()
    }

    /// Returns a warning of a step that lacks files, or of how long it is waited for.
    pub(super) fn warning(&self, outcome: &EntryOutcome, path: &Path, patience: Duration) -> Option<String> {
        let (lacks, shown) = (self.lacks.as_ref()?, path.display());
        Some(match outcome {
            EntryOutcome::Later(_) => format!(
                "{shown} is not sealed yet: {lacks}, so its save may have been cut off; it is sealed if it stays unchanged \
                 for {} s, or when the agent ends; if it is whole, run 'stepvault announce {shown}'",
                patience.as_secs()
            ),
            EntryOutcome::Ready(_) => format!(
                "{shown} is sealed although {lacks}: nothing proves that its save was cut off; keep the step before it \
                 until you know that this one can be resumed from"
            ),
            _ => return None,
        })
    }
}
