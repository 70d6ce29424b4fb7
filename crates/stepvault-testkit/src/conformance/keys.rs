//! Keys: odd ones, listed ones, missing ones.

use futures::TryStreamExt as _;
use stepvault_core::ErrorKind;
use stepvault_remote::store::Created;

use super::outcome::{Outcome, Store, text};
use crate::stores::{bytes, create, listed, read};

pub(super) async fn odd_keys_mean_themselves(store: Store) -> Outcome {
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
        "odd/ leading and trailing ",
    ];
    for (seed, key) in keys.iter().enumerate() {
        let written = create(&*store, key, &bytes(64, seed as u64)).await.map_err(text)?;
        ensure!(matches!(written, Created::Written(_)), "{key:?} is mixed up with another");
    }
    for (seed, key) in keys.iter().enumerate() {
        ensure!(
            read(&*store, key, None).await.map_err(text)? == bytes(64, seed as u64),
            "{key:?} has other bytes"
        );
        ensure!(store.head(key).await.map_err(text)?.is_some(), "{key:?} has no head");
    }
    let mut wanted: Vec<String> = keys.iter().map(ToString::to_string).collect();
    wanted.sort();
    ensure!(listed(&*store, "odd/").await.map_err(text)? == wanted, "the listing has other keys");
    if store.capabilities().copies {
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

pub(super) async fn listings_keep_to_their_prefix(store: Store) -> Outcome {
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

pub(super) async fn listings_are_complete(store: Store) -> Outcome {
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

pub(super) async fn missing_objects_are_told_from_errors(store: Store) -> Outcome {
    ensure!(store.head("missing/object").await.map_err(text)?.is_none(), "it has a head");
    for range in [None, Some(0..10), Some(3..3)] {
        let error = read(&*store, "missing/object", range).await.err().ok_or("it was read")?;
        ensure!(error.kind() == ErrorKind::NotFound, "reading it gave {}", text(error));
    }
    if store.capabilities().copies {
        let error = store.copy("missing/object", "missing/copy").await.err().ok_or("it was copied")?;
        ensure!(error.kind() == ErrorKind::NotFound, "copying it gave {}", text(error));
    }
    ensure!(store.head("missing/copy").await.map_err(text)?.is_none(), "a copy of nothing is there");
    Ok(())
}

pub(super) async fn deletes_take_missing_keys(store: Store) -> Outcome {
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
