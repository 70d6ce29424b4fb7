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
mod json;
mod multipart;
mod resource;
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
use http::Method;
use serde::Deserialize;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::{RemoteSettings, Scheme, Transport};
use stepvault_core::store_facts::{BucketFacts, Credentials, LeftBytes, LifecycleRule, Versioning};
use stepvault_core::{Error, ErrorKind, Result};

use self::api::{Api, PENDING};
use crate::examine::{Examined, Examiner};
use crate::listed::{Listed, MAXIMUM_PAGES};
use crate::options::{check_scheme, refuse_options};
use crate::payload::Payload;
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
            lists_pending_uploads: true,
            copies: true,
            ..StoreCapabilities::default()
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
        Some(facts(&self.api).await)
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

/// The requested fields, and no others: a bucket's description can be long.
const FIELDS: &str = "versioning,lifecycle,softDeletePolicy";
const WHAT: &str = "cannot read the bucket's rules";

/// Sends one request for versioning, lifecycle rules and soft delete.
async fn facts(api: &Api) -> BucketFacts {
    match described(api).await {
        Ok(bucket) => bucket.facts(),
        Err(error) => {
            BucketFacts { versioning: Err(error.clone()), rules: Err(error), soft_delete_seconds: None }
        }
    }
}

async fn described(api: &Api) -> Result<Bucket> {
    let call = api.json(WHAT, Method::GET, None)?.query([("fields", FIELDS)]);
    let answer = api.send(call).await?;
    serde_json::from_str(&answer.document)
        .map_err(|error| Error::new(ErrorKind::Failed, WHAT).on(&api.url).caused_by(error))
}

/// The fields of the JSON API's bucket that are used here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Bucket {
    versioning: Switch,
    lifecycle: Lifecycle,
    soft_delete_policy: SoftDelete,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Switch {
    enabled: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lifecycle {
    rule: Vec<Rule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SoftDelete {
    /// This API writes 64-bit numbers as text.
    retention_duration_seconds: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rule {
    action: Action,
    condition: Condition,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Action {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    age: Option<u32>,
    is_live: Option<bool>,
    days_since_noncurrent_time: Option<u32>,
    num_newer_versions: Option<u32>,
    matches_prefix: Vec<String>,
    matches_suffix: Vec<String>,
    matches_storage_class: Vec<String>,
}

impl Bucket {
    fn facts(self) -> BucketFacts {
        BucketFacts {
            versioning: Ok(if self.versioning.enabled { Versioning::On } else { Versioning::Off }),
            rules: Ok(self.lifecycle.rule.into_iter().map(Rule::meaning).collect()),
            soft_delete_seconds: self.soft_delete_policy.retention_duration_seconds.parse().ok(),
        }
    }
}

impl Rule {
    fn meaning(self) -> LifecycleRule {
        let condition = self.condition;
        let of_old_versions = condition.is_live == Some(false)
            || condition.days_since_noncurrent_time.is_some()
            || condition.num_newer_versions.is_some();
        let days = condition.days_since_noncurrent_time.or(condition.age).unwrap_or(0);
        let when = |wanted: bool| wanted.then_some(days);
        let deletes = self.action.kind == "Delete";
        LifecycleRule {
            narrowed: !condition.matches_suffix.is_empty() || !condition.matches_storage_class.is_empty(),
            prefixes: condition.matches_prefix,
            drops_uploads_after_days: when(self.action.kind == "AbortIncompleteMultipartUpload"),
            drops_old_versions_after_days: when(deletes && of_old_versions),
            deletes_after_days: when(deletes && !of_old_versions),
            // Objects of every class of Google's can be read at once.
            archives_after_days: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(document: &str) -> BucketFacts {
        serde_json::from_str::<Bucket>(document).unwrap().facts()
    }

    #[test]
    fn a_bucket_that_says_nothing_has_no_rules() {
        let facts = facts("{}");
        assert_eq!(facts.versioning.unwrap(), Versioning::Off);
        assert_eq!(facts.rules.unwrap(), Vec::new());
        assert_eq!(facts.soft_delete_seconds, None);
    }

    #[test]
    fn rules_are_told_apart_by_action_and_condition() {
        let facts = facts(
            r#"{"kind": "storage#bucket", "versioning": {"enabled": true},
                "softDeletePolicy": {"retentionDurationSeconds": "604800", "effectiveTime": "x"},
                "lifecycle": {"rule": [
                    {"action": {"type": "AbortIncompleteMultipartUpload"},
                     "condition": {"age": 7, "matchesPrefix": ["vault/"]}},
                    {"action": {"type": "Delete"}, "condition": {"age": 30, "isLive": false}},
                    {"action": {"type": "Delete"}, "condition": {"age": 90, "matchesSuffix": [".tmp"]}},
                    {"action": {"type": "SetStorageClass", "storageClass": "COLDLINE"}, "condition": {"age": 1}}
                ]}}"#,
        );
        assert_eq!(facts.versioning.unwrap(), Versioning::On);
        assert_eq!(facts.soft_delete_seconds, Some(604_800));
        let rules = facts.rules.unwrap();
        assert_eq!(rules[0].drops_uploads_after_days, Some(7));
        assert_eq!(rules[0].prefixes, ["vault/"]);
        assert_eq!((rules[1].drops_old_versions_after_days, rules[1].deletes_after_days), (Some(30), None));
        assert_eq!((rules[2].deletes_after_days, rules[2].narrowed), (Some(90), true));
        assert_eq!(rules[3], LifecycleRule::default());
    }
}
