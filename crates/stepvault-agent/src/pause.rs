//! Growing pauses between tries, and what a failure leads to.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use stepvault_core::{Error, ErrorKind};
use tokio::time::Instant;

/// Counts consecutive failures, and the time of the next try.
#[derive(Debug, Clone, Default)]
pub struct Pause {
    /// The number of consecutive failures.
    pub(crate) failures: u32,
    until: Option<Instant>,
}

/// Maximum pause after a failure that may be transient.
pub const LONGEST: Duration = Duration::from_mins(1);
/// Maximum pause after a failure that needs an operator, or is unlikely to be transient.
pub(crate) const LONGEST_FOR_OPERATOR: Duration = Duration::from_mins(5);
/// Maximum pause after a failure while the service is stopping.
pub(crate) const LONGEST_WHEN_DRAINING: Duration = Duration::from_secs(2);
const FIRST: Duration = Duration::from_secs(1);

impl Pause {
    /// Counts a failure: the pause doubles from one second up to `longest`, plus or minus a quarter, and is at least as
    /// long as the server requested.
    pub fn failed(&mut self, longest: Duration, asked_for: Option<Duration>) {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures = self.failures.saturating_add(1);
        let wait = if doubled > FIRST { doubled.mul_f64(0.75 + jitter() / 2.0) } else { doubled };
        self.until = Some(Instant::now() + wait.max(asked_for.unwrap_or_default()));
    }

    /// Forgets all failures.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns when it may be retried; `None` for immediately.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until.filter(|until| *until > Instant::now())
    }

    /// Waits until it may be retried.
    pub async fn wait(&self) {
        if self.until.is_some() {
            sleep_until(self.until).await;
        }
    }
}

/// Returns the earlier of two times, either of which may be unset.
pub(crate) fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Waits until this time; forever if there is none.
pub(crate) async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns a number from 0 to 1 that differs between nodes that failed at the same moment.
fn jitter() -> f64 {
    let random = RandomState::new().hash_one(0_u8);
    f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

/// What a failed upload blocks. Nothing is given up permanently: the step is retried for as long as it is in the vault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterUpload {
    /// Uploads of this run to this remote pause.
    RemoteLater,
    /// This step pauses; others continue.
    StepLater,
}

/// Classifies a failed upload; `opening` if the remote itself could not be opened.
pub(crate) fn after_upload(error: &Error, opening: bool) -> AfterUpload {
    match error.kind() {
        ErrorKind::Unreachable | ErrorKind::Denied => AfterUpload::RemoteLater,
        // The vault's disk: this says nothing about the remote.
        ErrorKind::NoSpace => AfterUpload::StepLater,
        _ if opening => AfterUpload::RemoteLater,
        _ => AfterUpload::StepLater,
    }
}

/// Returns the maximum pause before the next try: short for transient faults, minutes for others.
pub fn longest_pause(error: &Error) -> Duration {
    let may_pass = error.is_transient() || error.kind() == ErrorKind::NoSpace;
    if may_pass && !error.needs_operator() { LONGEST } else { LONGEST_FOR_OPERATOR }
}

/// What a failed seal leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFailedSeal {
    /// It was still being written, or vanished: checked again soon.
    Unfinished,
    /// The disk is full.
    NoSpace,
    /// An old checkpoint, or one that cannot be sealed as it is: ignored until it changes.
    LeftAlone,
    /// A fault that may be transient.
    Later,
}

/// Classifies a failed seal.
pub(crate) fn after_failed_seal(error: &Error) -> AfterFailedSeal {
    match error.kind() {
        ErrorKind::SourceChanged | ErrorKind::NotFound => AfterFailedSeal::Unfinished,
        ErrorKind::NoSpace => AfterFailedSeal::NoSpace,
        ErrorKind::Usage => AfterFailedSeal::LeftAlone,
        ErrorKind::Refused if error.is_pruned() => AfterFailedSeal::LeftAlone,
        _ => AfterFailedSeal::Later,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_heed_the_other_side() {
        let wait_of = |pause: &Pause| pause.until().map(|until| until - Instant::now()).unwrap_or_default();
        let mut pause = Pause::default();
        assert_eq!(pause.until(), None);
        pause.failed(LONGEST, None);
        assert!(wait_of(&pause) <= FIRST && wait_of(&pause) > FIRST / 2);
        for _ in 0..40 {
            pause.failed(LONGEST, None);
        }
        let wait = wait_of(&pause);
        assert!(wait >= LONGEST.mul_f64(0.7) && wait <= LONGEST.mul_f64(1.25), "{wait:?}");
        pause.failed(LONGEST, Some(Duration::from_mins(10)));
        assert!(wait_of(&pause) > Duration::from_secs(590));
        assert_eq!(pause.failures, 42);
        pause.clear();
        assert_eq!((pause.failures, pause.until()), (0, None));
    }

    #[test]
    fn what_concerns_the_remote_holds_up_all_of_its_steps_and_what_needs_a_person_waits_longer() {
        let of = |kind| Error::new(kind, "cannot upload");
        for (kind, opening, after, longest) in [
            (ErrorKind::Unreachable, false, AfterUpload::RemoteLater, LONGEST),
            (ErrorKind::Denied, false, AfterUpload::RemoteLater, LONGEST_FOR_OPERATOR),
            (ErrorKind::Usage, true, AfterUpload::RemoteLater, LONGEST_FOR_OPERATOR),
            (ErrorKind::Usage, false, AfterUpload::StepLater, LONGEST_FOR_OPERATOR),
            (ErrorKind::Refused, true, AfterUpload::RemoteLater, LONGEST_FOR_OPERATOR),
            (ErrorKind::Conflict, false, AfterUpload::StepLater, LONGEST_FOR_OPERATOR),
            (ErrorKind::SourceChanged, false, AfterUpload::StepLater, LONGEST_FOR_OPERATOR),
            // Each try may read back the whole step.
            (ErrorKind::Damaged, false, AfterUpload::StepLater, LONGEST_FOR_OPERATOR),
            (ErrorKind::NoSpace, true, AfterUpload::StepLater, LONGEST),
        ] {
            let error = of(kind);
            assert_eq!(after_upload(&error, opening), after, "{kind:?}");
            assert_eq!(longest_pause(&error), longest, "{kind:?}");
        }
        assert_eq!(longest_pause(&of(ErrorKind::Conflict).transient()), LONGEST);
        let certificate = of(ErrorKind::Unreachable).for_operator();
        assert_eq!(longest_pause(&certificate), LONGEST_FOR_OPERATOR);
    }

    #[test]
    fn a_full_disk_and_an_unfinished_step_are_told_apart_from_what_is_left_alone() {
        let of = |kind| after_failed_seal(&Error::new(kind, "cannot seal"));
        assert_eq!(of(ErrorKind::NoSpace), AfterFailedSeal::NoSpace);
        assert_eq!(of(ErrorKind::SourceChanged), AfterFailedSeal::Unfinished);
        assert_eq!(of(ErrorKind::NotFound), AfterFailedSeal::Unfinished);
        let removed = Error::new(ErrorKind::Refused, "cannot seal").pruned();
        assert_eq!(after_failed_seal(&removed), AfterFailedSeal::LeftAlone);
        // A vault that others could replace, for example: the step is on no tier.
        assert_eq!(of(ErrorKind::Refused), AfterFailedSeal::Later);
        assert_eq!(of(ErrorKind::Denied), AfterFailedSeal::Later);
    }
}
