//! `gs://bucket/prefix`: Google Cloud Storage.
//!
//! Whole objects are written through Google's SDK, create-only by generation 0, with a CRC-32C that the store checks
//! and that is compared with its answer. Large files are sent as XML multipart uploads: parts in parallel and across
//! restarts, each checked on arrival, and the finished object's CRC-32C compared with the file's. Completion supports
//! no preconditions: the key is checked before it, and of two simultaneous completions the later one wins. Data keys
//! are unique to an attempt, so this can only happen between two writers of the same bytes.
//!
//! With `transport = "json"` everything goes through the JSON API: the parts of a file are temporary objects, which are
//! composed create-only to one object.
//!
//! Incomplete uploads cost storage until they are aborted. They are listed and removed by `gc`; a lifecycle rule
//! `AbortIncompleteMultipartUpload` on the bucket does the same for nodes that never come back.

mod access;
mod api;
mod client;
mod examine;
mod json;
mod json_store;
mod listing;
mod multipart;
mod resource;
mod rewrite;
mod source;
mod temporary;
mod write;
mod xml;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use google_cloud_gax::retry_policy::NeverRetry;
use google_cloud_storage::client::Storage;
use google_cloud_storage::read_resume_policy::NeverResume;
use object_store::gcp::GoogleCloudStorageBuilder;
use stepvault_core::digest::{Crc32c, DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::{RemoteSettings, Scheme, Transport};
use stepvault_core::{Error, ErrorKind, Result};

use self::access::Access;
pub(crate) use self::access::NoCredentials;
use self::api::{Api, ObjectOptions, crc32c_of};
use self::client::Client;
use self::json_store::JsonStore;
use self::write::Writer;
use crate::examiner::BareStore;
use crate::generic::keys::KeySpace;
use crate::generic::objects::Objects;
use crate::generic::options::{check_scheme, refuse_options};
use crate::generic::transport::{GuardedConnector, client_options, no_retries};
use crate::payload::Payload;
use crate::store::{
    Created, IgnoredAttribute, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore,
    StoreCapabilities, StoredChecksum,
};

/// Opens `gs://bucket/prefix`. Makes no request.
///
/// # Errors
/// `Usage` for another scheme, an option that GCS does not support, or an endpoint over plain HTTP that is not on
/// loopback; `Denied` when no credentials can be found or read.
pub async fn open(settings: &RemoteSettings) -> Result<Arc<dyn RemoteStore>> {
    Ok(connect(settings).await?.store)
}

/// Like [`open`], with what examines the bucket.
pub(crate) async fn connect(settings: &RemoteSettings) -> Result<BareStore> {
    let fault = || Error::new(ErrorKind::Failed, "cannot open the remote").on(&settings.url);
    check_scheme(settings, Scheme::Gcs)?;
    refuse_options(settings)?;
    let access = Access::new(settings).await?;
    let stall_timeout = Duration::from_secs(settings.stall_timeout_seconds.max(1));
    let keys = KeySpace::new(&settings.url.prefix);
    let url = settings.url.to_string();
    let options = ObjectOptions {
        storage_class: settings.storage_class.clone(),
        kms_key: settings.kms_key.clone(),
    };
    let api = Api::new(
        access.clone(),
        url.clone(),
        settings.url.bucket.clone(),
        keys.clone(),
        options,
        Client::new(settings, access.plain_http, stall_timeout)?,
    );
    if settings.transport == Transport::Json {
        return Ok(BareStore::of(JsonStore { api, stall_timeout }));
    }
    let store = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&settings.url.bucket)
        .with_base_url(&access.endpoint)
        .with_credentials(Arc::new(access.clone()))
        .with_client_options(client_options(access.plain_http, &[]))
        .with_retry(no_retries())
        .with_http_connector(GuardedConnector {
            stall_timeout,
            identified: None,
        })
        .build()
        .map_err(|error| fault().caused_by(error))?;
    let storage = Storage::builder()
        .with_endpoint(&access.endpoint)
        .with_credentials(access.sdk_credentials())
        .with_retry_policy(NeverRetry)
        .with_read_resume_policy(NeverResume)
        .build()
        .await
        .map_err(|error| fault().caused_by(error))?;
    Ok(BareStore::of(GcsStore {
        objects: Objects {
            url,
            keys,
            store: Arc::new(store),
            stall_timeout,
        },
        writer: Writer {
            storage,
            api: api.clone(),
            stall_timeout,
        },
        api,
    }))
}

