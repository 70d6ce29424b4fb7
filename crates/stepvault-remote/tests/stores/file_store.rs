//! The directory store: exclusive names, nothing half-written in sight, nothing outside the root.

#![allow(clippy::disallowed_methods)]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt as _;
use stepvault_core::digest::{DigestAlgorithm, PartDigest};
use stepvault_core::{ErrorKind, Result};
use stepvault_remote::store::{ArchivePlace, Created, RemoteStore};

use crate::support::{File, create, listed, read, send_part, settings, written};

/// Opens the store, whose directory is there.
fn open(root: &Path) -> Arc<dyn RemoteStore> {
    let _ = std::fs::create_dir(root);
    open_as_it_is(root)
}

fn open_as_it_is(root: &Path) -> Arc<dyn RemoteStore> {
    stepvault_remote::file::open(&settings(&format!("file://{}", root.display()))).unwrap()
}

/// A file of three parts.
fn large() -> File {
    File::new((16 << 20) + 77, 1)
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

/// Every file under a directory, hidden ones too.
fn files(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn objects_are_plain_files_that_are_never_replaced() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("vault");
    let store = open(&root);
    assert_eq!(listed(&*store, "").await.unwrap(), Vec::<String>::new());
    assert_eq!(store.head("a").await.unwrap(), None);
    store.delete(&["a".to_owned()]).await.unwrap();
    let head = written(create(&*store, "run/step/a", b"one").await.unwrap());
    assert_eq!((head.info.size_bytes, std::fs::read(root.join("run/step/a")).unwrap()), (3, b"one".to_vec()));
    assert_eq!(create(&*store, "run/step/a", b"two").await.unwrap(), Created::Exists);
    assert_eq!(std::fs::read(root.join("run/step/a")).unwrap(), b"one");
    store.replace("run/step/a", Bytes::from_static(b"three"), &PartDigest::of(b"three")).await.unwrap();
    let replaced = store.head("run/step/a").await.unwrap().expect("a head");
    assert_eq!(replaced.info.size_bytes, 5);
    assert_ne!(replaced.info.version, head.info.version);
    assert_eq!(files(&root).len(), 1, "no temporary stays");
}

#[tokio::test]
async fn reads_come_in_small_pieces_and_notice_a_cut() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    create(&*store, "a", &vec![7; 3_000_000]).await.unwrap();
    let pieces: Vec<Bytes> = store.read("a", None).await.unwrap().try_collect().await.unwrap();
    assert!(pieces.iter().all(|piece| piece.len() <= 256 << 10));
    let stream = store.read("a", None).await.unwrap();
    std::fs::OpenOptions::new().write(true).open(place.path().join("a")).unwrap().set_len(100).unwrap();
    let cut = stream.try_collect::<Vec<_>>().await.unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::Damaged, "{cut}");
}

#[tokio::test]
async fn keys_that_are_no_paths_below_the_root_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    for bad in
        ["../escape", "/abs", "a//b", "a/../b", "a\0b", ".stepvault-uploads/x", "d/.stepvault-tmp-x", ""]
    {
        assert_eq!(create(&*store, bad, b"x").await.unwrap_err().kind(), ErrorKind::Usage, "{bad:?}");
        assert_eq!(store.head(bad).await.unwrap_err().kind(), ErrorKind::Usage, "{bad:?}");
    }
    assert_eq!(files(place.path()), Vec::<String>::new());
}

