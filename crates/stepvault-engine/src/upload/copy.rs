//! Copies a file, or a part of one, that the store already has. Its local bytes are still read and hashed, and the copy
//! is proved like data that was sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stepvault_core::digest::{FileDigest, PartDigest};
use stepvault_core::{ErrorKind, Result};
use stepvault_local::source::SourceFile;
use stepvault_remote::store::{Created, PartReceipt, StoredChecksum};

use super::copy_sources::CopyOf;
use super::parts::{FileUpload, OtherWriters};
use crate::blocking::blocking;
use crate::local_digest::{digest_parts, digest_range};

impl FileUpload {
    /// Lets the store copy one part; returns `None` when its bytes have to be sent.
    pub(super) async fn copy_part(
        &self,
        upload: &str,
        index: u32,
        digest: &PartDigest,
    ) -> Option<PartReceipt> {
        let store = &self.session.remote.store;
        let source = self
            .copies
            .source_of_part(self.layout.size_bytes(), index, digest)
            .filter(|_| store.capabilities().copies_parts)
            .filter(|_| self.session.remote.may_copy_parts.load(Ordering::Relaxed))?;
        let start = self.layout.range(index).start;
        match store.copy_part(source, &self.key, upload, index, start, digest).await {
            Ok(receipt) => Some(receipt),
            Err(error) => {
                self.copies.failed(&self.session, (CopyOf::Part, source), &error);
                None
            }
        }
    }

    /// Lets the store copy the whole file and proves the result; returns false when its bytes have to be sent.
    pub(super) async fn copy_whole(&self, digest: &FileDigest, parts: &[PartDigest]) -> Result<bool> {
        let Some(source) = self.copies.source_of_file(digest) else {
            return Ok(false);
        };
        let created = match self.session.remote.store.copy(source, &self.key).await {
            Ok(created) => created,
            Err(error) => {
                self.copies.failed(&self.session, (CopyOf::File, source), &error);
                return Ok(false);
            }
        };
        let written = created.written();
        let proved = match created {
            // Some stores answer a copy without a checksum but return it on HEAD.
            Created::Written(head) if head.checksum == StoredChecksum::None => {
                self.prove(None, digest, parts).await
            }
            created => self.prove_created(created, digest, parts).await,
        };
        match proved {
            Ok(()) => {
                self.report_bytes(digest.size_bytes, true);
                Ok(true)
            }
            Err(error) if error.kind() != ErrorKind::Damaged => Err(error),
            Err(error) if !self.is_own_object(written).await? => Err(self.key_taken(&error)),
            Err(error) => {
                self.copies.failed(&self.session, (CopyOf::File, source), &error);
                self.session.remote.delete(vec![self.key.clone()]).await?;
                Ok(false)
            }
        }
    }

    /// Whether to check, before anything is sent, that a multi-part file is unchanged: only on stores that copy whole
    /// objects only.
    pub(super) fn may_be_copied_whole(&self) -> bool {
        let capabilities = self.session.remote.store.capabilities();
        let is_begun = self.others == OtherWriters::Sent || self.progress.upload.get().is_some();
        capabilities.copies
            && !capabilities.copies_parts
            && self.layout.count() > 1
            && !is_begun
            && !self.copies.is_idle()
    }

    /// Lets the store copy a multi-part file if it is unchanged; otherwise leaves it to be sent.
    pub(super) async fn copy_if_unchanged(self: Arc<Self>) -> Result<()> {
        let this = Arc::clone(&self);
        let Some(parts) = blocking(move || this.digests_if_unchanged()).await? else {
            return Ok(());
        };
        if self.copy_whole(&FileDigest::from_parts(&parts), &parts).await? {
            self.progress.finished.store(true, Ordering::Relaxed);
            self.record_done(&parts)?;
        }
        Ok(())
    }

    /// Returns the digests of the file's parts if the remote has a file with all of them. Changes mostly show in the
    /// first or the last part, so the rest is read only when both match.
    fn digests_if_unchanged(&self) -> Result<Option<Vec<PartDigest>>> {
        let size_bytes = self.layout.size_bytes();
        {
            let source = SourceFile::open(&self.local_path, &self.file)?;
            for index in [0, self.layout.count() - 1] {
                let digest = digest_range(&source, self.layout.range(index), self.algorithm)?;
                if self.copies.source_of_part(size_bytes, index, &digest).is_none() {
                    return Ok(None);
                }
            }
        }
        let parts = digest_parts(&self.local_path, &self.file, self.algorithm)?;
        let digest = FileDigest::from_parts(&parts);
        Ok(self.copies.source_of_file(&digest).map(|_| parts))
    }
}
