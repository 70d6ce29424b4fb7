//! Exit codes: a stable interface for scripts that call stepvault.

use stepvault_core::{Error, ErrorKind};

/// The exit code of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ExitCode {
    /// Done.
    Done,
    /// Failed.
    Failed,
    /// The command line or the configuration is invalid.
    Usage,
    /// Partly done: some tiers have the result, others do not.
    Partly,
    /// No such checkpoint.
    NotFound,
    /// Checkpoints exist, but none is valid.
    NoneValid,
    /// A tier cannot be reached in time.
    Unreachable,
    /// Another process holds the lock or the lease.
    Held,
    /// A preflight check found a fault that blocks the operation.
    Preflight,
    /// An object is in an archive and has to be requested first.
    Archived,
    /// Interrupted by a signal.
    Interrupted,
    /// The exit code of the trainer that `run` started.
    Trainer(u8),
}

impl ExitCode {
    /// Every code with its meaning, for the help and the manual pages.
    pub(crate) const ALL: [(Self, &str); 11] = [
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Usage, "usage or configuration"),
        (Self::Partly, "partly done"),
        (Self::NotFound, "no such checkpoint"),
        (Self::NoneValid, "checkpoints exist, but none is valid"),
        (Self::Unreachable, "a tier cannot be reached in time"),
        (Self::Held, "another process holds the lock or lease"),
        (Self::Preflight, "preflight found a blocking fault"),
        (Self::Archived, "objects are in an archive"),
        (Self::Interrupted, "interrupted"),
    ];

    /// Returns the number that the shell sees.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Partly => 3,
            Self::NotFound => 10,
            Self::NoneValid => 11,
            Self::Unreachable => 12,
            Self::Held => 13,
            Self::Preflight => 14,
            Self::Archived => 15,
            Self::Interrupted => 130,
            Self::Trainer(code) => code,
        }
    }

    /// Returns the code for an operation on several tiers, from one result per tier: `Done` when all succeeded,
    /// `Partly` when some did. When none did: `Unreachable` if every tier was unreachable, `Usage` if every tier is
    /// configured wrongly (its bucket does not exist), else `Failed`.
    pub(crate) fn of_tiers<'a, T>(results: impl IntoIterator<Item = Result<T, &'a Error>>) -> Self {
        let mut done = 0_usize;
        let mut failures = Vec::new();
        for result in results {
            match result {
                Ok(_) => done += 1,
                Err(error) => failures.push(error.kind()),
            }
        }
        let are_all = |kind| failures.iter().all(|failure| *failure == kind);
        match done {
            _ if failures.is_empty() => Self::Done,
            1.. => Self::Partly,
            0 if are_all(ErrorKind::Unreachable) => Self::Unreachable,
            0 if are_all(ErrorKind::Usage) => Self::Usage,
            0 => Self::Failed,
        }
    }

    /// Returns the code as [`of_tiers`](Self::of_tiers) does. With a single tier, the kind of its error is more specific
    /// than `Failed`.
    pub(crate) fn of_any_tiers<Tier, T>(results: &[(Tier, Result<T, Error>)]) -> Self {
        match results {
            [(_, Err(error))] => Self::from(error.kind()),
            several => Self::of_tiers(several.iter().map(|(_, result)| result.as_ref())),
        }
    }
}

impl From<ErrorKind> for ExitCode {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Usage => Self::Usage,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::NoneValid => Self::NoneValid,
            ErrorKind::Unreachable => Self::Unreachable,
            ErrorKind::Held => Self::Held,
            ErrorKind::Archived => Self::Archived,
            ErrorKind::Interrupted => Self::Interrupted,
            // The text and `error.kind` in the JSON document distinguish these.
            _ => Self::Failed,
        }
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kinds: &[Option<ErrorKind>]) -> ExitCode {
        let errors: Vec<Option<Error>> =
            kinds.iter().map(|kind| Some(Error::new((*kind)?, "cannot"))).collect();
        ExitCode::of_tiers(errors.iter().map(|error| error.as_ref().map_or(Ok(()), Err)))
    }

    #[test]
    fn numbers_are_the_published_ones() {
        let numbers: Vec<u8> = ExitCode::ALL.iter().map(|(code, _)| code.number()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 130]);
    }

    #[test]
    fn every_kind_has_its_code() {
        for (kind, number) in [
            (ErrorKind::Failed, 1),
            (ErrorKind::Usage, 2),
            (ErrorKind::NotFound, 10),
            (ErrorKind::NoneValid, 11),
            (ErrorKind::Unreachable, 12),
            (ErrorKind::Held, 13),
            (ErrorKind::Archived, 15),
            (ErrorKind::Damaged, 1),
            (ErrorKind::Conflict, 1),
            (ErrorKind::SourceChanged, 1),
            (ErrorKind::Denied, 1),
            (ErrorKind::NoSpace, 1),
            (ErrorKind::NewerFormat, 1),
            (ErrorKind::Refused, 1),
            (ErrorKind::Interrupted, 130),
        ] {
            assert_eq!(ExitCode::from(kind).number(), number, "{kind:?}");
        }
    }

    #[test]
    fn several_tiers_come_to_one_code() {
        let unreachable = Some(ErrorKind::Unreachable);
        let denied = Some(ErrorKind::Denied);
        assert_eq!(of(&[]), ExitCode::Done);
        assert_eq!(of(&[None, None]), ExitCode::Done);
        assert_eq!(of(&[unreachable, unreachable]), ExitCode::Unreachable);
        assert_eq!(of(&[None, unreachable]), ExitCode::Partly);
        assert_eq!(of(&[None, denied]), ExitCode::Partly);
        assert_eq!(of(&[None, denied, unreachable]), ExitCode::Partly);
        assert_eq!(of(&[denied]), ExitCode::Failed);
        assert_eq!(of(&[denied, unreachable]), ExitCode::Failed);
    }
}
