use std::time::Duration;

use super::*;

#[test]
fn a_lease_lasts_as_long_as_it_says_by_the_stores_clock() {
    let renewed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
    let lease = FoundLease {
        key: "key".to_owned(),
        id: None,
        holder: "somebody".to_owned(),
        renewed,
        time_to_live_seconds: 120,
    };
    assert!(lease.is_live(renewed));
    assert!(lease.is_live(renewed + Duration::from_millis(119_999)));
    assert!(!lease.is_live(renewed + Duration::from_mins(2)));
    assert!(!lease.is_live(renewed + Duration::from_secs(121)));
    // Renewed after the clock was read.
    assert!(lease.is_live(renewed - Duration::from_secs(500)));
    let gone = FoundLease {
        time_to_live_seconds: 0,
        ..lease
    };
    assert!(!gone.is_live(renewed));
}

#[test]
fn an_outage_says_nothing_of_what_a_store_holds() {
    let of = |kind| is_outage(&Error::new(kind, "cannot read"));
    for kind in [ErrorKind::Unreachable, ErrorKind::Denied, ErrorKind::Interrupted] {
        assert!(of(kind), "{kind:?}");
    }
    for kind in [ErrorKind::Damaged, ErrorKind::NotFound, ErrorKind::NewerFormat] {
        assert!(!of(kind), "{kind:?}");
    }
    assert!(is_outage(
        &Error::new(ErrorKind::Failed, "too many open files").inconclusive()
    ));
}