/// A prefix of a bucket, over the XML API.
struct GcsStore {
    objects: Objects,
    writer: Writer,
    api: Api,
}

impl fmt::Debug for GcsStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GcsStore")
            .field("url", &self.objects.url)
            .finish_non_exhaustive()
    }
}

impl GcsStore {
    fn fault(&self, kind: ErrorKind, what: &str, key: &str, why: impl fmt::Display) -> Error {
        Error::new(kind, what).on(self.objects.subject(key)).because(why)
    }
}

#[async_trait]
impl RemoteStore for GcsStore {
    fn url(&self) -> &str {
        &self.objects.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: true,
            creates_atomically: true,
            multipart_is_create_only: false,
            streams_bodies: true,
            deletes_in_batches: false,
            lists_pending_uploads: true,
            copies: true,
            copies_parts: false,
        }
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        let written = self
            .writer
            .write("cannot write the object", key, body, digest, true)
            .await?;
        Ok(written.map_or(Created::Exists, Created::Written))
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        self.writer
            .write("cannot replace the object", key, body.into(), digest, false)
            .await?;
        Ok(())
    }

    async fn start_upload(&self, key: &str, _size_bytes: u64, _algorithm: DigestAlgorithm) -> Result<String> {
        self.api.start_upload(key).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        self.api.upload_part(key, upload, index, body, digest).await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        const WHAT: &str = "cannot complete the upload";
        if self.objects.info(key).await?.is_some() {
            return Ok(Created::Exists);
        }
        let answer = self.api.complete_upload(key, upload, parts).await?;
        let head = self.head(key).await?;
        let head = head.ok_or_else(|| {
            self.fault(
                ErrorKind::Unreachable,
                WHAT,
                key,
                "the store acknowledged it, but it does not exist",
            )
        })?;
        let stored = match head.checksum {
            StoredChecksum::Crc32c(stored) => Some(stored),
            _ => None,
        };
        if head.info.size_bytes == digest.size_bytes && stored.is_none_or(|stored| stored == digest.crc32c) {
            return Ok(Created::Written(head));
        }
        // Only the object of this completion, never one that another writer put there meanwhile.
        let made = answer
            .headers
            .get("x-goog-generation")
            .and_then(|generation| generation.to_str().ok());
        if let Some(generation) = made.filter(|made| head.info.version.as_deref() == Some(*made)) {
            self.api.discard(key, generation).await;
        }
        Err(self.fault(
            ErrorKind::Damaged,
            WHAT,
            key,
            format!(
                "the store holds {} bytes with CRC-32C {}; {} bytes with {} were sent",
                head.info.size_bytes,
                stored.map_or_else(|| "unknown".to_owned(), |stored: Crc32c| stored.to_string()),
                digest.size_bytes,
                digest.crc32c
            ),
        ))
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        self.api.abort_upload(key, upload).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        self.api.pending_uploads(prefix).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        Ok(self
            .objects
            .look_up(key)
            .await?
            .map(|(info, headers)| ObjectHead {
                info,
                checksum: crc32c_of(&headers).map_or(StoredChecksum::None, StoredChecksum::Crc32c),
            }))
    }

    async fn ignored_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        self.api.ignored_attributes(key).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.objects.read(key, range).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        crate::listed::objects(prefix, self.api.list(prefix))
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.objects.delete(keys).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        rewrite::copy(self, &self.api, from, to).await
    }
}
