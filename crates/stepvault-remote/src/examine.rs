//! Examines a remote before it is used: the caller's identity, whether the remote can be reached, and the rules of its
//! bucket. [`probe`](crate::probe) tests everything that needs only objects.

use std::sync::Arc;
use std::time::SystemTime;

use futures::StreamExt as _;
use stepvault_core::observe::Observer;
use stepvault_core::remote_settings::{RemoteSettings, Scheme};
use stepvault_core::store_facts::{BucketFacts, Credentials, LeftBytes, Obstacle};
use stepvault_core::{Error, ErrorKind, Result};

use crate::gcs::GcsStore;
use crate::open::{OpenOptions, decorate};
use crate::pending::Listed;
use crate::s3::S3Store;
use crate::store::{PendingUpload, RemoteStore};

/// A remote that supports requests beyond those for objects.
#[derive(Debug)]
pub struct Examined {
    store: Arc<dyn RemoteStore>,
    kind: Kind,
}

/// The store's own client, for requests that differ between stores.
#[derive(Debug)]
enum Kind {
    S3(Arc<S3Store>),
    Gcs(Arc<GcsStore>),
    Azure(Box<RemoteSettings>),
    /// A directory or a table in memory: has no credentials and no rules.
    Local,
}

/// The result of listing one object.
#[derive(Debug)]
pub struct Look {
    /// Whether the listing succeeded.
    pub outcome: std::result::Result<(), Hindered>,
    /// The store's clock, if the answer or the refusal contained it.
    pub store_time: Option<SystemTime>,
}

/// Why a store could not be used at all.
#[derive(Debug)]
pub struct Hindered {
    /// The kind of obstacle.
    pub obstacle: Obstacle,
    /// The error.
    pub error: Error,
}

impl Hindered {
    /// Derives the obstacle from the error's kind.
    pub(crate) fn of(error: Error) -> Self {
        Self {
            obstacle: Obstacle::of_kind(error.kind()),
            error,
        }
    }

    /// For a remote that could not be opened.
    pub(crate) fn by_settings(error: Error) -> Self {
        Self {
            obstacle: Obstacle::Settings,
            error,
        }
    }
}

impl Look {
    pub(crate) fn hindered(hindered: Hindered) -> Self {
        Self {
            outcome: Err(hindered),
            store_time: None,
        }
    }
}

/// Opens the remote that `settings` describe. Sends no request.
///
/// # Errors
/// When the settings are unusable, or the credentials cannot be read.
pub async fn open(
    settings: &RemoteSettings,
    observer: Arc<dyn Observer>,
    options: OpenOptions,
) -> std::result::Result<Examined, Hindered> {
    let opened = open_bare(settings, options).await;
    let (bare, kind) = opened.map_err(|error| match error.kind() {
        ErrorKind::Denied => Hindered::of(error),
        _ => Hindered::by_settings(error),
    })?;
    Ok(Examined {
        store: decorate(bare, settings, observer),
        kind,
    })
}

async fn open_bare(settings: &RemoteSettings, options: OpenOptions) -> Result<(Arc<dyn RemoteStore>, Kind)> {
    Ok(match settings.url.scheme {
        Scheme::S3 => {
            let store = Arc::new(S3Store::open(settings, options.s3_keys).await?);
            (Arc::clone(&store) as _, Kind::S3(store))
        }
        Scheme::Gcs => {
            let store = Arc::new(crate::gcs::connect(settings).await?);
            (Arc::clone(&store) as _, Kind::Gcs(store))
        }
        Scheme::Azure => (
            crate::generic::open(settings)?,
            Kind::Azure(Box::new(settings.clone())),
        ),
        Scheme::Memory => (crate::generic::open(settings)?, Kind::Local),
        Scheme::File => (crate::file::open(settings)?, Kind::Local),
    })
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
        match &self.kind {
            Kind::S3(store) => store.credentials().await.map(Some),
            Kind::Gcs(store) => store.credentials().await.map(Some),
            Kind::Azure(settings) => crate::generic::azure_credentials(settings).await.map(Some),
            Kind::Local => Ok(None),
        }
    }

    /// Lists at most one object under `prefix`, with one request.
    pub async fn look(&self, prefix: &str) -> Look {
        if let Kind::S3(store) = &self.kind {
            return store.look(prefix).await;
        }
        let first = self.store.list(prefix).next().await.transpose();
        Look {
            outcome: first.map(drop).map_err(Hindered::of),
            store_time: None,
        }
    }

    /// Returns the rules that the bucket reports, or `None` where there are none or this interface does not report
    /// them.
    pub async fn bucket(&self) -> Option<BucketFacts> {
        match &self.kind {
            Kind::S3(store) => Some(BucketFacts {
                versioning: store.versioning().await,
                rules: store.rules().await,
                soft_delete_seconds: None,
            }),
            Kind::Gcs(store) => Some(store.bucket().await),
            Kind::Azure(_) | Kind::Local => None,
        }
    }

    /// Returns incomplete uploads under `prefix`, from the first pages of the store's listing. `None` where the store
    /// has no such listing.
    ///
    /// # Errors
    /// When the store cannot list them.
    pub async fn pending_uploads(&self, prefix: &str, most_pages: usize) -> Result<Option<Listed>> {
        let listed = match &self.kind {
            Kind::S3(store) => store.listed_multiparts(prefix, most_pages).await?,
            Kind::Gcs(store) => store.listed_uploads(prefix, most_pages).await?,
            // A directory has no pages; for the other kinds nothing is listed.
            Kind::Azure(_) | Kind::Local => Listed {
                uploads: self.store.pending_uploads(prefix).await?,
                all: true,
            },
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
        match &self.kind {
            Kind::S3(store) => store.uploaded_bytes(upload).await,
            Kind::Gcs(store) => store.uploaded_bytes(upload).await,
            Kind::Azure(_) | Kind::Local => Ok(None),
        }
    }
}
