//! Bytes with digests that are not theirs.

use bytes::Bytes;
use stepvault_core::Result;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_remote::store::{Created, RemoteStore};

use crate::support::{File, bytes, read};

/// What all of them send.
pub(crate) fn sent() -> Bytes {
    bytes(1_000, 1)
}

/// The digest of other bytes of the same length.
pub(crate) fn digest() -> PartDigest {
    PartDigest::of(&bytes(1_000, 2))
}

/// A whole object with a wrong digest.
pub(crate) async fn object(store: &dyn RemoteStore, key: &str) -> Result<Created> {
    store.create(key, sent().into(), &digest()).await
}

/// An upload whose only part has a wrong digest, completed with that digest.
pub(crate) async fn part(store: &dyn RemoteStore, key: &str) -> Result<Created> {
    let upload = store.start_upload(key, 1_000, DigestAlgorithm::Sha256).await?;
    let receipt = store.upload_part(key, &upload, 0, sent().into(), &digest()).await?;
    let whole = FileDigest::from_parts(&[digest()]);
    store.complete_upload(key, &upload, &[receipt], &whole).await
}

/// An upload of right parts, completed with a digest that is not theirs.
pub(crate) async fn whole(store: &dyn RemoteStore, key: &str) -> Result<Created> {
    let file = File::new(1_000, 1);
    let upload = file.start(store, key).await?;
    let receipts = file.send(store, key, &upload).await?;
    let other = FileDigest::from_parts(&[digest()]);
    store.complete_upload(key, &upload, &receipts, &other).await
}

/// Fails unless the store took what it should have refused, and nothing that it says of it passes for a proof.
pub(crate) async fn assert_taken_and_unproven(store: &dyn RemoteStore, key: &str, outcome: Result<Created>) {
    let Ok(Created::Written(written)) = outcome else {
        panic!("{key}: the store no longer takes it: {outcome:?}");
    };
    assert_unproven(store, key).await;
    assert_ne!(written.checksum.proves(&claimed(), &[digest().content]), Some(true), "{key}");
}

/// Fails unless the bytes with a wrong digest stand there, and the store's word does not make them right.
pub(crate) async fn assert_unproven(store: &dyn RemoteStore, key: &str) {
    let head = store.head(key).await.unwrap().expect("the object");
    assert_ne!(head.checksum.proves(&claimed(), &[digest().content]), Some(true), "{key}: {head:?}");
    let body = Bytes::from(read(store, key, None).await.unwrap());
    assert_eq!(body, sent(), "{key}");
    assert_ne!(PartDigest::of(&body), digest(), "{key}: reading it back shows it");
}

fn claimed() -> FileDigest {
    FileDigest::from_parts(&[digest()])
}
