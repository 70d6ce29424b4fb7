//! Finds out whether a store keeps its word, by giving it reasons to refuse.

use std::time::SystemTime;

use bytes::Bytes;
use futures::TryStreamExt as _;
use stepvault_core::digest::{Crc32c, FileDigest, PartDigest, Sha256Digest};
use stepvault_core::keys::RunKeys;
use stepvault_core::{Error, ErrorKind, Result};

use crate::payload::Payload;
use crate::store::{Created, ObjectHead, PartReceipt, RemoteStore};

/// What a store was seen to do. What it was not seen to do, it must not be relied on for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// Five findings, each yes or no, and independent of each other.
#[allow(clippy::struct_excessive_bools)]
pub struct Trust {
    /// It refuses an object whose bytes do not match the digest sent with them, and keeps nothing of it.
    pub checks_object_checksums: bool,
    /// It refuses such a part of an upload.
    pub checks_part_checksums: bool,
    /// It tells checksums that prove what it holds, for whole objects and for those sent in parts.
    pub returns_checksums: bool,
    /// It never writes over an object when it is asked to create one.
    pub honours_create_only: bool,
    /// Nothing of the probe was left behind. What is left stands under `.stepvault/probes/`, and may be deleted.
    pub cleaned_up: bool,
}

impl Trust {
    /// Whether an acknowledged upload is proven without reading it back.
    pub fn proves_uploads(&self) -> bool {
        self.checks_object_checksums && self.checks_part_checksums && self.returns_checksums
    }
}

/// Sends small objects under the probes' own keys, some of them with wrong digests, and looks at what becomes of
/// them. Needs no right to delete, but leaves two small objects behind without it.
///
/// # Errors
/// Whatever keeps the store from answering; that a store lies is no error.
pub async fn probe(store: &dyn RemoteStore, keys: &RunKeys) -> Result<Trust> {
    let probe = Probe::new(store, keys);
    let outcome = probe.run().await;
    let cleaned_up = probe.clean_up().await.is_ok();
    outcome.map(|trust| Trust { cleaned_up, ..trust })
}

/// The questions one by one, for whoever wants to know which of them a store does not answer. Ask in the order in
/// which they stand here, and clean up at the end, whatever came of them.
#[derive(Debug)]
pub struct Probe<'a> {
    store: &'a dyn RemoteStore,
    /// Everything that this probe writes begins with this.
    place: String,
    wrong: String,
    whole: String,
    parts: String,
    dropped: String,
}

const BODY: &[u8] = b"stepvault looks whether this store keeps its word\n";
const OTHER_BODY: &[u8] = b"stepvault looks whether this store breaks its word\n";

fn sent(body: &'static [u8]) -> Payload {
    Bytes::from_static(body).into()
}

/// A digest of `body`'s length that nothing has.
fn wrong_digest(body: &[u8]) -> PartDigest {
    let mut other = body.to_vec();
    other.reverse();
    PartDigest {
        sha256: Sha256Digest::of(&other),
        crc32c: Crc32c::of(&other),
        size_bytes: body.len() as u64,
    }
}

fn proves(head: &ObjectHead, digest: &PartDigest) -> bool {
    head.info.size_bytes == digest.size_bytes
        && head
            .checksum
            .proves(&FileDigest::from_parts(&[*digest]), &[digest.sha256])
            == Some(true)
}

impl<'a> Probe<'a> {
    /// A probe under keys of its own.
    pub fn new(store: &'a dyn RemoteStore, keys: &RunKeys) -> Self {
        let place = keys.probe(&crate::random::identity());
        Self {
            store,
            wrong: format!("{place}-wrong"),
            whole: format!("{place}-whole"),
            parts: format!("{place}-parts"),
            dropped: format!("{place}-dropped"),
            place,
        }
    }

    async fn run(&self) -> Result<Trust> {
        let checks_object_checksums = self.refuses_wrong_object().await?;
        let (object_proven, create_is_exclusive) = self.keeps_object().await?;
        let (checks_part_checksums, parts_proven) = self.keeps_parts().await?;
        Ok(Trust {
            checks_object_checksums,
            checks_part_checksums,
            returns_checksums: object_proven && parts_proven,
            honours_create_only: create_is_exclusive && self.completion_is_exclusive().await?,
            cleaned_up: false,
        })
    }

    /// Whether an object's checksum proves it, and whether a second create leaves it alone.
    async fn keeps_object(&self) -> Result<(bool, bool)> {
        self.creates().await?;
        let head = self.head(&self.whole).await?;
        let create_is_exclusive = self.refuses_second_create().await?;
        Ok((proves(&head, &PartDigest::of(BODY)), create_is_exclusive))
    }

    /// Writes an object; its time of writing by the store's clock, where the store tells one.
    pub async fn creates(&self) -> Result<Option<SystemTime>> {
        let created = self
            .store
            .create(&self.whole, sent(BODY), &PartDigest::of(BODY))
            .await?;
        Ok(match created {
            Created::Written(head) => Some(head.info.modified).filter(|time| *time > SystemTime::UNIX_EPOCH),
            // The answer to an earlier try was lost.
            Created::Exists => None,
        })
    }

    /// Whether the object is there, with the length it was written with.
    pub async fn finds(&self) -> Result<bool> {
        let head = self.store.head(&self.whole).await?;
        Ok(head.is_some_and(|head| head.info.size_bytes == BODY.len() as u64))
    }