#[tokio::test]
async fn listings_keep_to_the_prefix_and_hide_what_is_unfinished() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    for key in ["run/a", "run/b/c", "run2/x", "run/.stepvault/commits/1.json"] {
        create(&*store, key, b"x").await.unwrap();
    }
    std::fs::write(place.path().join("run/.stepvault-tmp-crashed"), "half").unwrap();
    store.start_upload("run/pending", 100, DigestAlgorithm::Sha256).await.unwrap();
    assert_eq!(listed(&*store, "run/").await.unwrap(), ["run/.stepvault/commits/1.json", "run/a", "run/b/c"]);
    assert_eq!(listed(&*store, "run").await.unwrap().len(), 4);
    assert_eq!(listed(&*store, "run/b").await.unwrap(), ["run/b/c"]);
    assert_eq!(listed(&*store, "").await.unwrap().len(), 4);
    assert_eq!(listed(&*store, "none/").await.unwrap(), Vec::<String>::new());
    assert_eq!(store.head("run/b").await.unwrap(), None, "a directory is no object");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_creations_at_once_one_wins() {
    let place = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let stores: Vec<_> = (0..8).map(|_| open(place.path())).collect();
        let key = format!("run/{round}/commit.json");
        let tries = stores.iter().enumerate().map(|(writer, store)| {
            let (store, key) = (store.clone(), key.clone());
            tokio::spawn(async move {
                create(&*store, &key, format!("writer {writer}").as_bytes()).await.unwrap()
            })
        });
        let mut winners = Vec::new();
        for (writer, outcome) in tries.collect::<Vec<_>>().into_iter().enumerate() {
            if matches!(outcome.await.unwrap(), Created::Written(_)) {
                winners.push(writer);
            }
        }
        assert_eq!(winners.len(), 1);
        let body = std::fs::read_to_string(place.path().join(&key)).unwrap();
        assert_eq!(body, format!("writer {}", winners[0]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deletions_take_emptied_directories_and_disturb_no_creation() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    for key in ["run/s1/a1/x", "run/s1/a1/y", "run/s2/a1/z"] {
        create(&*store, key, b"x").await.unwrap();
    }
    store.delete(&["run/s1/a1/x".to_owned()]).await.unwrap();
    assert!(place.path().join("run/s1/a1").is_dir());
    store.delete(&["run/s1/a1/y".to_owned(), "run/s1/none/z".to_owned()]).await.unwrap();
    assert!(!place.path().join("run/s1").exists() && place.path().join("run/s2/a1").is_dir());
    store.delete(&["run/s2/a1/z".to_owned()]).await.unwrap();
    assert!(place.path().is_dir() && !place.path().join("run").exists(), "the root stays");

    // One writes where the other removes what becomes empty.
    let deleter = open(place.path());
    let deleting = tokio::spawn(async move {
        for round in 0..300 {
            deleter.delete(&[format!("d/e/f/{}", round % 3)]).await.unwrap();
        }
    });
    for round in 0..300 {
        create(&*store, &format!("d/e/f/{}", round % 3), b"x").await.unwrap_or_else(|error| {
            // Removed by the other right after it was written: said, not hidden.
            assert!(error.to_string().contains("it was removed right after"), "{error}");
            Created::Exists
        });
    }
    deleting.await.unwrap();
}

#[tokio::test]
async fn what_crashed_writes_left_goes_with_its_directory() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let leave = |name: &str, age_hours: u64| {
        let file = std::fs::File::create(place.path().join(name)).unwrap();
        let modified =
            file.metadata().unwrap().modified().unwrap() - std::time::Duration::from_hours(age_hours);
        file.set_modified(modified).unwrap();
    };
    for (directory, age_hours) in [("old", 25), ("young", 1)] {
        create(&*store, &format!("{directory}/a"), b"x").await.unwrap();
        leave(&format!("{directory}/.stepvault-tmp-1"), age_hours);
        store.delete(&[format!("{directory}/a")]).await.unwrap();
    }
    assert!(!place.path().join("old").exists(), "no write takes a day");
    assert!(place.path().join("young/.stepvault-tmp-1").exists(), "it may still be under way");
    create(&*store, "mixed/a", b"x").await.unwrap();
    create(&*store, "mixed/b", b"x").await.unwrap();
    leave("mixed/.stepvault-tmp-1", 25);
    store.delete(&["mixed/a".to_owned()]).await.unwrap();
    assert_eq!(listed(&*store, "").await.unwrap(), ["mixed/b"]);
}

#[tokio::test]
async fn large_files_appear_when_they_are_complete() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let file = large();
    let upload =
        store.start_upload("run/big", file.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let last = file.send_part(&*store, "run/big", &upload, 2).await.unwrap();
    assert_eq!(store.head("run/big").await.unwrap(), None);
    // A restarted agent has the id from its journal, or finds it.
    let store = open(place.path());
    let pending = store.pending_uploads("run/").await.unwrap();
    assert_eq!((pending.len(), &pending[0].key, &pending[0].upload), (1, &"run/big".to_owned(), &upload));
    assert!(pending[0].initiated.is_some());
    assert_eq!(store.pending_uploads("other/").await.unwrap(), []);
    let mut receipts = vec![];
    for index in [0, 1] {
        receipts.push(file.send_part(&*store, "run/big", &upload, index).await.unwrap());
    }
    receipts.push(last);
    let error = store.complete_upload("run/big", &upload, &receipts[..2], &file.digest).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed, "{error}");
    assert!(matches!(
        store.complete_upload("run/big", &upload, &receipts, &file.digest).await.unwrap(),
        Created::Written(_)
    ));
    assert_eq!(read(&*store, "run/big", None).await.unwrap(), file.bytes);
    assert_eq!(
        store.complete_upload("run/big", &upload, &receipts, &file.digest).await.unwrap(),
        Created::Exists,
        "lost answer"
    );
    assert_eq!(store.pending_uploads("").await.unwrap(), []);
    assert_eq!(files(place.path()).len(), 1);
}

