//! Stores that `object_store` supports and for which stepvault has no client of its own: `az://` and `memory://`.
//!
//! These stores accept no checksum with an upload and keep none that stepvault uses: the engine reads back and hashes
//! what was written before it counts.

#[cfg(feature = "azure")]
mod azure;
#[cfg(feature = "azure")]
mod transport;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
};
use parking_lot::Mutex;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::{RemoteSettings, Scheme};
use stepvault_core::{Error, ErrorKind, Result};

#[cfg(feature = "azure")]
use self::transport::request_error;
use crate::causes::{causes, if_found, unless_conflict};
#[cfg(feature = "azure")]
use crate::examine::Examined;
use crate::keys::KeySpace;
use crate::options::check_scheme;
use crate::payload::Payload;
use crate::pieces::{Expected, no_bytes, shorter_than_asked, watched};
use crate::store::{
    BodyStream, Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore, StoreCapabilities,
    StoredChecksum,
};

/// Upload ID for stores that have none (Azure keeps uncommitted blocks by the blob's name).
const NO_UPLOAD_ID: &str = "uncommitted-blocks";

/// Opens `az://container/prefix`. Makes no request.
///
/// # Errors
/// `Usage` for another scheme, an option that the store does not support, or an endpoint over plain HTTP that is not on
/// loopback; `Denied` when Azure's settings name no account.
#[cfg(feature = "azure")]
pub fn open_azure(settings: &RemoteSettings) -> Result<Arc<dyn RemoteStore>> {
    check_scheme(settings, Scheme::Azure)?;
    let store = Arc::new(azure::connect(settings)?);
    Ok(GenericStore::open(settings, store.clone(), store, None))
}

/// Like [`open_azure`], with what examines the container.
#[cfg(feature = "azure")]
pub(crate) fn connect_azure(settings: &RemoteSettings) -> Result<Examined> {
    let settings = settings.clone();
    Ok(Examined::by(open_azure(&settings)?, azure::AzureExaminer { settings }))
}

/// Opens `memory://name/prefix`.
///
/// # Errors
/// `Usage` for another scheme.
pub fn open_memory(settings: &RemoteSettings) -> Result<Arc<dyn RemoteStore>> {
    check_scheme(settings, Scheme::Memory)?;
    let table = table(&settings.url.bucket);
    let (store, completing) = (table.store, Some(table.completing));
    Ok(GenericStore::open(settings, store.clone(), store, completing))
}

/// Returns the error for operation `what` on `subject` (a URL with the key).
fn store_error(what: &str, subject: &str, error: object_store::Error) -> Error {
    #[cfg(feature = "azure")]
    if let Some(error) = request_error(what, subject, &error) {
        return error;
    }
    let kind = match &error {
        object_store::Error::NotFound { .. } => ErrorKind::NotFound,
        object_store::Error::AlreadyExists { .. }
        | object_store::Error::Precondition { .. }
        | object_store::Error::NotModified { .. } => ErrorKind::Conflict,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            ErrorKind::Denied
        }
        object_store::Error::InvalidPath { .. } => {
            return Error::new(ErrorKind::Failed, what)
                .on(subject)
                .caused_by(error)
                .hint("an object there has an unsupported name; move it elsewhere");
        }
        // The memory store reports these only in its message.
        object_store::Error::Generic { source, .. } => match source.to_string() {
            why if why.starts_with("MultipartUpload not found") => ErrorKind::NotFound,
            why if why.starts_with("Invalid range") => ErrorKind::Damaged,
            _ => ErrorKind::Failed,
        },
        _ => ErrorKind::Failed,
    };
    Error::new(kind, what).on(subject).caused_by(error)
}

/// A prefix of a store behind the two traits of `object_store`.
struct GenericStore {
    url: String,
    keys: KeySpace,
    stall_timeout: Duration,
    store: Arc<dyn ObjectStore>,
    multipart: Arc<dyn MultipartStore>,
    /// Serializes completions and creations where the store is in this process; `None` where it is not.
    completing: Option<Arc<tokio::sync::Mutex<()>>>,
}

impl fmt::Debug for GenericStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GenericStore").field("url", &self.url).finish_non_exhaustive()
    }
}

impl GenericStore {
    fn open(
        settings: &RemoteSettings,
        store: Arc<dyn ObjectStore>,
        multipart: Arc<dyn MultipartStore>,
        completing: Option<Arc<tokio::sync::Mutex<()>>>,
    ) -> Arc<dyn RemoteStore> {
        Arc::new(Self {
            url: settings.url.to_string(),
            keys: KeySpace::new(&settings.url.prefix),
            stall_timeout: settings.stall_timeout(),
            store,
            multipart,
            completing,
        })
    }

    /// Returns the URL of an object, for messages.
    fn subject(&self, key: &str) -> String {
        format!("{}/{key}", self.url)
    }

