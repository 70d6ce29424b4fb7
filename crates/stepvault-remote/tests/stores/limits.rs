//! Places for requests, bytes a second, and the silence of reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use stepvault_core::ErrorKind;
use stepvault_core::bandwidth::BandwidthLimit;
use stepvault_core::digest::PartDigest;
use stepvault_remote::limit::{FlowStore, RequestLimitStore};
use stepvault_remote::store::{ArchivePlace, RemoteStore};

use crate::flaky::Flaky;

const LONG: Duration = Duration::from_mins(1);

fn steady(takes: Duration) -> Arc<Flaky> {
    Arc::new(Flaky::new(takes, |_, _, _| Ok(())))
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_than_places() {
    let flaky = steady(Duration::from_millis(10));
    let store = RequestLimitStore::new(Arc::clone(&flaky) as _, 3);
    for head in join_all((0..50).map(|_| store.head("key"))).await {
        head.unwrap();
    }
    assert_eq!(flaky.most_under_way(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_read_keeps_its_place_until_it_is_dropped() {
    let store = RequestLimitStore::new(steady(Duration::ZERO), 1);
    let body = store.read("key", None).await.unwrap();
    assert!(tokio::time::timeout(LONG, store.head("key")).await.is_err());
    drop(body);
    store.head("key").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_is_near_by_its_answers_and_not_by_calls_that_ask_it_nothing() {
    for (takes, level) in [(Duration::from_millis(30), 256), (Duration::from_millis(1), 8)] {
        let store = RequestLimitStore::new(steady(takes), 256);
        store.sync(&["key".to_owned()]).await.unwrap();
        store.begin(ArchivePlace::Anywhere).await.unwrap();
        assert_eq!(store.concurrency_limit().unwrap().current(), 256, "{takes:?}");
        drop(store.read("key", None).await.unwrap());
        assert_eq!(store.concurrency_limit().unwrap().current(), level, "{takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_read_fails_and_ends() {
    let store = FlowStore::new(steady(Duration::ZERO), &BandwidthLimit::default(), Duration::from_secs(7));
    let mut body = store.read("key", None).await.unwrap();
    assert_eq!(body.next().await.unwrap().unwrap(), "1234");
    // A caller that takes its time is not the store's silence.
    tokio::time::sleep(LONG).await;
    assert_eq!(body.next().await.unwrap().unwrap(), "5678");
    let error = body.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(error.to_string(), "cannot read the object: flaky://store/key: no byte moved for 7 seconds");
    assert!(body.next().await.is_none());
}

#[tokio::test]
async fn bytes_keep_to_their_limit_however_large_the_part() {
    let store = FlowStore::new(steady(Duration::ZERO), &BandwidthLimit::all_day(1_000_000), LONG);
    let began = Instant::now();
    for length in [1_500_000, 1_000_000, 10] {
        let body = Bytes::from(vec![0; length]);
        store.replace("key", body.clone(), &PartDigest::of(&body)).await.unwrap();
    }
    // The first million may go at once.
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1_450) && took < Duration::from_secs(4), "{took:?}");
}
