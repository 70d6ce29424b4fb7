//! Finds out whether a store keeps its word, by giving it reasons to refuse.

use bytes::Bytes;
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
    let id = crate::random::identity();
    let probe = Probe {
        store,
        wrong: keys.probe(&format!("{id}-wrong")),
        whole: keys.probe(&format!("{id}-whole")),
        parts: keys.probe(&format!("{id}-parts")),
    };
    let outcome = probe.run().await;
    let cleaned_up = probe.clean_up().await;
    outcome.map(|trust| Trust { cleaned_up, ..trust })
}

struct Probe<'a> {
    store: &'a dyn RemoteStore,
    wrong: String,
    whole: String,
    parts: String,
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

impl Probe<'_> {
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

    async fn refuses_wrong_object(&self) -> Result<bool> {
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

    /// Whether an object's checksum proves it, and whether a second create leaves it alone.
    async fn keeps_object(&self) -> Result<(bool, bool)> {
        let digest = PartDigest::of(BODY);
        self.store.create(&self.whole, sent(BODY), &digest).await?;
        let head = self.head(&self.whole).await?;
        let other = PartDigest::of(OTHER_BODY);
        let again = self.store.create(&self.whole, sent(OTHER_BODY), &other).await?;
        Ok((proves(&head, &digest), again == Created::Exists))
    }

    /// Whether a part with a wrong digest is refused, and whether the finished object's checksum proves it.
    async fn keeps_parts(&self) -> Result<(bool, bool)> {
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
    async fn completion_is_exclusive(&self) -> Result<bool> {
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

    /// False when something may be left.
    async fn clean_up(&self) -> bool {
        self.store
            .delete(&[self.wrong.clone(), self.whole.clone(), self.parts.clone()])
            .await
            .is_ok()
    }
}
