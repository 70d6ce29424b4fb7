//! Probes which integrity checks a store enforces by sending requests that it must reject.

use std::time::SystemTime;

use bytes::Bytes;
use futures::TryStreamExt as _;
use serde::{Deserialize, Serialize};
use stepvault_core::keys::{PARTS_PROBE, RunKeys, UNUSUAL_PROBE};
use stepvault_core::{DigestAlgorithm, Error, ErrorKind, FileDigest, PartDigest, Result};

use crate::decorator::Answer as _;
use crate::payload::Payload;
use crate::store::{Created, IgnoredAttribute, ObjectHead, PartReceipt, RemoteStore};

/// The guarantees that a store was observed to enforce. Any other guarantee must not be relied on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
// Seven independent findings, each true or false.
#[allow(clippy::struct_excessive_bools)]
pub struct StoreGuarantees {
    /// The algorithm of the digests that the objects of the probe were sent with.
    pub algorithm: DigestAlgorithm,
    /// The store rejects an object whose bytes do not match the digest sent with them, and stores nothing of it.
    pub checks_object_checksums: bool,
    /// The store rejects such an object if the digest is by SHA-256, as those of records are.
    pub checks_record_checksums: bool,
    /// The store rejects such a part of an upload.
    pub checks_part_checksums: bool,
    /// The store returns checksums that prove its content, for whole objects and for multipart objects.
    pub returns_checksums: bool,
    /// The store never overwrites an object on a create-only write.
    pub honours_create_only: bool,
    /// The store never completes a create-only upload over an existing object.
    pub completes_create_only: bool,
    /// The attributes requested for new objects that the store ignores.
    #[serde(skip)]
    pub ignored_attributes: Vec<IgnoredAttribute>,
    /// The probe left nothing behind. Otherwise the objects are under `.stepvault/probes/` and may be deleted.
    pub cleaned_up: bool,
}

impl StoreGuarantees {
    /// Returns whether the store was found to check the digests by `algorithm` that bytes in `parts` parts are sent with.
    pub fn checks(&self, algorithm: DigestAlgorithm, parts: usize) -> bool {
        match parts {
            1 if algorithm == DigestAlgorithm::Sha256 => self.checks_record_checksums,
            _ if algorithm != self.algorithm => false,
            0 | 1 => self.checks_object_checksums,
            _ => self.checks_part_checksums,
        }
    }
}

/// Sends small objects under keys of its own, some of them with wrong digests, and checks the results. Their digests are
/// by `algorithm`, and for another one than SHA-256 one object more is sent with a wrong SHA-256. Needs no permission to
/// delete, but leaves two small objects behind without it.
///
/// # Errors
/// When the store does not answer. A store that violates its guarantees is not an error.
pub async fn probe(
    store: &dyn RemoteStore,
    keys: &RunKeys,
    algorithm: DigestAlgorithm,
) -> Result<StoreGuarantees> {
    let probe = Probe::new(store, keys, algorithm);
    let outcome = probe.run().await;
    let cleaned_up = probe.clean_up().await.is_ok();
    outcome.map(|trust| StoreGuarantees { cleaned_up, ..trust })
}

/// The individual checks, for callers that need to know which of them a store fails. Run them in the order in which
/// they are declared, and clean up at the end, whatever the results.
#[derive(Debug)]
pub struct Probe<'a> {
    store: &'a dyn RemoteStore,
    algorithm: DigestAlgorithm,
    /// Prefix of everything that probes of this run write; some stores list only prefixes that end in a slash.
    directory: String,
    /// Prefix of everything that this probe writes.
    place: String,
    wrong: String,
    whole: String,
    parts: String,
    dropped: String,
    unusual: String,
}

const BODY: &[u8] = b"stepvault probe: checks what this store enforces.\n";
const OTHER_BODY: &[u8] = b"stepvault probe: must not replace the first object\n";

fn sent(body: &'static [u8]) -> Payload {
    Bytes::from_static(body).into()
}

/// Returns a digest of `body`'s length that matches no payload of the probe.
fn wrong_digest(algorithm: DigestAlgorithm, body: &[u8]) -> PartDigest {
    let mut other = body.to_vec();
    other.reverse();
    PartDigest::by(algorithm, &other)
}

/// Returns whether a store refused a request with a wrong digest. Stores have several codes for it; what is wrong with the
/// request otherwise, the next one shows, which differs in its digest alone.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Failed) && !error.is_transient()
}

fn proves(head: &ObjectHead, digest: &PartDigest) -> bool {
    head.info.size_bytes == digest.size_bytes
        && head.checksum.proves(&FileDigest::from_parts(&[*digest]), &[digest.content]) == Some(true)
}

