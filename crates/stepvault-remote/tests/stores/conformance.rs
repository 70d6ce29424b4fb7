//! What every store has to do, one named check an idea.

use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use futures::{FutureExt as _, TryStreamExt as _};
use stepvault_core::digest::{Crc32c, PartDigest, Sha256Digest};
use stepvault_core::{Error, ErrorKind};
use stepvault_remote::store::{Created, RemoteStore};

use crate::support::{File, bytes, create, listed, read};

/// Why a check failed.
pub(crate) type Outcome = Result<(), String>;

type Store = Arc<dyn RemoteStore>;
type Check = (&'static str, fn(Store) -> BoxFuture<'static, Outcome>);

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

macro_rules! checks {
    ($($name:ident),+ $(,)?) => { &[$((stringify!($name), |store| $name(store).boxed())),+] };
}

const CHECKS: &[Check] = checks![
    what_was_created_is_read_back,
    create_never_replaces,
    of_racing_creates_one_wins,
    replace_replaces,
    empty_objects_are_objects,
    ranges_are_exact,
    ranges_past_the_end_are_errors,
    odd_keys_mean_themselves,
    listings_keep_to_their_prefix,
    listings_are_complete,
    missing_objects_are_told_from_errors,
    deletes_take_missing_keys,
    an_upload_in_parts_becomes_one_object,
    an_empty_upload_becomes_an_empty_object,
    an_upload_never_replaces,
    an_aborted_upload_leaves_nothing,
    wrong_digests_are_refused,
    a_wrong_digest_of_the_whole_is_noticed,
    copies_keep_bytes_and_proof,
];