    /// Returns the error of operation `what` on `key`.
    fn fault(&self, what: &str, key: &str, error: object_store::Error) -> Error {
        store_error(what, &self.subject(key), error)
    }

    async fn lock_writes(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match &self.completing {
            Some(completing) => Some(completing.lock().await),
            None => None,
        }
    }

    /// Returns the object at `key` after a write was acknowledged.
    async fn written(&self, what: &str, key: &str, size_bytes: Option<u64>) -> Result<Created> {
        let fault = |why: &str| Error::new(ErrorKind::Damaged, what).on(self.subject(key)).because(why);
        let head = self.head(key).await?;
        let head = head.ok_or_else(|| fault("the store acknowledged it, but it does not exist"))?;
        let found_bytes = head.info.size_bytes;
        match size_bytes {
            Some(size_bytes) if size_bytes != found_bytes => {
                Err(fault(&format!("{size_bytes} bytes were written and the object has {found_bytes}")))
            }
            _ => Ok(Created::Written(head)),
        }
    }

    async fn look_up(
        &self,
        path: &Path,
        head: bool,
        range: Option<GetRange>,
    ) -> object_store::Result<object_store::GetResult> {
        let options = GetOptions { head, range, ..GetOptions::default() };
        self.store.get_opts(path, options).await
    }

    /// Lists the objects whose keys begin with `prefix`, from the directory that holds them all.
    fn entries(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        const WHAT: &str = "cannot list the objects";
        let directory = match self.keys.directory_of(prefix) {
            Ok(directory) => directory,
            Err(error) => return stream::once(async { Err(error) }).boxed(),
        };
        let (subject, beginning) = (self.subject(prefix), self.keys.full_prefix(prefix));
        let found = self.store.list(directory.as_ref());
        stream::try_unfold((found, subject), move |(mut found, subject)| async move {
            let next = tokio::time::timeout(self.stall_timeout, found.next()).await;
            let next = next.map_err(|_| {
                Error::new(ErrorKind::Unreachable, WHAT)
                    .on(&subject)
                    .because(format!("no answer within {} seconds", self.stall_timeout.as_secs()))
            })?;
            let next = next.transpose();
            let next = next.map_err(|error| store_error(WHAT, &subject, error))?;
            Ok(next.map(|meta| (meta, (found, subject))))
        })
        .try_filter_map(move |meta| {
            let full = meta.location.to_string();
            let key = self.keys.key_of(&full).filter(|_| full.starts_with(&beginning));
            let info = key.map(|key| info_of(key, meta));
            async move { Ok(info) }
        })
        .boxed()
    }
}

fn info_of(key: &str, meta: ObjectMeta) -> ObjectInfo {
    ObjectInfo {
        key: key.to_owned(),
        size_bytes: meta.size,
        modified: meta.last_modified.into(),
        version: meta.version.or(meta.e_tag),
    }
}

