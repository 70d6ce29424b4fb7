//! What a failure means for what comes next.

use stepvault_core::{Error, ErrorKind};

/// What a failed upload leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterUpload {
    /// Nothing of this run goes to this remote for a while.
    RemoteLater,
    /// This step waits a while; others go on.
    StepLater,
    /// Trying again would fail again.
    StepFailed,
}

/// Judges a failed upload.
pub(crate) fn after_upload(error: &Error) -> AfterUpload {
    match error.kind() {
        ErrorKind::Unreachable | ErrorKind::Denied => AfterUpload::RemoteLater,
        _ if error.is_transient() => AfterUpload::StepLater,
        ErrorKind::Conflict
        | ErrorKind::Refused
        | ErrorKind::SourceChanged
        | ErrorKind::Usage
        | ErrorKind::NewerFormat => AfterUpload::StepFailed,
        _ => AfterUpload::StepLater,
    }
}

/// What a failed take-over leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterStaging {
    /// It was still being written, or vanished: looked at again soon.
    Unfinished,
    /// The disk is full.
    NoSpace,
    /// An old save, or one that cannot be taken over as it is: left alone until it changes.
    LeftAlone,
    /// Something went wrong that may pass.
    Later,
}

/// Judges a failed take-over.
pub(crate) fn after_staging(error: &Error) -> AfterStaging {
    match error.kind() {
        ErrorKind::SourceChanged | ErrorKind::NotFound => AfterStaging::Unfinished,
        ErrorKind::NoSpace => AfterStaging::NoSpace,
        ErrorKind::Refused | ErrorKind::Usage => AfterStaging::LeftAlone,
        _ => AfterStaging::Later,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_pass_fails_a_step_for_good() {
        let of = |kind| after_upload(&Error::new(kind, "cannot upload"));
        assert_eq!(of(ErrorKind::Unreachable), AfterUpload::RemoteLater);
        assert_eq!(of(ErrorKind::Denied), AfterUpload::RemoteLater);
        for kind in [ErrorKind::Conflict, ErrorKind::Refused, ErrorKind::SourceChanged] {
            assert_eq!(of(kind), AfterUpload::StepFailed, "{kind:?}");
        }
        for kind in [
            ErrorKind::Failed,
            ErrorKind::Damaged,
            ErrorKind::NoSpace,
            ErrorKind::NotFound,
        ] {
            assert_eq!(of(kind), AfterUpload::StepLater, "{kind:?}");
        }
        let busy = Error::new(ErrorKind::Conflict, "cannot write").transient();
        assert_eq!(after_upload(&busy), AfterUpload::StepLater);
    }

    #[test]
    fn a_full_disk_and_an_unfinished_step_are_told_apart_from_what_is_left_alone() {
        let of = |kind| after_staging(&Error::new(kind, "cannot seal"));
        assert_eq!(of(ErrorKind::NoSpace), AfterStaging::NoSpace);
        assert_eq!(of(ErrorKind::SourceChanged), AfterStaging::Unfinished);
        assert_eq!(of(ErrorKind::NotFound), AfterStaging::Unfinished);
        assert_eq!(of(ErrorKind::Refused), AfterStaging::LeftAlone);
        assert_eq!(of(ErrorKind::Denied), AfterStaging::Later);
    }
}
