//! Whole objects and ranges of them.

use futures::future::join_all;
use stepvault_core::ErrorKind;
use stepvault_core::digest::PartDigest;
use stepvault_remote::store::Created;

use super::outcome::{Outcome, Store, text};
use crate::stores::{File, bytes, create, listed, read, slice};

pub(super) async fn what_was_created_is_read_back(store: Store) -> Outcome {
    let (key, body) = ("created/object.bin", bytes(100_003, 1));
    let Created::Written(written) = create(&*store, key, &body).await.map_err(text)? else {
        return Err("a free key was called taken".to_owned());
    };
    ensure!(
        written.info.key == key && written.info.size_bytes == 100_003,
        "the answer says {:?}",
        written.info
    );
    ensure!(read(&*store, key, None).await.map_err(text)? == body, "other bytes came back");
    let head = store.head(key).await.map_err(text)?.ok_or("no head")?;
    ensure!(head.info.size_bytes == 100_003, "its head has {} bytes", head.info.size_bytes);
    ensure!(head.info.key == key, "its head has the key {}", head.info.key);
    let file = File::new(100_003, 1);
    for proof in [&head.checksum, &written.checksum] {
        let proven = proof.proves(&file.digest, &file.part_digests());
        ensure!(proven != Some(false), "its own checksum disproves it: {proof:?}");
    }
    let other = File::new(100_003, 2);
    ensure!(
        head.checksum.proves(&other.digest, &other.part_digests()) != Some(true),
        "its checksum proves anything"
    );
    Ok(())
}

pub(super) async fn create_never_replaces(store: Store) -> Outcome {
    let (key, first, second) = ("taken/object", bytes(10, 1), bytes(10, 2));
    create(&*store, key, &first).await.map_err(text)?;
    ensure!(
        create(&*store, key, &second).await.map_err(text)? == Created::Exists,
        "a taken key was called free"
    );
    ensure!(
        create(&*store, key, &first).await.map_err(text)? == Created::Exists,
        "the same bytes were called new"
    );
    ensure!(read(&*store, key, None).await.map_err(text)? == first, "the object was replaced");
    Ok(())
}

pub(super) async fn of_racing_creates_one_wins(store: Store) -> Outcome {
    let bodies: Vec<_> = (0..8).map(|seed| bytes(5_000, 100 + seed)).collect();
    let outcomes = join_all(bodies.iter().map(|body| create(&*store, "race/object", body))).await;
    let mut winners = Vec::new();
    for (outcome, body) in outcomes.into_iter().zip(&bodies) {
        if matches!(outcome.map_err(text)?, Created::Written(_)) {
            winners.push(body);
        }
    }
    ensure!(winners.len() == 1, "{} of 8 won", winners.len());
    ensure!(
        read(&*store, "race/object", None).await.map_err(text)? == *winners[0],
        "a loser's bytes are there"
    );
    Ok(())
}

pub(super) async fn replace_replaces(store: Store) -> Outcome {
    for (seed, length) in [(1, 50), (2, 20), (3, 70)] {
        let body = bytes(length, seed);
        store.replace("replaced/record", body.clone(), &PartDigest::of(&body)).await.map_err(text)?;
        ensure!(read(&*store, "replaced/record", None).await.map_err(text)? == body, "older bytes are there");
    }
    Ok(())
}

pub(super) async fn empty_objects_are_objects(store: Store) -> Outcome {
    let empty = bytes(0, 0);
    create(&*store, "empty/object", &empty).await.map_err(text)?;
    let head = store.head("empty/object").await.map_err(text)?.ok_or("no head")?;
    ensure!(head.info.size_bytes == 0, "it has {} bytes", head.info.size_bytes);
    for range in [None, Some(0..0)] {
        ensure!(read(&*store, "empty/object", range).await.map_err(text)?.is_empty(), "it has bytes");
    }
    ensure!(listed(&*store, "empty/").await.map_err(text)? == ["empty/object"], "it is not listed");
    Ok(())
}

pub(super) async fn ranges_are_exact(store: Store) -> Outcome {
    let body = bytes(1_000_000, 9);
    create(&*store, "ranges/object", &body).await.map_err(text)?;
    for range in [0..1, 0..1_000_000, 999_999..1_000_000, 123_456..654_321, 5..5] {
        let got = read(&*store, "ranges/object", Some(range.clone())).await.map_err(text)?;
        ensure!(got == slice(&body, &range), "{range:?} gave {} other bytes", got.len());
    }
    Ok(())
}

pub(super) async fn ranges_past_the_end_are_errors(store: Store) -> Outcome {
    create(&*store, "short/object", &bytes(100, 1)).await.map_err(text)?;
    for range in [50..101, 100..101, 5_000..6_000] {
        match read(&*store, "short/object", Some(range.clone())).await {
            Ok(got) => {
                return Err(format!("{range:?} of 100 bytes gave {} without an error", got.len()));
            }
            Err(error) => ensure!(error.kind() == ErrorKind::Damaged, "{range:?}: {error}"),
        }
    }
    Ok(())
}
