//! Decorator for a store whose marker this vault has seen: while the marker is missing, the store is unreachable.
//!
//! A directory whose filesystem is not mounted looks like an empty store, and so does a bucket that was emptied. Both
//! answer every query with nothing, accept every write, and hold no step. An absent object therefore counts only while
//! the marker exists, and a write only when the marker existed before and after it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;
use stepvault_core::codec::decode;
use stepvault_core::keys::RunKeys;
use stepvault_core::records::VaultMarker;
use stepvault_core::{Error, ErrorKind, RemoteSettings, Result};
use stepvault_local::vault::Vault;
use stepvault_remote::decorator::{Answer, Request, StoreDecorator};
use stepvault_remote::store::{ArchivePlace, ObjectInfo, RemoteStore};
use tokio::time::Instant;

use super::cache::{identity_url, seen_identity};

/// Maximum length of a marker that is read.
const MAX_MARKER_BYTES: usize = 4096;
/// How long a bucket's marker is trusted after it was seen. A filesystem can be unmounted between any two calls, and
/// checking it costs no request.
const SEEN_IN_BUCKET: Duration = Duration::from_secs(10);

/// The marker that must exist.
#[derive(Debug, Clone)]
struct ExpectedMarker {
    identity: String,
    seen_at: Option<Instant>,
}

/// A store that is unreachable while its marker is missing. It passes everything through until a marker is expected.
#[derive(Debug)]
pub(crate) struct MarkedStore {
    inner: Arc<dyn RemoteStore>,
    settings: Arc<RemoteSettings>,
    keys: RunKeys,
    /// The vault that stores the marker, if there is one. Another task of this process may see the marker first.
    pub(crate) vault: OnceLock<Vault>,
    expected: Mutex<Option<ExpectedMarker>>,
}

impl MarkedStore {
    pub(crate) fn new(inner: Arc<dyn RemoteStore>, settings: Arc<RemoteSettings>, keys: RunKeys) -> Self {
        Self { inner, settings, keys, vault: OnceLock::new(), expected: Mutex::new(None) }
    }

    /// From now on, expects the marker that this vault has recorded or will record.
    pub(crate) fn remembered_by(&self, vault: &Vault) {
        self.vault.get_or_init(|| vault.clone());
    }

    /// From now on, expects the marker with this identity, which the store has just returned.
    pub(crate) fn saw(&self, identity: &str) {
        self.expect(identity, Some(Instant::now()));
    }

    fn expect(&self, identity: &str, seen_at: Option<Instant>) {
        *self.expected.lock() = Some(ExpectedMarker { identity: identity.to_owned(), seen_at });
    }

    /// Returns the expected identity, if there is one.
    ///
    /// # Errors
    /// When the vault cannot be read.
    pub(crate) async fn expected(&self) -> Result<Option<String>> {
        Ok(self.expected_marker().await?.map(|expected| expected.identity))
    }

    async fn expected_marker(&self) -> Result<Option<ExpectedMarker>> {
        let expected = || self.expected.lock().clone();
        if let (None, Some(vault)) = (expected(), self.vault.get())
            && let place = identity_url(self.inner.url(), &self.settings)
            && let Some(identity) = seen_identity(vault, self.keys.run(), &place).await?
        {
            self.expect(&identity, None);
        }
        Ok(expected())
    }

