//! Looks at a remote before it is relied on: who we are to it, whether it can be reached, and what its bucket's rules
//! are. What can be tried with objects alone is tried by [`probe`](crate::probe).

use std::sync::Arc;
use std::time::SystemTime;

use futures::StreamExt as _;
use stepvault_core::doctor::remote::{BucketFacts, Credentials, LeftBytes, Obstacle};
use stepvault_core::observe::Observer;
use stepvault_core::remote_settings::{RemoteSettings, Scheme};
use stepvault_core::{Error, ErrorKind, Result};

use crate::gcs::GcsStore;
use crate::open::{OpenOptions, decorate};
use crate::pending::Listed;
use crate::s3::S3Store;
use crate::store::{PendingUpload, RemoteStore};

/// A remote that can be asked for more than objects.
#[derive(Debug)]
pub struct Examined {
    store: Arc<dyn RemoteStore>,
    kind: Kind,
}

/// What answers the questions that each kind of store has its own requests for.
#[derive(Debug)]
enum Kind {
    S3(Arc<S3Store>),
    Gcs(Arc<GcsStore>),
    Azure(Box<RemoteSettings>),
    /// A directory or a table in memory: no credentials, no rules.
    Local,
}

/// What came of listing one object.
#[derive(Debug)]
pub struct Look {
    /// Whether it could be listed.
    pub outcome: std::result::Result<(), Hindered>,
    /// The store's clock, where the answer, or the refusal, told it.
    pub store_time: Option<SystemTime>,
}

/// Why a store could not be used at all.
#[derive(Debug)]
pub struct Hindered {
    /// What stands in the way.
    pub obstacle: Obstacle,
    /// In words.
    pub error: Error,
}

impl Hindered {
    /// By what the error's kind tells.
    pub(crate) fn of(error: Error) -> Self {
        Self {
            obstacle: Obstacle::of_kind(error.kind()),
            error,
        }
    }

    /// The remote could not even be opened.
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

/// Opens the remote that `settings` describe. Nothing is sent yet.
///
/// # Errors
/// What makes the settings unusable, or credentials that cannot even be read.
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
    /// The store, with its decorators.
    pub fn store(&self) -> &dyn RemoteStore {
        self.store.as_ref()
    }

    /// The credentials that requests are made with, really fetched; none where the store needs none.
    ///
    /// # Errors
    /// `Denied` where there are none or they cannot be had, `Unreachable` where whoever gives them does not answer.
    pub async fn credentials(&self) -> Result<Option<Credentials>> {
        match &self.kind {
            Kind::S3(store) => store.credentials().await.map(Some),
            Kind::Gcs(store) => store.credentials().await.map(Some),
            Kind::Azure(settings) => crate::generic::azure_credentials(settings).await.map(Some),
            Kind::Local => Ok(None),
        }
    }

    /// Lists at most one object under `prefix`, once.
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

    /// What the bucket tells of its rules; none where there are none, or none that this interface tells.
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

    /// Uploads under `prefix` that nobody has completed: those of the first pages of the store's listing. None where
    /// the store has no such listing.
    ///
    /// # Errors
    /// What keeps the store from listing them.
    pub async fn pending_uploads(&self, prefix: &str, most_pages: usize) -> Result<Option<Listed>> {
        let listed = match &self.kind {
            Kind::S3(store) => store.listed_multiparts(prefix, most_pages).await?,
            Kind::Gcs(store) => store.listed_uploads(prefix, most_pages).await?,
            // A directory has no pages; of the others nothing is listed.
            Kind::Azure(_) | Kind::Local => Listed {
                uploads: self.store.pending_uploads(prefix).await?,
                all: true,
            },
        };
        // Some servers say that they cannot only when they are asked.
        Ok(self.store.abilities().lists_pending_uploads.then_some(listed))
    }

    /// What the parts of an upload come to, by one request; none for an upload that is gone, or whose parts nobody
    /// tells.
    ///
    /// # Errors
    /// What keeps the store from telling.
    pub async fn uploaded_bytes(&self, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
        match &self.kind {
            Kind::S3(store) => store.uploaded_bytes(upload).await,
            Kind::Gcs(store) => store.uploaded_bytes(upload).await,
            Kind::Azure(_) | Kind::Local => Ok(None),
        }
    }
}