/// Runs all checks but those in `skipped` and panics with what failed.
pub(crate) async fn run(store: Store, skipped: &[&str]) {
    for name in skipped {
        assert!(CHECKS.iter().any(|(known, _)| known == name), "no check is called {name}");
    }
    let mut failures = Vec::new();
    for (name, check) in CHECKS.iter().filter(|(name, _)| !skipped.contains(name)) {
        if let Err(why) = check(Arc::clone(&store)).await {
            failures.push(format!("{name}: {why}"));
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", store.url(), failures.join("\n"));
}

fn text(error: Error) -> String {
    format!("{:?}: {error}", error.kind())
}

async fn what_was_created_is_read_back(store: Store) -> Outcome {
    let (key, body) = ("created/object.bin", bytes(100_003, 1));
    let Created::Written(written) = create(&*store, key, &body).await.map_err(text)? else {
        return Err("a free key was called taken".to_owned());
    };
    ensure!(written.info.key == key && written.info.size_bytes == 100_003, "the answer says {:?}", written.info);
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
    ensure!(head.checksum.proves(&other.digest, &other.part_digests()) != Some(true), "its checksum proves anything");
    Ok(())
}

async fn create_never_replaces(store: Store) -> Outcome {
    let (key, first, second) = ("taken/object", bytes(10, 1), bytes(10, 2));
    create(&*store, key, &first).await.map_err(text)?;
    ensure!(create(&*store, key, &second).await.map_err(text)? == Created::Exists, "a taken key was called free");
    ensure!(create(&*store, key, &first).await.map_err(text)? == Created::Exists, "the same bytes were called new");
    ensure!(read(&*store, key, None).await.map_err(text)? == first, "the object was replaced");
    Ok(())
}

async fn of_racing_creates_one_wins(store: Store) -> Outcome {
    let bodies: Vec<_> = (0..8).map(|seed| bytes(5_000, 100 + seed)).collect();
    let outcomes = join_all(bodies.iter().map(|body| create(&*store, "race/object", body))).await;
    let mut winners = Vec::new();
    for (outcome, body) in outcomes.into_iter().zip(&bodies) {
        if matches!(outcome.map_err(text)?, Created::Written(_)) {
            winners.push(body);
        }
    }
    ensure!(winners.len() == 1, "{} of 8 won", winners.len());
    ensure!(read(&*store, "race/object", None).await.map_err(text)? == *winners[0], "a loser's bytes are there");
    Ok(())
}

async fn replace_replaces(store: Store) -> Outcome {
    for (seed, length) in [(1, 50), (2, 20), (3, 70)] {
        let body = bytes(length, seed);
        store.replace("replaced/record", body.clone(), &PartDigest::of(&body)).await.map_err(text)?;
        ensure!(read(&*store, "replaced/record", None).await.map_err(text)? == body, "older bytes are there");
    }
    Ok(())
}

async fn empty_objects_are_objects(store: Store) -> Outcome {
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

async fn ranges_are_exact(store: Store) -> Outcome {
    let body = bytes(1_000_000, 9);
    create(&*store, "ranges/object", &body).await.map_err(text)?;
    for range in [0..1, 0..1_000_000, 999_999..1_000_000, 123_456..654_321, 5..5] {
        let got = read(&*store, "ranges/object", Some(range.clone())).await.map_err(text)?;
        ensure!(got == body[range.start as usize..range.end as usize], "{range:?} gave {} other bytes", got.len());
    }
    Ok(())
}

async fn ranges_past_the_end_are_errors(store: Store) -> Outcome {
    create(&*store, "short/object", &bytes(100, 1)).await.map_err(text)?;
    for range in [50..101, 100..101, 5_000..6_000] {
        match read(&*store, "short/object", Some(range.clone())).await {
            Ok(got) => return Err(format!("{range:?} of 100 bytes gave {} without an error", got.len())),
            Err(error) => ensure!(!error.is_transient(), "{range:?} would be retried: {error}"),
        }
    }
    Ok(())
}

async fn odd_keys_mean_themselves(store: Store) -> Outcome {
    let keys = [
        "odd/with space/file name.bin",
        "odd/ünï/日本語/🦀.pt",
        "odd/100%/%2F/%41",
        "odd/#1/a+b=c&d?e;f,g",
        "odd/epoch=1-step=200.ckpt",
        "odd/!'()*[]{}^~`|\"<>\\:@$",
        "odd/.hidden/..dots../...",
        "odd/a",
        "odd/a%20b",
        "odd/a b",
    ];
    for (seed, key) in keys.iter().enumerate() {
        let written = create(&*store, key, &bytes(64, seed as u64)).await.map_err(text)?;
        ensure!(matches!(written, Created::Written(_)), "{key:?} is mixed up with another");
    }
    for (seed, key) in keys.iter().enumerate() {
        ensure!(read(&*store, key, None).await.map_err(text)? == bytes(64, seed as u64), "{key:?} has other bytes");
        ensure!(store.head(key).await.map_err(text)?.is_some(), "{key:?} has no head");
    }
    let mut wanted: Vec<String> = keys.iter().map(ToString::to_string).collect();
    wanted.sort();
    ensure!(listed(&*store, "odd/").await.map_err(text)? == wanted, "the listing has other keys");
    if store.abilities().copies {
        for key in keys {
            let to = format!("copied-{key}");
            store.copy(key, &to).await.map_err(text)?;
            ensure!(store.head(&to).await.map_err(text)?.is_some(), "{key:?} was copied elsewhere");
            store.delete(&[to]).await.map_err(text)?;
        }
    }
    store.delete(&wanted).await.map_err(text)?;
    ensure!(listed(&*store, "odd/").await.map_err(text)?.is_empty(), "some could not be deleted");
    Ok(())
}

async fn listings_keep_to_their_prefix(store: Store) -> Outcome {
    for key in ["list/a/1", "list/a/2/3", "list/ab/1", "list/b", "lists/x"] {
        create(&*store, key, &bytes(7, 1)).await.map_err(text)?;
    }
    for (prefix, wanted) in [
        ("list/a/", vec!["list/a/1", "list/a/2/3"]),
        ("list/", vec!["list/a/1", "list/a/2/3", "list/ab/1", "list/b"]),
        ("list/a/2/", vec!["list/a/2/3"]),
        ("list/none/", vec![]),
    ] {
        let got = listed(&*store, prefix).await.map_err(text)?;
        ensure!(got == wanted, "{prefix:?} gave {got:?}");
    }
    let all = listed(&*store, "").await.map_err(text)?;
    ensure!(all.iter().any(|key| key == "lists/x"), "the empty prefix does not mean everything: {all:?}");
    Ok(())
}

async fn listings_are_complete(store: Store) -> Outcome {
    let wanted: Vec<String> = (0..45).map(|number| format!("many/{number:04}")).collect();
    for key in &wanted {
        create(&*store, key, &bytes(3, 1)).await.map_err(text)?;
    }
    let infos: Vec<_> = store.list("many/").try_collect().await.map_err(text)?;
    ensure!(infos.iter().all(|info| info.size_bytes == 3), "sizes are wrong");
    ensure!(infos.len() == 45, "{} of 45 listed", infos.len());
    ensure!(listed(&*store, "many/").await.map_err(text)? == wanted, "other keys listed");
    Ok(())
}

async fn missing_objects_are_told_from_errors(store: Store) -> Outcome {
    ensure!(store.head("missing/object").await.map_err(text)?.is_none(), "it has a head");
    for range in [None, Some(0..10), Some(3..3)] {
        let error = read(&*store, "missing/object", range).await.err().ok_or("it was read")?;
        ensure!(error.kind() == ErrorKind::NotFound, "reading it gave {}", text(error));
    }
    if store.abilities().copies {
        let error = store.copy("missing/object", "missing/copy").await.err().ok_or("it was copied")?;
        ensure!(error.kind() == ErrorKind::NotFound, "copying it gave {}", text(error));
    }
    ensure!(store.head("missing/copy").await.map_err(text)?.is_none(), "a copy of nothing is there");
    Ok(())
}

async fn deletes_take_missing_keys(store: Store) -> Outcome {
    for key in ["delete/1", "delete/2", "delete/3", "delete/4"] {
        create(&*store, key, &bytes(5, 1)).await.map_err(text)?;
    }
    store.delete(&[]).await.map_err(text)?;
    store.delete(&["delete/1".to_owned()]).await.map_err(text)?;
    store.delete(&["delete/1".to_owned()]).await.map_err(text)?;
    let several = ["delete/1", "delete/2", "delete/none", "delete/3"].map(str::to_owned);
    store.delete(&several).await.map_err(text)?;
    let left = listed(&*store, "delete/").await.map_err(text)?;
    ensure!(left == ["delete/4"], "left are {left:?}");
    let again = create(&*store, "delete/1", &bytes(5, 2)).await.map_err(text)?;
    ensure!(matches!(again, Created::Written(_)), "a deleted key is not free");
    Ok(())
}

async fn an_upload_in_parts_becomes_one_object(store: Store) -> Outcome {
    let (key, file) = ("parts/model.safetensors", File::new((16 << 20) + 5, 4));
    let upload = store.start_upload(key, file.digest.size_bytes).await.map_err(text)?;
    if store.abilities().lists_pending_uploads {
        let pending = store.pending_uploads("parts/").await.map_err(text)?;
        ensure!(pending.iter().any(|one| one.key == key && one.upload == upload), "it is not pending: {pending:?}");
        let others = store.pending_uploads("none/").await.map_err(text)?;
        ensure!(others.is_empty(), "another prefix has {others:?}");
    }
    let receipts = file.send(&*store, key, &upload).await.map_err(text)?;
    ensure!(store.head(key).await.map_err(text)?.is_none(), "it is visible before it is complete");
    let created = store.complete_upload(key, &upload, &receipts, &file.digest).await.map_err(text)?;
    let Created::Written(written) = created else { return Err("a free key was called taken".to_owned()) };
    ensure!(written.info.size_bytes == file.digest.size_bytes, "the answer says {:?}", written.info);
    let head = store.head(key).await.map_err(text)?.ok_or("no head")?;
    let proven = head.checksum.proves(&file.digest, &file.part_digests());
    ensure!(proven != Some(false), "its own checksum disproves it: {:?}", head.checksum);
    ensure!(read(&*store, key, None).await.map_err(text)? == file.bytes, "other bytes came back");
    let range = (8 << 20) - 3..(8 << 20) + 3;
    let got = read(&*store, key, Some(range.clone())).await.map_err(text)?;
    ensure!(got == file.bytes[range.start as usize..range.end as usize], "the seam of two parts is wrong");
    if store.abilities().lists_pending_uploads {
        let pending = store.pending_uploads("parts/").await.map_err(text)?;
        ensure!(pending.is_empty(), "still pending: {pending:?}");
    }
    Ok(())
}

async fn an_empty_upload_becomes_an_empty_object(store: Store) -> Outcome {
    let file = File::new(0, 0);
    file.upload(&*store, "parts/empty").await.map_err(text)?;
    ensure!(read(&*store, "parts/empty", None).await.map_err(text)?.is_empty(), "it has bytes");
    Ok(())
}

async fn an_upload_never_replaces(store: Store) -> Outcome {
    if !store.abilities().multipart_is_create_only {
        return Ok(());
    }
    let (key, first, second) = ("parts/taken", bytes(30, 1), File::new((8 << 20) + 1, 2));
    create(&*store, key, &first).await.map_err(text)?;
    ensure!(second.upload(&*store, key).await.map_err(text)? == Created::Exists, "a taken key was called free");
    ensure!(read(&*store, key, None).await.map_err(text)? == first, "the object was replaced");
    Ok(())
}

async fn an_aborted_upload_leaves_nothing(store: Store) -> Outcome {
    let (key, file) = ("aborted/object", File::new((8 << 20) + 1, 5));
    let upload = store.start_upload(key, file.digest.size_bytes).await.map_err(text)?;
    let receipts = file.send(&*store, key, &upload).await.map_err(text)?;
    store.abort_upload(key, &upload).await.map_err(text)?;
    store.abort_upload(key, &upload).await.map_err(text)?;
    ensure!(store.head(key).await.map_err(text)?.is_none(), "the object is there");
    let completed = store.complete_upload(key, &upload, &receipts, &file.digest).await;
    ensure!(completed.is_err(), "it could be completed: {completed:?}");
    ensure!(store.head(key).await.map_err(text)?.is_none(), "the object is there after all");
    ensure!(store.pending_uploads("aborted/").await.map_err(text)?.is_empty(), "it is still pending");
    Ok(())
}

async fn wrong_digests_are_refused(store: Store) -> Outcome {
    if !store.abilities().checks_checksums {
        return Ok(());
    }
    let body = bytes(1_000, 1);
    let wrong = PartDigest {
        sha256: Sha256Digest::of(b"other bytes"),
        crc32c: Crc32c::of(b"other bytes"),
        size_bytes: body.len() as u64,
    };
    let error = store.create("wrong/object", body.clone(), &wrong).await.err().ok_or("it was accepted")?;
    ensure!(error.kind() == ErrorKind::Damaged, "it was refused as {}", text(error));
    ensure!(store.head("wrong/object").await.map_err(text)?.is_none(), "the damaged object is there");
    let upload = store.start_upload("wrong/parts", 1_000).await.map_err(text)?;
    let sent = store.upload_part("wrong/parts", &upload, 0, body, &wrong).await;
    let error = sent.err().ok_or("the part was accepted")?;
    ensure!(error.kind() == ErrorKind::Damaged, "the part was refused as {}", text(error));
    store.abort_upload("wrong/parts", &upload).await.map_err(text)
}

async fn a_wrong_digest_of_the_whole_is_noticed(store: Store) -> Outcome {
    let (key, file) = ("wrong/whole", File::new((8 << 20) + 1, 6));
    let upload = store.start_upload(key, file.digest.size_bytes).await.map_err(text)?;
    let receipts = file.send(&*store, key, &upload).await.map_err(text)?;
    let mut wrong = file.digest.clone();
    wrong.sha256 = Sha256Digest::of(b"other bytes");
    wrong.crc32c = Crc32c::of(b"other bytes");
    match store.complete_upload(key, &upload, &receipts, &wrong).await {
        Ok(Created::Written(head)) => {
            let proven = head.checksum.proves(&wrong, &file.part_digests());
            ensure!(proven != Some(true), "a checksum proves what was not sent");
        }
        Ok(Created::Exists) => return Err("a free key was called taken".to_owned()),
        Err(error) => {
            ensure!(error.kind() == ErrorKind::Damaged, "it was refused as {}", text(error));
            store.abort_upload(key, &upload).await.map_err(text)?;
        }
    }
    Ok(())
}

async fn copies_keep_bytes_and_proof(store: Store) -> Outcome {
    if !store.abilities().copies {
        return Ok(());
    }
    let small = File::new(3_000, 7);
    create(&*store, "copy/small", &small.bytes).await.map_err(text)?;
    let large = File::new((16 << 20) + 77, 8);
    large.upload(&*store, "copy/large").await.map_err(text)?;
    for (from, to, file) in [("copy/small", "copy/small-2", &small), ("copy/large", "copy/large-2", &large)] {
        let created = store.copy(from, to).await.map_err(text)?;
        let Created::Written(written) = created else { return Err(format!("the free key {to} was called taken")) };
        ensure!(written.info.size_bytes == file.digest.size_bytes, "the answer says {:?}", written.info);
        ensure!(read(&*store, to, None).await.map_err(text)? == file.bytes, "{to} has other bytes");
        let original = store.head(from).await.map_err(text)?.ok_or("no head")?.checksum;
        let copy = store.head(to).await.map_err(text)?.ok_or("no head")?.checksum;
        ensure!(copy == original, "{to} has the checksum {copy:?} and not {original:?}");
    }
    ensure!(store.copy("copy/small", "copy/large").await.map_err(text)? == Created::Exists, "a copy replaced");
    ensure!(read(&*store, "copy/large", None).await.map_err(text)? == large.bytes, "the object was replaced");
    Ok(())
}
