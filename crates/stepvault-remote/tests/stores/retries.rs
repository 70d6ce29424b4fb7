//! How much a failing remote is asked, and how soon a mended one is noticed; on a clock of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use stepvault_core::digest::PartDigest;
use stepvault_core::{Error, ErrorKind};
use stepvault_remote::open::decorate;
use stepvault_remote::retry::RetryPolicy;
use stepvault_remote::store::RemoteStore;
use stepvault_testkit::recorder::Recorder;
use tokio::time::Instant;

use crate::flaky::{Flaky, busy};
use crate::support::settings;

const OUTAGE: std::ops::Range<Duration> = Duration::from_secs(2)..Duration::from_secs(302);

/// The store behind all decorators, with places for eight requests.
fn decorated(flaky: &Arc<Flaky>, deadline_seconds: u64) -> Arc<dyn RemoteStore> {
    let mut settings = settings("s3://bucket/prefix");
    settings.max_concurrent_requests = 8;
    settings.retry_deadline_seconds = deadline_seconds;
    decorate(
        Arc::clone(flaky) as _,
        &settings,
        RetryPolicy::of(&settings, false),
        Arc::new(Recorder::default()),
    )
}

/// Sends 64 parts at once, each again until it is there; answers how often a part was given up.
async fn send_parts(store: &dyn RemoteStore) -> usize {
    let body = Bytes::from_static(b"part");
    let digest = PartDigest::of(&body);
    let sent = (0..64).map(|index| {
        let body = body.clone();
        async move {
            let mut given_up = 0;
            while store.upload_part("file", "upload", index, body.clone().into(), &digest).await.is_err() {
                given_up += 1;
            }
            given_up
        }
    });
    join_all(sent).await.into_iter().sum()
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_five_minutes_costs_less_than_half_the_requests_again() {
    for (deadline_seconds, gives_up) in [(600, false), (120, true)] {
        let flaky = Arc::new(Flaky::new(Duration::from_secs(1), |_, _, now| {
            if OUTAGE.contains(&now) { Err(busy()) } else { Ok(()) }
        }));
        let began = Instant::now();
        let given_up = send_parts(&*decorated(&flaky, deadline_seconds)).await;
        let requests = flaky.times().len();
        assert!(requests <= 96, "{requests} requests for 64 parts");
        // 48 parts were left, eight at a time.
        let ready = OUTAGE.end + Duration::from_secs(30 + 6 + 4);
        assert!(began.elapsed() <= ready, "ready only after {:?}", began.elapsed());
        assert_eq!(given_up > 0, gives_up, "given up {given_up} times");
        assert!(flaky.most_under_way() <= 8);
    }
}

#[tokio::test(start_paused = true)]
async fn a_remote_that_fails_one_request_in_four_is_not_asked_for_more_than_half_again() {
    let flaky =
        Arc::new(Flaky::new(
            Duration::from_millis(100),
            |_, before, _| {
                if before % 4 == 3 { Err(busy()) } else { Ok(()) }
            },
        ));
    let store = decorated(&flaky, 120);
    for _ in 0..8 {
        assert_eq!(send_parts(&*store).await, 0);
    }
    let requests = flaky.times().len();
    assert!(requests <= 8 * 96, "{requests} requests for 512 parts");
}

#[tokio::test(start_paused = true)]
async fn retries_are_earned_by_successes_and_by_patience() {
    let flaky =
        Arc::new(Flaky::new(
            Duration::from_millis(100),
            |_, before, _| {
                if before % 3 == 0 { Ok(()) } else { Err(busy()) }
            },
        ));
    let store = decorated(&flaky, 1_000_000);
    let began = Instant::now();
    for _ in 0..4 {
        assert_eq!(send_parts(&*store).await, 0);
    }
    let (parts, requests) = (256, flaky.times().len());
    let by_patience = usize::try_from(began.elapsed().as_secs() / 10).unwrap() + 1;
    let most = parts + parts / 2 + 20 + by_patience;
    assert!(requests <= most, "{requests} requests in {:?}, of {most}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn all_requests_heed_what_one_was_told() {
    let flaky = Arc::new(Flaky::new(Duration::from_millis(10), |_, before, _| {
        if before == 0 { Err(busy().retry_after(Duration::from_secs(40))) } else { Ok(()) }
    }));
    let store = decorated(&flaky, 120);
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        store.head("other").await
    };
    let (first, late) = tokio::join!(store.head("one"), late);
    first.unwrap();
    late.unwrap();
    let times = flaky.times();
    assert_eq!(times.len(), 3);
    assert!(times[1..].iter().all(|time| *time >= Duration::from_secs(40)), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn one_request_that_always_fails_does_not_stop_the_others() {
    let flaky =
        Arc::new(Flaky::new(
            Duration::from_millis(100),
            |key, _, _| {
                if key == "poison" { Err(busy()) } else { Ok(()) }
            },
        ));
    let store = decorated(&flaky, 20);
    let others = async {
        let began = Instant::now();
        for _ in 0..100 {
            store.head("good").await.unwrap();
        }
        began.elapsed()
    };
    let (poison, took) = tokio::join!(store.head("poison"), others);
    let error = poison.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(took < Duration::from_secs(15), "the others took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_pass_is_asked_once() {
    for kind in [
        ErrorKind::NotFound,
        ErrorKind::Denied,
        ErrorKind::Damaged,
        ErrorKind::Conflict,
        ErrorKind::Usage,
        ErrorKind::Failed,
    ] {
        let flaky = Arc::new(Flaky::new(Duration::ZERO, move |_, _, _| Err(Error::new(kind, "no"))));
        assert_eq!(decorated(&flaky, 120).head("key").await.unwrap_err().kind(), kind);
        assert_eq!(flaky.times().len(), 1, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_that_may_pass_is_retried_and_slows_nobody_else() {
    let flaky = Arc::new(Flaky::new(Duration::from_millis(10), |key, before, _| {
        if key == "contended" && before < 6 {
            Err(Error::new(ErrorKind::Conflict, "no").transient())
        } else {
            Ok(())
        }
    }));
    let store = decorated(&flaky, 120);
    let other = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let began = Instant::now();
        store.head("other").await.unwrap();
        began.elapsed()
    };
    let (contended, took) = tokio::join!(store.head("contended"), other);
    contended.unwrap();
    assert!(took < Duration::from_millis(50), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_while_it_waits_holds_up_nobody() {
    let flaky = Arc::new(Flaky::new(Duration::from_millis(10), |_, _, now| {
        if now < Duration::from_secs(30) { Err(busy()) } else { Ok(()) }
    }));
    let store = decorated(&flaky, 120);
    for _ in 0..20 {
        let waiting = join_all((0..8).map(|_| store.head("dropped")));
        assert!(tokio::time::timeout(Duration::from_secs(1), waiting).await.is_err());
    }
    store.head("kept").await.unwrap();
    assert!(flaky.times().last().unwrap() < &Duration::from_mins(1));
}

#[tokio::test(start_paused = true)]
async fn the_last_error_tells_who_how_long_and_why() {
    let flaky = Arc::new(Flaky::new(Duration::ZERO, |_, _, _| Err(busy())));
    let store = decorated(&flaky, 10);
    let (first, second) = tokio::join!(store.head("one"), store.head("two"));
    for error in [first.unwrap_err(), second.unwrap_err()] {
        let text = error.to_string();
        assert!(
            text.starts_with("the remote does not serve requests: archive (flaky://store): tried "),
            "{text}"
        );
        assert!(text.ends_with("the last error: cannot send a part: the store asks to slow down"), "{text}");
        assert!(error.is_transient());
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_remote_costs_its_deadline_once_however_many_requests_come_at_once() {
    let flaky = Arc::new(Flaky::new(Duration::ZERO, |_, _, _| Err(busy())));
    // A shorter one ends while requests wait for a probe.
    for deadline_seconds in [4, 60] {
        let store = decorated(&flaky, deadline_seconds);
        let first = join_all((0..8).map(|_| store.head("first"))).await;
        let (tried, began) = (flaky.times().len(), Instant::now());
        let later = join_all((0..8).map(|_| store.head("later"))).await;
        assert!(first.into_iter().chain(later).all(|answer| answer.is_err()));
        assert_eq!(flaky.times().len(), tried + 1);
        // The longest wait between probes, with jitter.
        assert!(began.elapsed() <= Duration::from_secs(24), "{:?}", began.elapsed());
    }
}
