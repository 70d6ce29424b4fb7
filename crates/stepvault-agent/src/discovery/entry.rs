//! The state of one entry of a watched directory over time.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::Step;
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::content::{tree_is_linked, tree_matches_record};
use stepvault_formats::check::StepCheck;
use stepvault_formats::find::{FoundStep, QuietRule};
use stepvault_formats::not_checkpoint::is_in_clutter;
use stepvault_formats::warnings::lacks;
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::Tree;
use tokio::time::Instant;

use super::origin::Origin;
use super::quiet::not_quiet;
use crate::pause::{LONGEST, Pause};

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
    /// It is finished.
    Ready {
        fingerprint: Sha256Digest,
        files: FileStates,
        newest: Timestamp,
        bytes: u64,
    },
}

/// Since when an entry has been unchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sighting {
    pub(super) fingerprint: Sha256Digest,
    pub(super) since: Instant,
    pub(super) scans: u32,
}

/// A step that a profile has found.
pub(super) struct Candidate<'a> {
    pub(super) origin: &'a Origin,
    pub(super) step: &'a FoundStep,
    /// How long it must be unchanged.
    pub(super) quiet_time: Duration,
    /// The same, whatever proves it whole, if it should have been announced.
    pub(super) announced_within: Option<Duration>,
    /// Checks the structure of its files.
    pub(super) structure: &'a dyn Fn() -> StepCheck,
    /// Returns the files that all earlier steps have and it lacks, if nothing but its files proves it whole.
    pub(super) missing: &'a dyn Fn(&Tree) -> Vec<String>,
    /// How long it must be unchanged if it lacks some.
    pub(super) patience: Duration,
}

/// The files of a state of an entry by path, size and time, as hashes; what tools leave among them aside.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileStates(Arc<HashSet<u64>>);

impl FileStates {
    pub(super) fn of(tree: &Tree) -> Self {
        Self(Arc::new(Self::each(tree).collect()))
    }

    /// Whether a state has no other files than these.
    fn has_all_of(&self, tree: &Tree) -> bool {
        Self::each(tree).all(|state| self.0.contains(&state))
    }

    fn each(tree: &Tree) -> impl Iterator<Item = u64> {
        let files = tree
            .files
            .iter()
            .filter(|file| !is_in_clutter(file.path.as_str()));
        files.map(|file| Self::hash(file.path.as_str(), file.size_bytes, file.mtime))
    }

    fn hash(path: &str, size_bytes: u64, mtime: Timestamp) -> u64 {
        let mut hasher = DefaultHasher::new();
        (path, size_bytes, mtime).hash(&mut hasher);
        hasher.finish()
    }
}

/// A state of an entry that needs no more work.
#[derive(Debug)]
struct Handled {
    fingerprint: Sha256Digest,
    files: FileStates,
    /// As [`FoundStep::content`], if known.
    content: Option<u64>,
}

/// The stored state of an entry.
#[derive(Debug, Default)]
pub(super) struct Entry {
    sighting: Option<Sighting>,
    handled: Option<Handled>,
    /// Whether it was ever handled.
    was_handled: bool,
    /// The number that the content stated that was sealed last.
    last_number: Option<Step>,
    /// When it was last listed.
    surveyed: Option<Instant>,
    /// Whether it was compared with the steps in the vault.
    compared: bool,
    /// A fingerprint of it, and whether its formats prove that state whole.
    proved: Option<(Sha256Digest, bool)>,
    /// Its fingerprint when it was found damaged.
    broken: Option<Sha256Digest>,
    /// Why it was skipped, if that was reported.
    reported: Option<String>,
    pause: Pause,
    /// Why it is not sealed yet.
    trouble: Option<String>,
    /// Why it is not sealed although it is finished, as far as known.
    unsealed: Option<String>,
    /// Whether it has all its files, and nothing but silence is waited for.
    is_waiting: bool,
    /// What it lacks of the files that all earlier steps have.
    lacks: Option<String>,
}

