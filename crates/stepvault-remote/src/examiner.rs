//! What a kind of store does beyond requests for objects: it examines its bucket.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use stepvault_core::store_facts::{BucketFacts, Credentials, LeftBytes, Obstacle};
use stepvault_core::{Error, Result};

use crate::pending::Listed;
use crate::store::{PendingUpload, RemoteStore};

/// An open store without decorators.
pub(crate) struct BareStore {
    pub(crate) store: Arc<dyn RemoteStore>,
    /// Sends the requests beyond those for objects.
    pub(crate) examiner: Arc<dyn Examiner>,
}

impl BareStore {
    /// Wraps a store that examines itself.
    pub(crate) fn of<Store: RemoteStore + Examiner + 'static>(store: Store) -> Self {
        let store = Arc::new(store);
        Self { store: Arc::clone(&store) as _, examiner: store }
    }

    pub(crate) fn of_this_machine(store: Arc<dyn RemoteStore>) -> Self {
        Self { store, examiner: Arc::new(NothingToExamine) }
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

    /// For a remote that could not be opened.
    pub(crate) fn by_settings(error: Error) -> Self {
        Self { obstacle: Obstacle::Settings, error }
    }
}

impl ListingResult {
    pub(crate) fn hindered(hindered: ExamineError) -> Self {
        Self { outcome: Err(hindered), store_time: None, server: None }
    }
}