#[tokio::test]
async fn an_upload_never_replaces_and_can_be_dropped() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let file = large();
    let upload = store.start_upload("big", file.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipts = file.send(&*store, "big", &upload).await.unwrap();
    create(&*store, "big", b"first").await.unwrap();
    assert_eq!(
        store.complete_upload("big", &upload, &receipts, &file.digest).await.unwrap(),
        Created::Exists
    );
    assert_eq!(read(&*store, "big", None).await.unwrap(), b"first");
    store.abort_upload("big", &upload).await.unwrap();
    store.abort_upload("big", &upload).await.unwrap();
    assert_eq!(files(place.path()).len(), 1);
    assert_eq!(kind(file.send_part(&*store, "big", &upload, 0).await), Some(ErrorKind::NotFound));
    for id in [
        "",
        "x",
        "../../etc",
        "0123456789abcdef0123456789abcdef-x",
        "0123456789abcdef0123456789abcdef-1/../..",
    ] {
        assert_eq!(kind(file.send_part(&*store, "big", id, 0).await), Some(ErrorKind::NotFound), "{id}");
        store.abort_upload("big", id).await.unwrap();
    }
    let upload = store.start_upload("other", file.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let wrong = send_part(&*store, "other", &upload, 2, &file.parts[0].0).await.unwrap_err();
    assert!(wrong.to_string().contains("the part has 8388608 bytes"), "{wrong}");
}

#[tokio::test]
async fn copies_are_files_of_their_own_at_free_keys() {
    use std::os::unix::fs::MetadataExt as _;
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    create(&*store, "a/x", b"one").await.unwrap();
    assert!(matches!(store.copy("a/x", "b/y").await.unwrap(), Created::Written(_)));
    assert_eq!(store.copy("a/x", "b/y").await.unwrap(), Created::Exists);
    let (one, other) = (place.path().join("a/x"), place.path().join("b/y"));
    assert_eq!(std::fs::read(&*other).unwrap(), b"one");
    assert_ne!(one.metadata().unwrap().ino(), other.metadata().unwrap().ino());
    assert_eq!(store.copy("none", "c").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(files(place.path()).len(), 2);
}

#[tokio::test]
async fn links_are_not_followed_out_of_the_root() {
    let place = tempfile::tempdir().unwrap();
    let (root, outside) = (place.path().join("vault"), place.path().join("outside"));
    std::fs::create_dir_all(&root).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("secret"), "s").unwrap();
    std::os::unix::fs::symlink(&outside, root.join("run")).unwrap();
    std::os::unix::fs::symlink(outside.join("secret"), root.join("file")).unwrap();
    let store = open(&root);
    assert_eq!(listed(&*store, "").await.unwrap(), Vec::<String>::new());
    let errors = [
        read(&*store, "run/secret", None).await.unwrap_err(),
        read(&*store, "file", None).await.unwrap_err(),
        store.head("run/secret").await.unwrap_err(),
        create(&*store, "run/new", b"x").await.unwrap_err(),
        store.delete(&["run/secret".to_owned()]).await.unwrap_err(),
        store.copy("run/secret", "b").await.unwrap_err(),
        store.list("run/").try_collect::<Vec<_>>().await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[tokio::test]
async fn a_root_that_is_missing_is_an_outage_and_is_created_by_no_request_but_begin() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("mount");
    let store = open_as_it_is(&root);
    let digest = PartDigest::of(b"x");
    let upload = format!("{}-10", "0".repeat(32));
    let several = ["run/a".to_owned()];
    let requests = [
        ("list", kind(store.list("").try_collect::<Vec<_>>().await)),
        ("head", kind(store.head("a").await)),
        ("read", kind(read(&*store, "a", None).await)),
        ("pending", kind(store.pending_uploads("").await)),
        ("create", kind(create(&*store, "run/a", b"x").await)),
        ("replace", kind(store.replace("run/a", Bytes::from_static(b"x"), &digest).await)),
        ("start", kind(store.start_upload("run/a", 10, DigestAlgorithm::Sha256).await)),
        ("abort", kind(store.abort_upload("run/a", &upload).await)),
        ("delete", kind(store.delete(&several).await)),
        ("sync", kind(store.sync(&several).await)),
        ("copy", kind(store.copy("a", "run/b").await)),
    ];
    for (request, kind) in requests {
        assert_eq!(kind, Some(ErrorKind::Unreachable), "{request}");
        assert!(!root.exists(), "{request}");
    }
    let error = store.head("a").await.unwrap_err();
    assert!(!error.is_transient() && error.hint_text().unwrap().contains("mount"));
    store.begin(ArchivePlace::Anywhere).await.unwrap();
    create(&*store, "run/a", b"x").await.unwrap();
}

#[tokio::test]
async fn a_root_that_goes_away_between_two_parts_is_not_made_again() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("mount");
    let store = open(&root);
    let file = large();
    let upload =
        store.start_upload("run/large", file.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipt = file.send_part(&*store, "run/large", &upload, 0).await.unwrap();
    // As an unmounted filesystem looks, and one that is mounted again.
    std::fs::rename(&root, place.path().join("away")).unwrap();
    let error = file.send_part(&*store, "run/large", &upload, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let error = store
        .complete_upload("run/large", &upload, std::slice::from_ref(&receipt), &file.digest)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(!root.exists());
    std::fs::rename(place.path().join("away"), &root).unwrap();
    let mut receipts = vec![receipt];
    for index in [1, 2] {
        receipts.push(file.send_part(&*store, "run/large", &upload, index).await.unwrap());
    }
    let done = store.complete_upload("run/large", &upload, &receipts, &file.digest).await;
    assert!(matches!(done.unwrap(), Created::Written(_)));
}

#[tokio::test]
async fn an_archive_is_begun_below_a_directory_that_exists_and_nowhere_else() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("not-mounted/vault");
    let error = open_as_it_is(&root).begin(ArchivePlace::Anywhere).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(
        error.to_string(),
        format!(
            "cannot begin an archive: {}: its parent directory {} does not exist",
            root.display(),
            root.parent().unwrap().display()
        )
    );
    assert!(error.hint_text().unwrap().contains("mount"));
    assert!(!root.parent().unwrap().exists());
    std::fs::write(place.path().join("file"), "x").unwrap();
    let store = open_as_it_is(&place.path().join("file"));
    for error in [
        store.begin(ArchivePlace::Anywhere).await.unwrap_err(),
        create(&*store, "a", b"x").await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("not a directory"), "{error}");
    }
}