impl<'a> Probe<'a> {
    /// Creates a probe under keys of its own.
    pub fn new(store: &'a dyn RemoteStore, keys: &RunKeys, algorithm: DigestAlgorithm) -> Self {
        let place = keys.probe(&crate::random::identity());
        Self {
            store,
            algorithm,
            directory: keys.probe(""),
            wrong: format!("{place}-wrong"),
            whole: format!("{place}-whole"),
            parts: format!("{place}-{PARTS_PROBE}"),
            dropped: format!("{place}-dropped"),
            unusual: format!("{place}-{UNUSUAL_PROBE}"),
            place,
        }
    }

    fn digest(&self, body: &[u8]) -> PartDigest {
        PartDigest::by(self.algorithm, body)
    }

    /// Asks for what does not depend on another answer at the same time. Each chain ends before an error returns, so that it
    /// leaves no pending upload.
    async fn run(&self) -> Result<StoreGuarantees> {
        let wrong = async {
            let object = self.refuses_wrong_object().await?;
            let record = match self.algorithm {
                DigestAlgorithm::Sha256 => object,
                DigestAlgorithm::Blake3 => self.refuses_wrong(DigestAlgorithm::Sha256).await?,
            };
            Ok::<_, Error>((object, record))
        };
        let objects = async {
            self.creates().await?;
            let (head, created, completed) = tokio::join!(
                self.head(&self.whole),
                self.refuses_second_create(),
                self.completion_is_exclusive()
            );
            let head = head?;
            // A store that overwrites may have the other one already.
            let is_proven = [BODY, OTHER_BODY].iter().any(|body| proves(&head, &self.digest(body)));
            Ok::<_, Error>((is_proven, created?, completed?))
        };
        let parts = async {
            let kept = self.keeps_parts().await?;
            Ok::<_, Error>((kept, self.ignored_attributes().await?))
        };
        let (wrong, objects, parts) = tokio::join!(wrong, objects, parts);
        let (checks_object_checksums, checks_record_checksums) = wrong?;
        let (object_proven, honours_create_only, completes_create_only) = objects?;
        let ((checks_part_checksums, parts_proven), ignored_attributes) = parts?;
        Ok(StoreGuarantees {
            algorithm: self.algorithm,
            checks_object_checksums,
            checks_record_checksums,
            checks_part_checksums,
            returns_checksums: object_proven && parts_proven,
            honours_create_only,
            completes_create_only,
            ignored_attributes,
            cleaned_up: false,
        })
    }

    /// Writes an object. Returns its modification time by the store's clock, if the store reports it.
    pub async fn creates(&self) -> Result<Option<SystemTime>> {
        // None if the answer to an earlier attempt was lost.
        Ok(self.create(&self.whole, BODY).await?.written_at())
    }

    /// Returns whether the object exists with the length with which it was written.
    pub async fn finds(&self) -> Result<bool> {
        let head = self.store.head(&self.whole).await?;
        Ok(head.is_some_and(|head| head.info.size_bytes == BODY.len() as u64))
    }

    /// Returns whether a second create leaves the object unchanged, because the store refuses it.
    pub async fn refuses_second_create(&self) -> Result<bool> {
        let again = self.create(&self.whole, OTHER_BODY).await?;
        Ok(again == Created::Exists && self.store.capabilities().creates_atomically)
    }

    /// Returns whether the object's bytes are one of the two that were sent.
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

    /// Returns whether the object is listed.
    pub async fn lists(&self) -> Result<bool> {
        self.is_listed(&self.whole).await
    }

    async fn is_listed(&self, key: &str) -> Result<bool> {
        let listed: Vec<_> = self.store.list(&self.directory).try_collect().await?;
        Ok(listed.iter().any(|info| info.key == key))
    }

    /// Returns whether an object with an unusual name is listed under exactly that name.
    pub async fn keeps_names(&self) -> Result<bool> {
        self.create(&self.unusual, BODY).await?;
        self.is_listed(&self.unusual).await
    }

    /// Returns whether an object with a wrong digest is rejected.
    pub async fn refuses_wrong_object(&self) -> Result<bool> {
        self.refuses_wrong(self.algorithm).await
    }

