//! Tells what could not be read from what was read and is bad.

use stepvault_core::{Error, ErrorKind};

/// Whether an error concerns access to a tier, or this process, rather than the tier's content.
pub fn is_outage(error: &Error) -> bool {
    error.is_inconclusive()
        || matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Denied | ErrorKind::Interrupted)
}

/// Returns the error as an outage, if it is one: the tier could not be read.
#[must_use]
pub fn outage(error: Error) -> Error {
    if error.is_inconclusive() {
        return error.with_kind(ErrorKind::Unreachable);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_says_nothing_of_what_a_store_holds() {
        let of = |kind| is_outage(&Error::new(kind, "cannot read"));
        for kind in [ErrorKind::Unreachable, ErrorKind::Denied, ErrorKind::Interrupted] {
            assert!(of(kind), "{kind:?}");
        }
        for kind in [ErrorKind::Damaged, ErrorKind::NotFound, ErrorKind::NewerFormat] {
            assert!(!of(kind), "{kind:?}");
        }
        assert!(is_outage(&Error::new(ErrorKind::Failed, "too many open files").inconclusive()));
    }
}
