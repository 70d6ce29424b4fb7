//! `gs://bucket/prefix`: Google Cloud Storage.
//!
//! Objects are read, listed, deleted and copied by the JSON API. Whole ones are written through Google's SDK, create-only
//! by generation 0, with a CRC-32C that the store checks and that is compared with its answer. Large files are sent as
//! XML multipart uploads: parts in parallel and across restarts, each checked on arrival, and the finished object's
//! CRC-32C compared with the file's. Completion supports no preconditions: the key is checked before it, and of two
//! simultaneous completions the later one wins. Data keys are unique to an attempt, so this can only happen between two
//! writers of the same bytes.
//!
//! With `transport = "json"` everything goes through the JSON API: the parts of a file are temporary objects, which are
//! composed create-only to one object.
//!
//! Incomplete uploads cost storage until they are aborted. They are listed and removed by `gc`; a lifecycle rule
//! `AbortIncompleteMultipartUpload` on the bucket does the same for nodes that never come back.

mod access;
mod api;
mod examine;
mod json;
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

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use google_cloud_gax::retry_policy::NeverRetry;
use google_cloud_storage::client::Storage;
use google_cloud_storage::read_resume_policy::NeverResume;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::{RemoteSettings, Scheme, Transport};
use stepvault_core::store_facts::{BucketFacts, Credentials, LeftBytes};
use stepvault_core::{Error, ErrorKind, Result};

use self::api::{Api, PENDING};
use crate::examine::{Examined, Examiner};
use crate::options::{check_scheme, refuse_options};
use crate::payload::Payload;
use crate::pending::{Listed, MAXIMUM_PAGES};
use crate::store::{
    BodyStream, Created, IgnoredAttribute, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore,
    StoreCapabilities,
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
pub(crate) async fn connect(settings: &RemoteSettings) -> Result<Examined> {
    check_scheme(settings, Scheme::Gcs)?;
    refuse_options(settings)?;
    let api = Api::new(settings).await?;
    let writes = match settings.transport {
        Transport::Json => Writes::Json,
        Transport::Xml => Writes::Xml(Box::new(google_client(settings, &api).await?)),
    };
    Ok(Examined::of(GcsStore { api, writes }))
}

async fn google_client(settings: &RemoteSettings, api: &Api) -> Result<Storage> {
    let client = Storage::builder()
        .with_endpoint(&api.access().endpoint)
        .with_credentials(api.access().sdk_credentials())
        .with_retry_policy(NeverRetry)
        .with_read_resume_policy(NeverResume)
        .build();
    client.await.map_err(|error| {
        Error::new(ErrorKind::Failed, "cannot open the remote").on(&settings.url).caused_by(error)
    })
}

/// A prefix of a bucket.
struct GcsStore {
    api: Api,
    writes: Writes,
}

impl fmt::Debug for GcsStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GcsStore").field("url", &self.api.url).finish_non_exhaustive()
    }
}

/// How objects are written, and large files sent in parts.
enum Writes {
    /// Whole objects by Google's own client, large files by XML multipart uploads.
    Xml(Box<Storage>),
    /// Everything by the JSON API: the parts of a large file are temporary objects.
    Json,
}

impl GcsStore {
    async fn write(
        &self,
        what: &str,
        key: &str,
        body: Payload,
        digest: &PartDigest,
        only_if_free: bool,
    ) -> Result<Option<ObjectHead>> {
        let api = &self.api;
        match &self.writes {
            Writes::Xml(storage) => write::write(storage, api, what, key, body, digest, only_if_free).await,
            Writes::Json => api.insert(what, key, body, digest, only_if_free).await,
        }
    }

    async fn listed(&self, prefix: &str, most_pages: usize) -> Result<Listed> {
        match self.writes {
            Writes::Xml(_) => multipart::listed(&self.api, prefix, most_pages).await,
            Writes::Json => temporary::listed(&self.api, prefix, most_pages).await,
        }
    }
}

#[async_trait]
impl RemoteStore for GcsStore {
    fn url(&self) -> &str {
        &self.api.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: true,
            creates_atomically: true,
            multipart_is_create_only: matches!(self.writes, Writes::Json),
            streams_bodies: true,
            deletes_in_batches: false,
            lists_pending_uploads: true,
            copies: true,
            copies_parts: false,
        }
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        let written = self.write("cannot write the object", key, body, digest, true);
        Ok(written.await?.map_or(Created::Exists, Created::Written))
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        let written = self.write("cannot replace the object", key, body.into(), digest, false);
        written.await.map(drop)
    }

    async fn start_upload(&self, key: &str, _size_bytes: u64, _algorithm: DigestAlgorithm) -> Result<String> {
        match self.writes {
            Writes::Xml(_) => multipart::start(&self.api, key).await,
            Writes::Json => temporary::start(&self.api, key).await,
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
        match self.writes {
            Writes::Xml(_) => multipart::send_part(&self.api, key, upload, index, body, digest).await,
            Writes::Json => temporary::send_part(&self.api, key, upload, index, body, digest).await,
        }
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        match self.writes {
            Writes::Xml(_) => multipart::complete(&self.api, key, upload, parts, digest).await,
            Writes::Json => temporary::complete(&self.api, key, upload, parts, digest).await,
        }
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        match self.writes {
            Writes::Xml(_) => multipart::abort(&self.api, key, upload).await,
            Writes::Json => temporary::abort(&self.api, key, upload).await,
        }
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        let listed = self.listed(prefix, MAXIMUM_PAGES).await?;
        listed.whole(PENDING, &self.api.url)
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        self.api.head(key).await
    }

    async fn ignored_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        self.api.ignored_attributes(key).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        self.api.read(key, range).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        crate::listed::objects(prefix, self.api.list(prefix))
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.api.delete_objects(keys).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        self.api.copy(from, to).await
    }
}

#[async_trait]
impl Examiner for GcsStore {
    async fn credentials(&self) -> Result<Option<Credentials>> {
        self.api.access().credentials().await.map(Some)
    }

    async fn bucket(&self) -> Option<BucketFacts> {
        Some(examine::facts(&self.api).await)
    }

    async fn listed_uploads(&self, prefix: &str, most_pages: usize) -> Result<Option<Listed>> {
        self.listed(prefix, most_pages).await.map(Some)
    }

    async fn uploaded_bytes(&self, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
        match self.writes {
            Writes::Xml(_) => multipart::uploaded_bytes(&self.api, upload).await,
            Writes::Json => temporary::uploaded_bytes(&self.api, upload).await,
        }
    }
}
