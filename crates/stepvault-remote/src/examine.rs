//! Examines a remote before it is used: the caller's identity, whether the remote can be reached, and the rules of its
//! bucket. [`probe`](crate::probe) tests everything that needs only objects.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use futures::StreamExt as _;
use stepvault_core::store_facts::{BucketFacts, Credentials, LeftBytes, Obstacle};
use stepvault_core::{Error, Result};

use crate::listed::Listed;
use crate::store::{PendingUpload, RemoteStore};

/// An open store that supports requests beyond those for objects.
#[derive(Debug)]
pub struct Examined {
    pub(crate) store: Arc<dyn RemoteStore>,
    /// Sends the requests beyond those for objects.
    pub(crate) examiner: Arc<dyn Examiner>,
}

impl Examined {
    /// Wraps a store that examines itself.
    pub(crate) fn of<Store: RemoteStore + Examiner + 'static>(store: Store) -> Self {
        let store = Arc::new(store);
        Self { store: Arc::clone(&store) as _, examiner: store }
    }

    pub(crate) fn by(store: Arc<dyn RemoteStore>, examiner: impl Examiner + 'static) -> Self {
        Self { store, examiner: Arc::new(examiner) }
    }

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
        if let Some(result) = self.examiner.list_one(prefix).await {
            return result;
        }
        let first = self.store.list(prefix).next().await.transpose();
        ListingResult::of(first.map(drop).map_err(ExamineError::of))
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

/// The requests that differ between stores. The defaults are those of a store without credentials, rules and pages.
#[async_trait]
pub(crate) trait Examiner: fmt::Debug + Send + Sync {
    /// Fetches again the credentials that requests use.
    async fn credentials(&self) -> Result<Option<Credentials>> {
        Ok(None)
    }

    /// Lists at most one object under `prefix`; `None` to list with the store's own requests.
    async fn list_one(&self, _prefix: &str) -> Option<ListingResult> {
        None
    }

    /// Returns the rules of the bucket.
    async fn bucket(&self) -> Option<BucketFacts> {
        None
    }

    /// Lists incomplete uploads, at most `most_pages` pages; `None` to list with the store's own requests.
    async fn listed_uploads(&self, _prefix: &str, _most_pages: usize) -> Result<Option<Listed>> {
        Ok(None)
    }

    /// Returns the size of the first page of an upload's parts.
    async fn uploaded_bytes(&self, _upload: &PendingUpload) -> Result<Option<LeftBytes>> {
        Ok(None)
    }
}

/// For a directory or a table in memory.
#[derive(Debug)]
pub(crate) struct NothingToExamine;

impl Examiner for NothingToExamine {}

/// The result of listing one object.
#[derive(Debug)]
pub struct ListingResult {
    /// Whether the listing succeeded.
    pub outcome: std::result::Result<(), ExamineError>,
    /// The store's clock, if the answer or the refusal contained it.
    pub store_time: Option<SystemTime>,
    /// What the server calls itself, if the answer or the refusal contained it.
    pub server: Option<String>,
}

/// Why a store could not be used at all.
#[derive(Debug)]
pub struct ExamineError {
    /// The kind of obstacle.
    pub obstacle: Obstacle,
    /// The error.
    pub error: Error,
}

impl ExamineError {
    /// Derives the obstacle from the error's kind.
    pub(crate) fn of(error: Error) -> Self {
        Self { obstacle: Obstacle::of_kind(error.kind()), error }
    }
}

impl ListingResult {
    /// For an outcome without an answer to read a header from.
    pub(crate) fn of(outcome: std::result::Result<(), ExamineError>) -> Self {
        Self { outcome, store_time: None, server: None }
    }
}
