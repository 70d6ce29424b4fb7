//! Examines a remote before it is used: the caller's identity, whether the remote can be reached, and the rules of its
//! bucket. [`probe`](crate::probe) tests everything that needs only objects.

use std::sync::Arc;

use futures::StreamExt as _;
use stepvault_core::observe::Observer;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::store_facts::{BucketFacts, Credentials, LeftBytes};
use stepvault_core::{ErrorKind, Result};

use crate::examiner::Examiner;
pub use crate::examiner::{ExamineError, ListingResult};
use crate::open::{OpenOptions, decorate, open_bare};
use crate::pending::Listed;
use crate::store::{PendingUpload, RemoteStore};

/// A remote that supports requests beyond those for objects.
#[derive(Debug)]
pub struct Examined {
    store: Arc<dyn RemoteStore>,
    examiner: Arc<dyn Examiner>,
}

/// Opens the remote that `settings` describe. Sends no request.
///
/// # Errors
/// When the settings are unusable, or the credentials cannot be read.
pub async fn open(
    settings: &RemoteSettings,
    observer: Arc<dyn Observer>,
    options: OpenOptions,
) -> std::result::Result<Examined, ExamineError> {
    let opened = open_bare(settings, options).await;
    let bare = opened.map_err(|error| match error.kind() {
        ErrorKind::Denied => ExamineError::of(error),
        _ => ExamineError::by_settings(error),
    })?;
    Ok(Examined { store: decorate(bare.store, settings, observer), examiner: bare.examiner })
}

impl Examined {
    /// Returns the store with its decorators.
    pub fn store(&self) -> &dyn RemoteStore {
        self.store.as_ref()
    }

    /// Fetches the credentials that requests use. Returns `None` where the store needs none.
    ///
    /// # Errors
    /// `Denied` where there are none or they cannot be fetched, `Unreachable` where their provider does not answer.
    pub async fn credentials(&self) -> Result<Option<Credentials>> {
        self.examiner.credentials().await
    }

    /// Lists at most one object under `prefix`, with one request.
    pub async fn list_one(&self, prefix: &str) -> ListingResult {
        if let Some(look) = self.examiner.list_one(prefix).await {
            return look;
        }
        let first = self.store.list(prefix).next().await.transpose();
        ListingResult { outcome: first.map(drop).map_err(ExamineError::of), store_time: None, server: None }
    }

    /// Returns the rules that the bucket reports, or `None` where there are none or this interface does not report
    /// them.
    pub async fn bucket(&self) -> Option<BucketFacts> {
        self.examiner.bucket().await
    }

    /// Returns incomplete uploads under `prefix`, from the first pages of the store's listing. `None` where the store
    /// has no such listing.
    ///
    /// # Errors
    /// When the store cannot list them.
    pub async fn pending_uploads(&self, prefix: &str, most_pages: usize) -> Result<Option<Listed>> {
        let listed = match self.examiner.listed_uploads(prefix, most_pages).await? {
            Some(listed) => listed,
            // A directory has no pages; for the other kinds nothing is listed.
            None => Listed { uploads: self.store.pending_uploads(prefix).await?, all: true },
        };
        // Some servers report only in the answer that they do not support this.
        Ok(self.store.capabilities().lists_pending_uploads.then_some(listed))
    }

    /// Returns the size of an upload's parts, with one request. `None` for an upload that no longer exists, or where
    /// the store does not list parts.
    ///
    /// # Errors
    /// When the store cannot list the parts.
    pub async fn uploaded_bytes(&self, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
        self.examiner.uploaded_bytes(upload).await
    }
}
