//! Stores that `object_store` supports and for which stepvault has no client of its own: `az://` and `memory://`.
//!
//! These stores accept no checksum with an upload and keep none that stepvault uses: the engine reads back and hashes
//! what was written before it counts.

pub(crate) mod azure;
pub(crate) mod errors;
pub(crate) mod keys;
mod memory;
pub(crate) mod objects;
pub(crate) mod options;
pub(crate) mod pieces;
pub(crate) mod transport;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::multipart::{MultipartStore, PartId};
use object_store::{ObjectStore, PutMode, PutOptions, PutPayload};
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::{RemoteSettings, Scheme};
use stepvault_core::{Error, ErrorKind, Result};

use self::errors::store_error;
use self::keys::KeySpace;
use self::objects::Objects;
use self::options::check_scheme;
use crate::payload::Payload;
use crate::store::{
    Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore, StoreCapabilities,
    StoredChecksum,
};

/// Upload ID for stores that have none (Azure keeps uncommitted blocks by the blob's name).
const NO_UPLOAD_ID: &str = "uncommitted-blocks";

/// Opens `az://container/prefix`. Makes no request.
///
/// # Errors
/// `Usage` for another scheme, an option that the store does not support, or an endpoint over plain HTTP that is not on
/// loopback; `Denied` when Azure's settings name no account.
pub fn open_azure(settings: &RemoteSettings) -> Result<Arc<dyn RemoteStore>> {
    check_scheme(settings, Scheme::Azure)?;
    let store = Arc::new(azure::connect(settings)?);
    Ok(opened(settings, store.clone(), store, None))
}

/// Opens `memory://name/prefix`.
///
/// # Errors
/// `Usage` for another scheme.
pub fn open_memory(settings: &RemoteSettings) -> Result<Arc<dyn RemoteStore>> {
    check_scheme(settings, Scheme::Memory)?;
    let table = memory::table(&settings.url.bucket);
    Ok(opened(
        settings,
        table.store.clone(),
        table.store,
        Some(table.completing),
    ))
}

fn opened(
    settings: &RemoteSettings,
    store: Arc<dyn ObjectStore>,
    multipart: Arc<dyn MultipartStore>,
    completing: Option<Arc<tokio::sync::Mutex<()>>>,
) -> Arc<dyn RemoteStore> {
    let stall_timeout = Duration::from_secs(settings.stall_timeout_seconds.max(1));
    let objects = Objects {
        url: settings.url.to_string(),
        keys: KeySpace::new(&settings.url.prefix),
        store,
        stall_timeout,
    };
    Arc::new(GenericStore {
        objects,
        multipart,
        completing,
    })
}

/// A store behind the two traits of `object_store`.
struct GenericStore {
    objects: Objects,
    multipart: Arc<dyn MultipartStore>,
    /// Serializes completions and creations where the store is in this process; `None` where it is not.
    completing: Option<Arc<tokio::sync::Mutex<()>>>,
}

impl fmt::Debug for GenericStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GenericStore")
            .field("url", &self.objects.url)
            .finish_non_exhaustive()
    }
}

impl GenericStore {
    async fn alone(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match &self.completing {
            Some(completing) => Some(completing.lock().await),
            None => None,
        }
    }

    /// Returns the object at `key` after a write of `size_bytes` was acknowledged.
    async fn written(&self, what: &str, key: &str, size_bytes: u64) -> Result<Created> {
        let fault = |why: String| {
            Error::new(ErrorKind::Damaged, what)
                .on(self.objects.subject(key))
                .because(why)
        };
        let info = self.objects.info(key).await?;
        let info =
            info.ok_or_else(|| fault("the store acknowledged it, but it does not exist".to_owned()))?;
        if info.size_bytes != size_bytes {
            let why = format!(
                "{size_bytes} bytes were written and the object has {}",
                info.size_bytes
            );
            return Err(fault(why));
        }
        Ok(Created::Written(ObjectHead {
            info,
            checksum: StoredChecksum::None,
        }))
    }
}

