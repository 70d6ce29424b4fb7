//! Decides what happens after a failure.

use std::time::Duration;

use stepvault_core::{Error, ErrorKind};

use crate::pause::{LONGEST, LONGEST_FOR_OPERATOR};

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
pub(crate) fn longest_pause(error: &Error) -> Duration {
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