impl Entry {
    /// Checks a step that a profile has found.
    pub(super) fn check(
        &mut self,
        candidate: &Candidate<'_>,
        now: Timestamp,
        sealed: &[SealedStep],
    ) -> EntryOutcome {
        let step = candidate.step;
        self.is_waiting = false;
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
                && let Err(error) = candidate.origin.scan()
            {
                return self.unreadable(&error);
            }
            return self.not_yet(step.reasons().join("; "), None);
        }
        let tree = match candidate.origin.scan() {
            Ok(tree) => tree,
            Err(error) => return self.unreadable(&error),
        };
        let as_found = tree.newest_mtime() == step.written_at
            && tree.data_bytes() == step.bytes
            && tree.files.len() as u64 == step.files;
        if !as_found {
            // The judgement applies to its state of a moment ago.
            self.sighting = None;
            return self.not_yet(
                "it was modified while it was checked".to_owned(),
                Some(CHANGING_PAUSE),
            );
        }
        let name = candidate.origin.name.as_str();
        if let Some(sight) = self.known_at_first(name, &tree, sealed, is_rewritten) {
            return sight;
        }
        if self.is_handled(&tree, step.content) {
            return EntryOutcome::NoAction;
        }
        let sighting = self.sighted(tree.fingerprint());
        if self.broken == Some(sighting.fingerprint) {
            return EntryOutcome::NoAction;
        }
        let quiet_time = match step.quiet_rule {
            QuietRule::Briefly
                if (!self.was_handled || is_rewritten) && self.is_proved(candidate, sighting.fingerprint) =>
            {
                Some(candidate.quiet_time.min(BRIEF_QUIET_TIME))
            }
            QuietRule::Always | QuietRule::Briefly => Some(candidate.quiet_time),
            QuietRule::OnceSealed => self.was_handled.then_some(candidate.quiet_time),
            QuietRule::Never => None,
        };
        let quiet_time = quiet_time.max(candidate.announced_within);
        if let Some(quiet_time) = quiet_time
            && let Some(not_yet) = not_quiet(quiet_time, tree.newest_mtime(), sighting, now)
        {
            self.is_waiting = true;
            return self.not_yet(not_yet.why, Some(not_yet.wait));
        }
        let missing = (candidate.missing)(&tree);
        if !missing.is_empty() {
            let lacks = self.lacks.insert(format!("it {}", lacks(&missing))).clone();
            let left = candidate.patience.saturating_sub(sighting.since.elapsed());
            if !left.is_zero() {
                self.is_waiting = true;
                return self.not_yet(lacks, Some(left));
            }
        }
        let reasons = (candidate.structure)().damage();
        if reasons.is_empty() {
            return self.ready(&tree, sighting);
        }
        self.broken = Some(sighting.fingerprint);
        self.trouble = None;
        let reason = format!(
            "its files are all there, but it is damaged: {}",
            reasons.join("; ")
        );
        self.unsealed = Some(reason.clone()).filter(|_| !self.was_handled);
        EntryOutcome::Skipped(reason)
    }

    /// Whether the formats of the files prove this state of the step whole. Checked once for each state.
    fn is_proved(&mut self, candidate: &Candidate<'_>, fingerprint: Sha256Digest) -> bool {
        if let Some((_, is_proved)) = self.proved.filter(|(known, _)| *known == fingerprint) {
            return is_proved;
        }
        let is_proved = (candidate.structure)().is_proved();
        self.proved = Some((fingerprint, is_proved));
        is_proved
    }

    fn ready(&mut self, tree: &Tree, sighting: Sighting) -> EntryOutcome {
        let why = self
            .unsealed
            .take()
            .unwrap_or_else(|| "it is finished, but there was no time left to seal it".to_owned());
        self.trouble = Some(why.clone());
        self.unsealed = Some(why);
        EntryOutcome::Ready {
            fingerprint: sighting.fingerprint,
            files: FileStates::of(tree),
            newest: tree.newest_mtime(),
            bytes: tree.data_bytes(),
        }
    }

    fn not_yet(&mut self, why: String, wait: Option<Duration>) -> EntryOutcome {
        self.trouble = Some(why);
        self.unsealed = None;
        EntryOutcome::Later(wait.map(|wait| Instant::now() + wait))
    }

    /// Marks it as skipped; returns the cause if it is new.
    pub(super) fn skip(&mut self, reason: String) -> Option<String> {
        self.trouble = None;
        self.unsealed = None;
        if self.reported.as_ref() == Some(&reason) {
            return None;
        }
        self.reported = Some(reason.clone());
        Some(reason)
    }

    /// Whether it was never compared with the vault.
    pub(super) fn is_new(&self) -> bool {
        !self.compared
    }

    /// Whether a state of it was ever handled.
    pub(super) fn was_handled(&self) -> bool {
        self.was_handled
    }

    /// Returns its fingerprint when it was handled.
    pub(super) fn handled_as(&self) -> Option<Sha256Digest> {
        self.handled.as_ref().map(|handled| handled.fingerprint)
    }

    /// Whether it was handled, and listed recently.
    pub(super) fn is_settled(&self) -> bool {
        self.handled.is_some()
            && self
                .surveyed
                .is_some_and(|time| time.elapsed() < HANDLED_SCAN_INTERVAL)
    }

    /// Returns a new entry that was listed just now.
    pub(super) fn just_surveyed() -> Self {
        Self {
            surveyed: Some(Instant::now()),
            ..Self::default()
        }
    }

    /// Records that it was listed just now.
    pub(super) fn surveyed(&mut self) {
        self.surveyed = Some(Instant::now());
    }

    fn sighted(&mut self, fingerprint: Sha256Digest) -> Sighting {
        let sighting = match self.sighting {
            Some(before) if before.fingerprint == fingerprint => Sighting {
                scans: before.scans.saturating_add(1),
                ..before
            },
            _ => Sighting {
                fingerprint,
                since: Instant::now(),
                scans: 1,
            },
        };
        self.sighting = Some(sighting);
        sighting
    }

    fn unreadable(&mut self, error: &stepvault_core::Error) -> EntryOutcome {
        self.sighting = None;
        let text = error.text_with_hint();
        let news = self.trouble.as_ref() != Some(&text);
        self.trouble = Some(text.clone());
        // It may be finished, which cannot be determined.
        self.unsealed = Some(text.clone());
        match error.kind() {
            // It is being modified or deleted at this moment.
            ErrorKind::NotFound | ErrorKind::SourceChanged => {
                self.unsealed = None;
                EntryOutcome::Later(Some(Instant::now() + CHANGING_PAUSE))
            }
            ErrorKind::Usage if news => EntryOutcome::Skipped(text),
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
                self.handled(tree.fingerprint(), FileStates::of(tree));
                return Some(EntryOutcome::NoAction);
            }
            let sealed = step.record().files.iter();
            let sealed = sealed.map(|file| FileStates::hash(file.path.as_str(), file.size_bytes, file.mtime));
            let sealed = FileStates(Arc::new(sealed.collect()));
            if !is_rewritten && sealed.has_all_of(tree) {
                had_all = Some(step.id());
            }
        }
        let id = had_all?;
        self.handled(tree.fingerprint(), FileStates::of(tree));
        Some(EntryOutcome::Skipped(format!(
            "its files differ from those sealed as {id}, and none of them is newer: a process is deleting it"
        )))
    }

    /// Whether it was handled in its current state, or has only lost files since.
    ///
    /// A trainer that deletes an old step file by file, or leaves some of its files behind, has not saved it again.
    fn is_handled(&mut self, tree: &Tree, content: u64) -> bool {
        let Some(handled) = &mut self.handled else {
            return false;
        };
        let is_it = handled.files.has_all_of(tree);
        if is_it {
            // What was deleted and comes back is new.
            handled.fingerprint = tree.fingerprint();
            handled.files = FileStates::of(tree);
            handled.content = Some(content);
        } else {
            self.handled = None;
        }
        is_it
    }

    pub(super) fn handled(&mut self, fingerprint: Sha256Digest, files: FileStates) {
        self.handled = Some(Handled {
            fingerprint,
            files,
            content: None,
        });
        self.was_handled = true;
        self.sighting = None;
        self.trouble = None;
        self.unsealed = None;
        self.pause.clear();
    }

    /// Records the number that the content stated that was sealed now.
    pub(super) fn sealed_as(&mut self, number: Option<Step>) {
        self.last_number = number;
    }

    /// Whether the content that was sealed last stated its number, and this one does not.
    pub(super) fn has_lost_its_number(&self, number: Option<Step>) -> bool {
        self.last_number.is_some() && number.is_none()
    }

    /// Records that it cannot be sealed as it is, and ignores it until it changes.
    pub(super) fn skipped(&mut self, fingerprint: Sha256Digest, files: FileStates, reason: String) {
        self.handled(fingerprint, files);
        self.unsealed = Some(reason);
    }

    pub(super) fn failed(&mut self, longest: Duration, reason: String) {
        self.pause.failed(longest, None);
        self.sighting = None;
        self.unsealed = Some(reason.clone());
        self.trouble = Some(reason);
    }

    /// Ends its pause.
    pub(super) fn try_now(&mut self) {
        self.pause.clear();
    }

    pub(super) fn next_try(&self) -> Option<Instant> {
        self.pause.until()
    }

    /// Returns why it is not sealed although it is finished, as far as known; `None` for any other entry.
    pub(super) fn unsealed(&self) -> Option<&str> {
        self.unsealed.as_deref()
    }

    /// Whether it has all its files, no earlier state of it was sealed, and nothing but silence is waited for.
    pub(super) fn is_waiting_at_first(&self) -> bool {
        self.is_waiting && !self.was_handled && self.lacks.is_none()
    }

    /// Records why its links are not sealed although the trainer deletes it.
    pub(super) fn not_whole(&mut self, reason: String) {
        self.trouble = Some(reason);
    }

    /// Returns what it lacks of the files that all earlier steps have.
    pub(super) fn lacks(&self) -> Option<&str> {
        self.lacks.as_deref()
    }

    /// Returns why it is not sealed yet if it has all its files and nothing but silence is waited for.
    pub(super) fn waiting(&self) -> Option<&str> {
        self.trouble.as_deref().filter(|_| self.is_waiting)
    }

    /// Returns why it is not sealed yet; `None` when it was handled.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}