    /// Whether a second create of the object leaves it alone.
    pub async fn refuses_second_create(&self) -> Result<bool> {
        let other = PartDigest::of(OTHER_BODY);
        let again = self.store.create(&self.whole, sent(OTHER_BODY), &other).await?;
        Ok(again == Created::Exists)
    }

    /// Whether the object's bytes come back as one of the two that were sent.
    pub async fn reads_back(&self) -> Result<bool> {
        let pieces = self.store.read(&self.whole, None).await?;
        let most_bytes = OTHER_BODY.len();
        let bytes = pieces
            .try_fold(Vec::new(), |mut bytes: Vec<u8>, piece| async move {
                bytes.extend_from_slice(&piece);
                bytes.truncate(most_bytes + 1);
                Ok(bytes)
            })
            .await?;
        Ok(bytes == BODY || bytes == OTHER_BODY)
    }

    /// Whether the object is listed.
    pub async fn lists(&self) -> Result<bool> {
        let listed: Vec<_> = self.store.list(&self.place).try_collect().await?;
        Ok(listed.iter().any(|info| info.key == self.whole))
    }

    /// Whether an object with a wrong digest is refused.
    pub async fn refuses_wrong_object(&self) -> Result<bool> {
        match self
            .store
            .create(&self.wrong, sent(BODY), &wrong_digest(BODY))
            .await
        {
            Ok(_) => Ok(false),
            // Some servers refuse the request and keep the bytes all the same.
            Err(error) if error.kind() == ErrorKind::Damaged => {
                Ok(self.store.head(&self.wrong).await?.is_none())
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a part with a wrong digest is refused, and whether the finished object's checksum proves it. Before
    /// anything is known of either, an error tells that there are no uploads in parts at all.
    pub async fn keeps_parts(&self) -> Result<(bool, bool)> {
        let upload = self.store.start_upload(&self.parts, BODY.len() as u64).await?;
        let sent = self.send_parts(&upload).await;
        if sent.is_err() {
            // What stays is a pending upload, which the sweep finds; the first error tells more.
            let _ = self.store.abort_upload(&self.parts, &upload).await;
        }
        sent
    }

    async fn send_parts(&self, upload: &str) -> Result<(bool, bool)> {
        let wrong = wrong_digest(BODY);
        let refused = match self
            .store
            .upload_part(&self.parts, upload, 0, sent(BODY), &wrong)
            .await
        {
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::Damaged => true,
            Err(error) => return Err(error),
        };
        let receipt = self.send_part(&self.parts, upload, BODY).await?;
        let digest = receipt.digest;
        self.store
            .complete_upload(
                &self.parts,
                upload,
                &[receipt],
                &FileDigest::from_parts(&[digest]),
            )
            .await?;
        Ok((refused, proves(&self.head(&self.parts).await?, &digest)))
    }

    /// Whether completing an upload leaves an existing object alone, where the store claims so.
    pub async fn completion_is_exclusive(&self) -> Result<bool> {
        if !self.store.abilities().multipart_is_create_only {
            return Ok(true);
        }
        let upload = self
            .store
            .start_upload(&self.whole, OTHER_BODY.len() as u64)
            .await?;
        let completed = match self.send_part(&self.whole, &upload, OTHER_BODY).await {
            Ok(receipt) => {
                let digest = FileDigest::from_parts(&[receipt.digest]);
                self.store
                    .complete_upload(&self.whole, &upload, &[receipt], &digest)
                    .await
            }
            Err(error) => Err(error),
        };
        if !matches!(completed, Ok(Created::Written(_))) {
            let _ = self.store.abort_upload(&self.whole, &upload).await;
        }
        Ok(completed? == Created::Exists)
    }

    /// Whether an upload with a part can be given up, and is no longer pending then.
    pub async fn aborts(&self) -> Result<bool> {
        let upload = self.store.start_upload(&self.dropped, BODY.len() as u64).await?;
        let sent = self.send_part(&self.dropped, &upload, BODY).await;
        self.store.abort_upload(&self.dropped, &upload).await?;
        sent?;
        let pending = self.store.pending_uploads(&self.dropped).await?;
        Ok(pending.iter().all(|pending| pending.upload != upload))
    }

    /// Whether an object that is deleted is gone.
    pub async fn deletes(&self) -> Result<bool> {
        self.store.delete(std::slice::from_ref(&self.whole)).await?;
        Ok(self.store.head(&self.whole).await?.is_none())
    }

    async fn send_part(&self, key: &str, upload: &str, body: &'static [u8]) -> Result<PartReceipt> {
        self.store
            .upload_part(key, upload, 0, sent(body), &PartDigest::of(body))
            .await
    }

    async fn head(&self, key: &str) -> Result<ObjectHead> {
        self.store.head(key).await?.ok_or_else(|| {
            Error::new(ErrorKind::Failed, "cannot probe the store")
                .on(format!("{}/{key}", self.store.url()))
                .because("an object that was just written is not there")
        })
    }

    /// Removes what it wrote. After an error something may be left.
    pub async fn clean_up(&self) -> Result<()> {
        self.store
            .delete(&[self.wrong.clone(), self.whole.clone(), self.parts.clone()])
            .await
    }

    /// Gives up what uploads of its own are pending, when it was cut off in the middle.
    pub async fn drop_uploads(&self) -> Result<()> {
        for pending in self.store.pending_uploads(&self.place).await? {
            self.store.abort_upload(&pending.key, &pending.upload).await?;
        }
        Ok(())
    }
}