    async fn refuses_wrong(&self, algorithm: DigestAlgorithm) -> Result<bool> {
        let wrong = wrong_digest(algorithm, BODY);
        match self.store.create(&self.wrong, sent(BODY), &wrong).await {
            Ok(_) => Ok(false),
            // Some servers reject the request but store the bytes.
            Err(error) if is_refusal(&error) => Ok(self.store.head(&self.wrong).await?.is_none()),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a part with a wrong digest is rejected, and whether the finished object's checksum proves it. An
    /// error before either is known means that multipart uploads do not work at all.
    pub async fn keeps_parts(&self) -> Result<(bool, bool)> {
        let upload = self.start(&self.parts, BODY).await?;
        let sent = self.send_parts(&upload).await;
        if sent.is_err() {
            // A remaining pending upload is removed by `gc`; the first error is more useful.
            let _ = self.store.abort_upload(&self.parts, &upload).await;
        }
        sent
    }

    async fn send_parts(&self, upload: &str) -> Result<(bool, bool)> {
        let wrong = wrong_digest(self.algorithm, BODY);
        let part = self.store.upload_part(&self.parts, upload, 0, sent(BODY), &wrong);
        let refused = match part.await {
            Ok(_) => false,
            Err(error) if is_refusal(&error) => true,
            Err(error) => return Err(error),
        };
        let receipt = self.send_part(&self.parts, upload, BODY).await?;
        let digest = receipt.digest;
        self.complete(&self.parts, upload, receipt).await?;
        Ok((refused, proves(&self.head(&self.parts).await?, &digest)))
    }

    /// Returns the attributes requested for new objects that the object in parts does not have. An error is about the
    /// request: an attribute that the store refuses is an error of the write.
    pub async fn ignored_attributes(&self) -> Result<Vec<IgnoredAttribute>> {
        self.store.ignored_attributes(&self.parts).await
    }

    /// Returns whether completing an upload leaves an existing object unchanged, if the store claims to support this.
    pub async fn completion_is_exclusive(&self) -> Result<bool> {
        if !self.store.capabilities().multipart_is_create_only {
            return Ok(true);
        }
        let upload = self.start(&self.whole, OTHER_BODY).await?;
        let completed = match self.send_part(&self.whole, &upload, OTHER_BODY).await {
            Ok(receipt) => self.complete(&self.whole, &upload, receipt).await,
            Err(error) => Err(error),
        };
        if !matches!(completed, Ok(Created::Written(_))) {
            let _ = self.store.abort_upload(&self.whole, &upload).await;
        }
        Ok(completed? == Created::Exists && self.store.capabilities().creates_atomically)
    }

    /// Returns whether an upload with a part is listed as pending, and whether it can be aborted and is no longer
    /// pending afterwards.
    pub async fn lists_and_aborts(&self) -> Result<(bool, bool)> {
        let upload = self.start(&self.dropped, BODY).await?;
        let sent = self.send_part(&self.dropped, &upload, BODY).await;
        let listed = self.is_pending(&upload).await;
        self.store.abort_upload(&self.dropped, &upload).await?;
        sent?;
        Ok((listed?, !self.is_pending(&upload).await?))
    }

    async fn is_pending(&self, upload: &str) -> Result<bool> {
        let pending = self.store.pending_uploads(&self.directory).await?;
        Ok(pending.iter().any(|pending| pending.upload == upload))
    }

    /// Returns whether a deleted object no longer exists.
    pub async fn deletes(&self) -> Result<bool> {
        self.store.delete(std::slice::from_ref(&self.whole)).await?;
        Ok(self.store.head(&self.whole).await?.is_none())
    }

    /// Returns whether several objects are deleted by one request. `None` for a kind of store that has no such request.
    pub async fn deletes_together(&self) -> Result<Option<bool>> {
        if !self.store.capabilities().deletes_in_batches {
            return Ok(None);
        }
        self.store.delete(&[&self.parts, &self.unusual].map(Clone::clone)).await?;
        let are_gone = self.store.head(&self.parts).await?.is_none();
        Ok(Some(are_gone && self.store.capabilities().deletes_in_batches))
    }

    async fn create(&self, key: &str, body: &'static [u8]) -> Result<Created> {
        self.store.create(key, sent(body), &self.digest(body)).await
    }

    async fn start(&self, key: &str, body: &[u8]) -> Result<String> {
        let size_bytes = body.len() as u64;
        self.store.start_upload(key, size_bytes, self.algorithm).await
    }

    async fn complete(&self, key: &str, upload: &str, receipt: PartReceipt) -> Result<Created> {
        let digest = FileDigest::from_parts(&[receipt.digest]);
        self.store.complete_upload(key, upload, &[receipt], &digest).await
    }

    async fn send_part(&self, key: &str, upload: &str, body: &'static [u8]) -> Result<PartReceipt> {
        self.store.upload_part(key, upload, 0, sent(body), &self.digest(body)).await
    }

    async fn head(&self, key: &str) -> Result<ObjectHead> {
        self.store.head(key).await?.ok_or_else(|| {
            Error::new(ErrorKind::Failed, "cannot probe the store")
                .on(format!("{}/{key}", self.store.url()))
                .because("an object that was just written does not exist")
        })
    }

    /// Removes what the probe wrote. After an error something may be left.
    pub async fn clean_up(&self) -> Result<()> {
        self.store.delete(&[&self.wrong, &self.whole, &self.parts, &self.unusual].map(Clone::clone)).await
    }

    /// Aborts the probe's own pending uploads, if it was interrupted.
    pub async fn drop_uploads(&self) -> Result<()> {
        for pending in self.store.pending_uploads(&self.directory).await? {
            if !pending.key.starts_with(&self.place) {
                continue;
            }
            self.store.abort_upload(&pending.key, &pending.upload).await?;
        }
        Ok(())
    }
}
