//! The S3 store: maps each method to its request.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use bytes::Bytes;
use futures::stream::BoxStream;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, Result};

use super::attributes::Attributes;
use super::client::{Clients, StaticKeys};
use super::copy::Source;
use super::errors::Fault;
use super::multipart::ALL_CHECKS;
use crate::payload::Payload;
use crate::store::{
    Created, IgnoredAttribute, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore,
    StoreCapabilities,
};

/// A bucket, or a prefix of one, on S3 or a compatible server.
#[derive(Debug)]
pub(crate) struct S3Store {
    clients: Clients,
    url: String,
    pub(super) bucket: String,
    /// Empty, or ends with a slash.
    prefix: String,
    pub(super) owner: Option<String>,
    pub(super) attributes: Attributes,
    pub(super) lists_pending_uploads: AtomicBool,
    pub(super) deletes_in_batches: AtomicBool,
    /// Cleared once the store has refused `If-None-Match` as such, and done the same write without it.
    pub(super) sends_conditions: AtomicBool,
    /// Which checksums the store accepts at the completion of an upload.
    pub(super) completion_checks: AtomicU8,
}

impl S3Store {
    pub(crate) async fn open(settings: &RemoteSettings, keys: Option<StaticKeys>) -> Result<Self> {
        let prefix = match settings.url.prefix.as_str() {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Ok(Self {
            clients: Clients::load(settings, keys).await?,
            url: settings.url.to_string(),
            bucket: settings.url.bucket.clone(),
            prefix,
            owner: settings.expected_bucket_owner.clone(),
            attributes: Attributes::of(settings),
            lists_pending_uploads: AtomicBool::new(true),
            deletes_in_batches: AtomicBool::new(true),
            sends_conditions: AtomicBool::new(true),
            completion_checks: AtomicU8::new(ALL_CHECKS),
        })
    }

    pub(super) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(super) async fn client(&self) -> Result<Client> {
        self.clients.get().await
    }

    /// Returns the key in the bucket.
    pub(super) fn full_key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Returns the key relative to the prefix, or `None` for a key outside it and for the prefix itself.
    pub(super) fn relative_key<'a>(&self, full_key: &'a str) -> Option<&'a str> {
        full_key.strip_prefix(&self.prefix).filter(|key| !key.is_empty())
    }

    /// Returns the URL of an object, for messages.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}/{key}", self.url)
    }

    /// Converts an SDK error and records what it says about the credentials.
    pub(super) fn fault<E>(&self, error: &SdkError<E, HttpResponse>) -> Fault
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let mut fault = Fault::of(error);
        if fault.refuses_checksums() && self.clients.stop_checksums() {
            tracing::info!(
                "{}: the store accepts no checksums; requests are sent without",
                self.url
            );
            fault.repeat();
        }
        if fault.is_expired() {
            self.clients.mark_expired();
        }
        fault
    }

    /// Returns the error of an operation `what` on the object `key`.
    pub(super) fn failed<E>(&self, what: &str, key: &str, error: &SdkError<E, HttpResponse>) -> Error
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        self.fault(error).into_error(what, &self.name(key))
    }

    /// Returns the answer, or `None` for a refusal that is `expected`; any other is the error of `what` on `key`.
    pub(super) fn unless<T, E>(
        &self,
        what: &str,
        key: &str,
        answer: std::result::Result<T, SdkError<E, HttpResponse>>,
        expected: fn(&Fault) -> bool,
    ) -> Result<Option<T>>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let error = match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        let fault = self.fault(&error);
        if expected(&fault) {
            return Ok(None);
        }
        Err(fault.into_error(what, &self.name(key)))
    }
}

#[async_trait]
impl RemoteStore for S3Store {
    fn url(&self) -> &str {
        &self.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: self.clients.sends_checksums(),
            creates_atomically: self.sends_conditions.load(Ordering::Relaxed),
            multipart_is_create_only: true,
            streams_bodies: true,
            deletes_in_batches: self.deletes_in_batches.load(Ordering::Relaxed),
            lists_pending_uploads: self.lists_pending_uploads.load(Ordering::Relaxed),
            copies: true,
            copies_parts: true,
        }
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        self.put_new(key, body, digest).await
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        self.put_over(key, body.into(), digest).await
    }

    async fn start_upload(&self, key: &str, _size_bytes: u64, algorithm: DigestAlgorithm) -> Result<String> {
        self.create_multipart(key, Some(algorithm)).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        self.put_part(key, upload, index, body, digest).await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        self.complete_multipart(key, upload, parts, digest).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        self.abort_multipart(key, upload).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        self.list_multiparts(prefix).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        self.head_object(key).await
    }

    async fn ignored_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        self.compare_attributes(key).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.get_object(key, range).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        crate::listed::objects(prefix, self.list_objects(prefix))
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.delete_objects(keys).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        self.copy_object(from, to).await
    }

    async fn copy_part(
        &self,
        from: &str,
        key: &str,
        upload: &str,
        index: u32,
        start: u64,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let range = start..start.saturating_add(digest.size_bytes);
        let source = Source {
            key: from,
            version: None,
        };
        let copied = self.copy_range(source, range, key, upload, index).await?;
        self.prove_part(key, index, copied, digest)
    }
}
