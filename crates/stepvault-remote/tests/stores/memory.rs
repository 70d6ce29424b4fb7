//! The stores behind `object_store`, by the one that lives in this process.

use std::sync::Arc;

use bytes::Bytes;
use stepvault_core::ErrorKind;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::ids::RemoteName;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_remote::store::{Created, RemoteStore, StoredChecksum};

use crate::support::{create, listed, read, send_part, written};

fn open(url: &str) -> Arc<dyn RemoteStore> {
    stepvault_remote::generic::open_memory(&RemoteSettings::new(
        RemoteName::new("m").unwrap(),
        url.parse().unwrap(),
    ))
    .unwrap()
}

#[tokio::test]
async fn two_opens_of_one_name_see_the_same_objects() {
    let (one, other, elsewhere) =
        (open("memory://shared"), open("memory://shared/sub"), open("memory://another"));
    assert!(matches!(create(&*one, "sub/a", b"x").await.unwrap(), Created::Written(_)));
    assert_eq!(read(&*other, "a", None).await.unwrap(), b"x");
    assert_eq!(create(&*other, "a", b"y").await.unwrap(), Created::Exists);
    assert_eq!(elsewhere.head("sub/a").await.unwrap(), None);
    assert_eq!(listed(&*other, "").await.unwrap(), ["a"]);
}

#[tokio::test]
async fn odd_keys_are_kept_and_prefixes_are_text() {
    let store = open("memory://odd/team/vault");
    for key in ["k/50%", "k/a%2Fb", "k/x#y?z", "k/ü ☃", "k2/a", "k.txt"] {
        create(&*store, key, b"abc").await.unwrap();
        assert_eq!(read(&*store, key, Some(1..3)).await.unwrap(), b"bc");
    }
    assert_eq!(listed(&*store, "k/").await.unwrap().len(), 4);
    assert_eq!(listed(&*store, "k").await.unwrap().len(), 6);
    assert_eq!(listed(&*store, "k/5").await.unwrap(), ["k/50%"]);
    store.delete(&["k/50%".to_owned(), "none".to_owned()]).await.unwrap();
    assert_eq!(store.head("k/50%").await.unwrap(), None);
}

#[tokio::test]
async fn an_empty_range_beyond_the_end_is_damage() {
    let store = open("memory://ranges");
    create(&*store, "a", b"abc").await.unwrap();
    let error = read(&*store, "a", Some(9..9)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}

#[tokio::test]
async fn uploads_complete_once_and_never_replace() {
    let store = open("memory://uploads");
    let parts = [Bytes::from_static(b"one "), Bytes::from_static(b"two")];
    let digests: Vec<_> = parts.iter().map(|part| PartDigest::of(part)).collect();
    let digest = FileDigest::from_parts(&digests);
    let upload = store.start_upload("big", 7, DigestAlgorithm::Sha256).await.unwrap();
    let mut receipts = Vec::new();
    for (index, part) in (0..).zip(&parts) {
        receipts.push(send_part(&*store, "big", &upload, index, part).await.unwrap());
    }
    let head = written(store.complete_upload("big", &upload, &receipts, &digest).await.unwrap());
    assert_eq!((head.info.size_bytes, head.checksum), (7, StoredChecksum::None));
    assert_eq!(store.complete_upload("big", &upload, &receipts, &digest).await.unwrap(), Created::Exists);
    store.abort_upload("big", &upload).await.expect("gone is no error");
    let error = send_part(&*store, "big", &upload, 0, &parts[0]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");

    let upload = store.start_upload("short", 7, DigestAlgorithm::Sha256).await.unwrap();
    let receipt = send_part(&*store, "short", &upload, 0, &parts[0]).await.unwrap();
    let error = store.complete_upload("short", &upload, &[receipt], &digest).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}

#[test]
fn azure_without_an_account_says_what_to_set() {
    if std::env::vars_os().any(|(name, _)| name.to_string_lossy().starts_with("AZURE_")) {
        return;
    }
    let mut settings =
        RemoteSettings::new(RemoteName::new("m").unwrap(), "az://container/p".parse().unwrap());
    let error = stepvault_remote::generic::open_azure(&settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(
        error.to_string(),
        "cannot open the remote: az://container/p: Generic MicrosoftAzure error: Account must be specified"
    );
    assert!(error.hint_text().unwrap().starts_with("set AZURE_STORAGE_ACCOUNT_NAME"));
    settings.storage_class = Some("Cool".to_owned());
    let error = stepvault_remote::generic::open_azure(&settings).unwrap_err();
    assert!(error.to_string().ends_with("it does not support the option storage-class"), "{error}");
    settings.storage_class = None;
    settings.endpoint = Some("http://10.0.0.1:10000".to_owned());
    assert_eq!(stepvault_remote::generic::open_azure(&settings).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn other_schemes_are_refused() {
    let settings = RemoteSettings::new(RemoteName::new("m").unwrap(), "file:///x".parse().unwrap());
    for open in [stepvault_remote::generic::open_memory, stepvault_remote::generic::open_azure] {
        assert_eq!(open(&settings).unwrap_err().kind(), ErrorKind::Usage);
    }
}