#[async_trait]
impl RemoteStore for GenericStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            creates_atomically: true,
            multipart_is_create_only: self.completing.is_some(),
            // Azure may answer before a copy is done, which `object_store` does not report.
            copies: self.completing.is_some(),
            ..StoreCapabilities::default()
        }
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        const WHAT: &str = "cannot write the object";
        let path = self.keys.path(key)?;
        let body = PutPayload::from_iter(body.held(WHAT, &self.subject(key))?);
        let _lock = self.lock_writes().await;
        let options = PutOptions::from(PutMode::Create);
        let created = self.store.put_opts(&path, body, options).await;
        match unless_conflict(created.map_err(|error| self.fault(WHAT, key, error)))? {
            Some(_) => self.written(WHAT, key, Some(digest.size_bytes)).await,
            None => Ok(Created::Exists),
        }
    }

    async fn replace(&self, key: &str, body: Bytes, _digest: &PartDigest) -> Result<()> {
        let path = self.keys.path(key)?;
        let _lock = self.lock_writes().await;
        let written = self.store.put(&path, PutPayload::from(body)).await;
        written.map(drop).map_err(|error| self.fault("cannot replace the object", key, error))
    }

    async fn start_upload(&self, key: &str, _size_bytes: u64, _algorithm: DigestAlgorithm) -> Result<String> {
        let path = self.keys.path(key)?;
        match self.multipart.create_multipart(&path).await {
            Ok(id) if id.is_empty() => Ok(NO_UPLOAD_ID.to_owned()),
            Ok(id) => Ok(id),
            Err(error) => Err(self.fault("cannot begin an upload", key, error)),
        }
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let path = self.keys.path(key)?;
        let what = format!("cannot upload part {}", index + 1);
        let body = PutPayload::from_iter(body.held(&what, &self.subject(key))?);
        let (upload, number) = (upload.to_owned(), index as usize);
        let sent = self.multipart.put_part(&path, &upload, number, body).await;
        let part = sent.map_err(|error| self.fault(&what, key, error))?;
        Ok(PartReceipt { index, tag: part.content_id, digest: *digest })
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        const WHAT: &str = "cannot complete the upload";
        let path = self.keys.path(key)?;
        let _lock = self.lock_writes().await;
        if self.head(key).await?.is_some() {
            return Ok(Created::Exists);
        }
        let tags = parts.iter().map(|part| part.tag.clone());
        let ids = tags.map(|content_id| PartId { content_id }).collect();
        let completed = self.multipart.complete_multipart(&path, &upload.to_owned(), ids).await;
        completed.map_err(|error| self.fault(WHAT, key, error))?;
        self.written(WHAT, key, Some(digest.size_bytes)).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        let path = self.keys.path(key)?;
        let aborted = self.multipart.abort_multipart(&path, &upload.to_owned()).await;
        if_found(aborted.map_err(|error| self.fault("cannot abort the upload", key, error))).map(drop)
    }

    async fn pending_uploads(&self, _prefix: &str) -> Result<Vec<PendingUpload>> {
        Ok(Vec::new())
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        let got = self.look_up(&self.keys.path(key)?, true, None).await;
        let got = got.map_err(|error| self.fault("cannot read the object's metadata", key, error));
        Ok(if_found(got)?
            .map(|got| ObjectHead { info: info_of(key, got.meta), checksum: StoredChecksum::None }))
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        const WHAT: &str = "cannot read the object";
        let subject = self.subject(key);
        if let Some(range) = range.as_ref().filter(|range| range.is_empty()) {
            // Stores reject empty ranges.
            let head = self.head(key).await?;
            return no_bytes(&subject, head.map(|head| head.info.size_bytes), range);
        }
        let bounds = range.clone().map(GetRange::Bounded);
        let got = self.look_up(&self.keys.path(key)?, false, bounds).await;
        let got = got.map_err(|error| {
            // Its type is private.
            let is_short =
                causes(&error).any(|cause| cause.to_string().starts_with("Wanted range starting at"));
            let error = store_error(WHAT, &subject, error);
            if is_short { error.with_kind(ErrorKind::Damaged) } else { error }
        })?;
        let wanted = range.unwrap_or(0..got.meta.size);
        if got.range != wanted {
            return Err(shorter_than_asked(&subject, got.meta.size, &wanted));
        }
        let expected = Expected {
            subject: subject.clone(),
            size_bytes: wanted.end - wanted.start,
            stall_timeout: self.stall_timeout,
        };
        let pieces = got.into_stream().map_err(move |error| match store_error(WHAT, &subject, error) {
            // A body that ends early was not refused, so a retry may succeed.
            error if error.kind() == ErrorKind::Failed => error.with_kind(ErrorKind::Unreachable),
            error => error,
        });
        Ok(watched(pieces.boxed(), expected))
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        crate::listed::objects(prefix, self.entries(prefix))
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let paths: Vec<Path> = keys.iter().map(|key| self.keys.path(key)).collect::<Result<_>>()?;
        // Results arrive in the order of the keys. A missing object is an error for the store, but not here.
        let mut results = self.store.delete_stream(stream::iter(paths).map(Ok).boxed());
        let mut answered = 0;
        while let Some(result) = results.next().await {
            let key = keys.get(answered).map_or("", String::as_str);
            answered += 1;
            if_found(result.map_err(|error| self.fault("cannot delete the object", key, error)))?;
        }
        let count = keys.len();
        if answered == count {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Failed, "cannot delete all objects")
            .on(&self.url)
            .because(format!("the store answered for {answered} of {count}")))
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        const WHAT: &str = "cannot copy the object";
        let _lock = self.lock_writes().await;
        let (source, target) = (self.keys.path(from)?, self.keys.path(to)?);
        let copied = self.store.copy_if_not_exists(&source, &target).await;
        let subject = format!("{from} to {to}");
        match unless_conflict(copied.map_err(|error| self.fault(WHAT, &subject, error)))? {
            Some(()) => self.written(WHAT, to, None).await,
            None => Ok(Created::Exists),
        }
    }
}

/// A table and the lock of its conditional writes.
#[derive(Debug, Clone, Default)]
struct Memory {
    store: Arc<InMemory>,
    /// Held from the check of the key to the write of a create-only completion.
    completing: Arc<tokio::sync::Mutex<()>>,
}

static TABLES: Mutex<BTreeMap<String, Memory>> = Mutex::new(BTreeMap::new());

/// Returns the table called `name`, which is the same for every caller in this process.
fn table(name: &str) -> Memory {
    TABLES.lock().entry(name.to_owned()).or_default().clone()
}