#[async_trait]
impl RemoteStore for GenericStore {
    fn url(&self) -> &str {
        &self.objects.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: false,
            creates_atomically: true,
            multipart_is_create_only: self.completing.is_some(),
            streams_bodies: false,
            deletes_in_batches: false,
            lists_pending_uploads: false,
            // Azure may answer before a copy is done, which `object_store` does not report.
            copies: self.completing.is_some(),
            copies_parts: false,
        }
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        const WHAT: &str = "cannot write the object";
        let path = self.objects.keys.path(key)?;
        let body = PutPayload::from_iter(body.held(WHAT, &self.objects.subject(key))?);
        let _alone = self.alone().await;
        let options = PutOptions::from(PutMode::Create);
        match self.objects.store.put_opts(&path, body, options).await {
            Ok(_) => self.written(WHAT, key, digest.size_bytes).await,
            Err(error) => match store_error(WHAT, &self.objects.subject(key), error) {
                taken if taken.kind() == ErrorKind::Conflict => Ok(Created::Exists),
                error => Err(error),
            },
        }
    }

    async fn replace(&self, key: &str, body: Bytes, _digest: &PartDigest) -> Result<()> {
        let path = self.objects.keys.path(key)?;
        let _alone = self.alone().await;
        let written = self
            .objects
            .store
            .put_opts(&path, PutPayload::from(body), PutOptions::default())
            .await;
        let subject = self.objects.subject(key);
        written
            .map(|_| ())
            .map_err(|error| store_error("cannot replace the object", &subject, error))
    }

    async fn start_upload(&self, key: &str, _size_bytes: u64, _algorithm: DigestAlgorithm) -> Result<String> {
        let path = self.objects.keys.path(key)?;
        match self.multipart.create_multipart(&path).await {
            Ok(id) if id.is_empty() => Ok(NO_UPLOAD_ID.to_owned()),
            Ok(id) => Ok(id),
            Err(error) => Err(store_error(
                "cannot begin an upload",
                &self.objects.subject(key),
                error,
            )),
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
        let path = self.objects.keys.path(key)?;
        let (what, subject) = (
            format!("cannot upload part {}", index + 1),
            self.objects.subject(key),
        );
        let body = PutPayload::from_iter(body.held(&what, &subject)?);
        let sent = self
            .multipart
            .put_part(&path, &upload.to_owned(), index as usize, body)
            .await;
        let part = sent.map_err(|error| store_error(&what, &subject, error))?;
        Ok(PartReceipt {
            index,
            tag: part.content_id,
            digest: *digest,
        })
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        const WHAT: &str = "cannot complete the upload";
        let path = self.objects.keys.path(key)?;
        let _alone = self.alone().await;
        if self.objects.info(key).await?.is_some() {
            return Ok(Created::Exists);
        }
        let ids = parts
            .iter()
            .map(|part| PartId {
                content_id: part.tag.clone(),
            })
            .collect();
        let completed = self
            .multipart
            .complete_multipart(&path, &upload.to_owned(), ids)
            .await;
        completed.map_err(|error| store_error(WHAT, &self.objects.subject(key), error))?;
        self.written(WHAT, key, digest.size_bytes).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        let path = self.objects.keys.path(key)?;
        match self.multipart.abort_multipart(&path, &upload.to_owned()).await {
            Ok(()) => Ok(()),
            Err(error) => match store_error("cannot abort the upload", &self.objects.subject(key), error) {
                gone if gone.kind() == ErrorKind::NotFound => Ok(()),
                error => Err(error),
            },
        }
    }

    async fn pending_uploads(&self, _prefix: &str) -> Result<Vec<PendingUpload>> {
        Ok(Vec::new())
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        let info = self.objects.info(key).await?;
        Ok(info.map(|info| ObjectHead {
            info,
            checksum: StoredChecksum::None,
        }))
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.objects.read(key, range).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        crate::listed::objects(prefix, self.objects.list(prefix))
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.objects.delete(keys).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        let _alone = self.alone().await;
        if !self.objects.copy(from, to).await? {
            return Ok(Created::Exists);
        }
        let head = self.head(to).await?.ok_or_else(|| {
            Error::new(ErrorKind::Damaged, "cannot copy the object")
                .on(self.objects.subject(to))
                .because("the store acknowledged it, but it does not exist")
        })?;
        Ok(Created::Written(head))
    }
}