    /// Checks that the expected marker exists now, or did a moment ago.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when it is missing; [`ErrorKind::Refused`] when it belongs to a different archive.
    async fn check(&self) -> Result<()> {
        let Some(expected) = self.expected_marker().await? else {
            return Ok(());
        };
        let is_bucket = !self.settings.url.scheme.is_directory();
        if is_bucket && expected.seen_at.is_some_and(|seen| seen.elapsed() < SEEN_IN_BUCKET) {
            return Ok(());
        }
        let subject = format!("{}/{}", self.inner.url(), self.keys.marker());
        let bytes = match self.read_marker().await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(gone(&self.settings, &subject));
            }
            Err(error) if error.kind() == ErrorKind::Archived => Vec::new(),
            bytes => bytes?,
        };
        // A damaged or archived marker exists, and proves nothing else about the place.
        if let Ok(found) = decode::<VaultMarker>(&bytes, &subject) {
            same_archive(&found, &expected.identity, &subject, &self.settings)?;
        }
        let mut remembered = self.expected.lock();
        if let Some(remembered) =
            remembered.as_mut().filter(|remembered| remembered.identity == expected.identity)
        {
            remembered.seen_at = Some(Instant::now());
        }
        Ok(())
    }

    async fn read_marker(&self) -> Result<Vec<u8>> {
        let mut pieces = self.inner.read(&self.keys.marker(), None).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.try_next().await? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > MAX_MARKER_BYTES {
                break;
            }
        }
        Ok(bytes)
    }
}

/// Returns the error for a marker that existed and is missing now.
pub(crate) fn gone(settings: &RemoteSettings, subject: &str) -> Error {
    let name = &settings.name;
    let (why, cause) = if settings.url.scheme.is_directory() {
        (
            "the marker that this vault saw on it is missing: its filesystem is not mounted, or the directory was \
             emptied",
            "mount it",
        )
    } else {
        (
            "the marker that this vault saw on it is missing: the bucket or prefix was emptied, or is a different one",
            "check the URL and the credentials",
        )
    };
    Error::new(ErrorKind::Unreachable, "the remote is not the one used before")
        .on(subject)
        .because(why)
        .hint(format!(
            "{cause}; if it was emptied on purpose, run 'stepvault remote forget {name}' so that the next push starts \
             afresh"
        ))
        .lasting()
}

/// Compares a marker with the identity seen before.
///
/// # Errors
/// [`ErrorKind::Refused`] when the remote holds a different archive.
pub(crate) fn same_archive(
    found: &VaultMarker,
    expected: &str,
    subject: &str,
    settings: &RemoteSettings,
) -> Result<()> {
    if found.vault == expected {
        return Ok(());
    }
    let name = &settings.name;
    Err(Error::new(ErrorKind::Refused, "the remote holds a different archive than before")
        .on(subject)
        .because(format!("its identity is {}, but was {expected}", found.vault))
        .hint(format!(
            "check the bucket and prefix, and that the filesystem is mounted; to continue with this one, run \
         'stepvault remote forget {name}'"
        ))
        // The right filesystem may be mounted again.
        .transient())
}

#[async_trait]
impl StoreDecorator for MarkedStore {
    fn inner(&self) -> &dyn RemoteStore {
        &*self.inner
    }

    /// A write counts only where the marker is, before it and after it; an answer that something does not exist, where the
    /// marker is after it.
    async fn around<'a, T, C>(&'a self, request: Request, call: C) -> Result<T>
    where
        T: Answer + 'a,
        C: Fn() -> BoxFuture<'a, Result<T>> + Send + Sync + 'a,
    {
        if request.is_write {
            self.check().await?;
        }
        let answer = call().await;
        let needs_marker = match &answer {
            Ok(answer) => request.is_write || answer.is_absent(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if needs_marker {
            self.check().await?;
        }
        answer
    }

    /// Creates nothing where stepvault's marker existed before.
    async fn begin_decorated(&self, place: ArchivePlace) -> Result<bool> {
        match self.expected().await? {
            Some(_) => Ok(false),
            None => self.inner.begin(place).await,
        }
    }

    /// A listing is complete only if the marker exists at its end: a filesystem unmounted half-way ends it early.
    fn list_decorated<'a>(&'a self, prefix: &str) -> BoxStream<'a, Result<ObjectInfo>> {
        let at_the_end = stream::once(self.check()).try_filter_map(|()| async { Ok(None) });
        self.inner.list(prefix).chain(at_the_end).boxed()
    }
}
