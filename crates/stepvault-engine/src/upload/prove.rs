//! Proves what was sent: each object when it is complete, and that the remote lists all of them.

use stepvault_core::digest::{ContentDigest, DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::path::RelativePath;
use stepvault_core::remote_settings::ReadBack;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::journal::{Journal, JournalRecord};
use stepvault_local::seal_record::SealRecord;
use stepvault_remote::store::{Created, ObjectHead, ObjectInfo};

use super::parts::{FileUpload, MAX_ROUNDS, OtherWriters};
use super::session::UploadSession;
use crate::tier::run_remote::WrittenRecord;

impl FileUpload {
    pub(super) async fn prove_created(
        &self,
        created: Created,
        digest: &FileDigest,
        parts: &[PartDigest],
    ) -> Result<()> {
        let head = match created {
            Created::Written(head) => Some(head),
            Created::Exists => None,
        };
        self.prove(head, digest, parts).await
    }

    /// Proves that the object holds the file: by the store's checksum if it can be trusted, otherwise byte for byte.
    pub(super) async fn prove(
        &self,
        head: Option<ObjectHead>,
        digest: &FileDigest,
        parts: &[PartDigest],
    ) -> Result<()> {
        let (remote, key) = (&self.session.remote, &self.key);
        let subject = remote.describe(key);
        let damaged = |why: &str| {
            Error::new(ErrorKind::Damaged, "an uploaded object differs from what was sent")
                .on(&subject)
                .because(why)
        };
        let head = match head {
            Some(head) => head,
            None => remote.store.head(key).await?.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "an uploaded object is missing").on(&subject)
            })?,
        };
        if head.info.size_bytes != digest.size_bytes {
            return Err(damaged(&format!(
                "it has {} bytes, but {} were sent",
                head.info.size_bytes, digest.size_bytes
            )));
        }
        let contents: Vec<ContentDigest> = parts.iter().map(|part| part.content).collect();
        match head.checksum.proves(digest, &contents) {
            Some(false) => return Err(damaged("the store's checksum differs")),
            Some(true) if !self.session.must_read_back(self.algorithm, parts.len()) => return Ok(()),
            _ => {}
        }
        let found = remote.digest_object(key, digest.size_bytes, self.algorithm).await?;
        if found == parts {
            return Ok(());
        }
        Err(damaged("the bytes read back differ"))
    }

    /// Whether the object under the key was written by this upload and may therefore be deleted: objects created by
    /// another writer must not be (S1).
    pub(super) async fn is_own_object(&self, written: Option<ObjectInfo>) -> Result<bool> {
        let Some(written) = written else {
            return Ok(false);
        };
        let found = self.session.remote.store.head(&self.key).await?;
        Ok(found.is_none_or(|head| match (&head.info.version, &written.version) {
            (Some(found), Some(written)) => found == written,
            _ => true,
        }))
    }

    /// Returns the error for a key that holds different bytes. They must not be deleted: their writer may have proved
    /// them already and be about to commit them, or have named them in a part.
    pub(super) fn key_taken(&self, found: &Error) -> Error {
        if self.others == OtherWriters::None {
            return Error::new(ErrorKind::Conflict, "cannot upload a file: its key is taken")
                .on(self.session.remote.describe(&self.key))
                .because(format!("another upload wrote it ({found})"))
                .hint("push it as a new attempt with --attempt")
                .name_taken();
        }
        Error::new(ErrorKind::Conflict, "cannot upload a file: another node has a different file under the same path")
            .on(&self.file.path)
            .because(found)
            .hint(
                "let the trainer write this file on one node only or under a different name on each node, or give \
                 each node its own run",
            )
    }
}

impl UploadSession {
    /// Whether the bytes of an object in `parts` parts have to be read back although the store returned a checksum.
    pub(super) fn must_read_back(&self, algorithm: DigestAlgorithm, parts: usize) -> bool {
        let checked = self.guarantees.checks(algorithm, parts);
        // A store may turn out to accept no checksums after it was probed.
        let sends_them = self.remote.store.capabilities().checks_checksums;
        self.remote.settings.read_back == ReadBack::Always || !checked || !sends_them
    }

    /// Proves a record as a file of one part is proved: by the store's answer if its checksums can be trusted, otherwise
    /// byte for byte. Returns its bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the key holds a different record.
    pub(super) async fn prove_record(&self, written: WrittenRecord) -> Result<Vec<u8>> {
        match written.proved().filter(|_| !self.must_read_back(DigestAlgorithm::Sha256, 1)) {
            Some(bytes) => Ok(bytes),
            None => written.confirm(&self.remote).await,
        }
    }

    /// Returns this node's sent files that the remote does not list with their size: one LIST.
    ///
    /// # Invariants
    /// A lifecycle rule or a clean-up job may have deleted files that an earlier call proved: no commit names a file
    /// before it was listed again (S2).
    pub(super) async fn vanished_files(&self, record: &SealRecord) -> Result<Vec<RelativePath>> {
        let listed = self.present_sizes(record).await?;
        let mut vanished = Vec::new();
        for file in record.own_files() {
            let key = self.remote.keys.data(&record.name, record.id, &file.path)?;
            if listed.get(&key) != Some(&file.size_bytes) {
                vanished.push(file.path.clone());
            }
        }
        Ok(vanished)
    }

    /// Removes files from the journal, so that the next round sends them again. Creation stays conditional: an object
    /// of a different size under a file's key belongs to another writer, and the round ends with a conflict.
    ///
    /// # Errors
    /// In the last round: files are then deleted as fast as they are sent.
    pub(super) fn forget_vanished(
        &self,
        record: &SealRecord,
        journal: &Journal,
        vanished: &[RelativePath],
        round: usize,
    ) -> Result<()> {
        let (count, place) = (vanished.len(), self.remote.step_location(&record.name, record.id));
        if round == MAX_ROUNDS {
            return Err(Error::new(ErrorKind::Failed, format!("cannot commit {}", record.id))
                .on(place)
                .because(format!(
                    "{count} uploaded files are missing or have a different size each time they are listed"
                ))
                .hint(
                    "look for a lifecycle rule or a clean-up job that deletes objects; run 'stepvault doctor' to \
                     check whether the store changes unusual names in listings",
                ));
        }
        let message = format!(
            "{}: {count} uploaded files of {} are missing from {place} or have a different size: sending them again \
             (look for a lifecycle rule or a clean-up job that deletes objects)",
            self.remote.name(),
            record.id
        );
        self.observer.warn(&message);
        for path in vanished {
            journal.append(&JournalRecord::FileForgotten { path: path.clone() })?;
        }
        Ok(())
    }
}
