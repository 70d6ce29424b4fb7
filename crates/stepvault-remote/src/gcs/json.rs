//! Requests of the JSON API for objects: writes, metadata, listings, reads, deletions, compositions.
//!
//! Writes do not go through Google's SDK: it states no length and no type for the bytes, which some servers require.

use std::ops::Range;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use stepvault_core::{Error, ErrorKind, PartDigest, Result};

use super::api::{Api, CONTENT_TYPE, client_error};
use super::resource::{Described, FIELDS, Resource};
use crate::causes::if_found;
use crate::listed::{ObjectPage, malformed, paged};
use crate::payload::Payload;
use crate::pieces::{Expected, no_bytes, shorter_than_asked, watched};
use crate::store::{BodyStream, IgnoredAttribute, ObjectHead, ObjectInfo};

const READ: &str = "cannot read the object";
/// The largest number of objects that one request joins.
pub(super) const MAXIMUM_SOURCES: usize = 32;
/// The directory of all temporary objects of a remote, which hold parts of uploads. Listings of the remote leave it out.
pub(super) const UPLOADS_DIRECTORY: &str = ".stepvault-uploads/";
/// Number of requests at once for one operation on several objects.
pub(super) const REQUESTS_AT_ONCE: usize = 16;
/// The condition that a key is unused.
pub(super) const ONLY_IF_FREE: (&str, &str) = ("ifGenerationMatch", "0");

/// A page of a listing.
#[derive(Debug)]
pub(super) struct ObjectsPage {
    pub(super) objects: Vec<Described>,
    /// The token of the next page; `None` at the end.
    pub(super) next: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListAnswer {
    kind: String,
    items: Option<Vec<Resource>>,
    next_page_token: Option<String>,
}

/// What an object's metadata says of requested attributes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    storage_class: Option<String>,
    kms_key_name: Option<String>,
}

/// One generation of an object, as a source of a composition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceObject {
    pub(super) key: String,
    pub(super) generation: String,
}

impl Api {
    /// Returns an object, or `None` when it does not exist.
    pub(super) async fn object(&self, key: &str) -> Result<Option<Described>> {
        const WHAT: &str = "cannot read the object's metadata";
        let call = self.json(WHAT, Method::GET, Some(key))?.query([("fields", FIELDS)]);
        let answer = if_found(self.send(call).await)?;
        answer.map(|answer| self.described(key, &answer)).transpose()
    }

    /// Returns the head of an object, or `None` when it does not exist.
    pub(super) async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        Ok(self.object(key).await?.map(|object| object.into_head(key)))
    }

    /// Returns the requested attributes that an object does not have by its metadata.
    pub(super) async fn ignored_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        let (class, kms_key) = (&self.options.storage_class, &self.options.kms_key);
        if class.is_none() && kms_key.is_none() {
            return Ok(Vec::new());
        }
        let call = self.json("cannot read the object's attributes", Method::GET, Some(key))?;
        let answer = self.send(call.query([("fields", "storageClass,kmsKeyName")])).await?;
        let reported: Attributes = answer.json()?;
        // The answer names the version of the key.
        let key_name = reported.kms_key_name.as_deref();
        let key_name = key_name.and_then(|name| name.split("/cryptoKeyVersions/").next());
        let compared =
            [("storage-class", class, reported.storage_class.as_deref()), ("kms-key", kms_key, key_name)];
        let ignored = compared.into_iter().filter_map(|(setting, requested, reported)| {
            let requested = requested.as_deref().filter(|requested| reported != Some(*requested))?;
            Some(IgnoredAttribute::new(setting, requested, reported))
        });
        Ok(ignored.collect())
    }

    /// Lists all objects whose keys begin with `prefix`.
    pub(super) fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        let prefix = self.keys.full_prefix(prefix);
        paged(move |token| {
            let prefix = prefix.clone();
            async move {
                let page = self.objects_page("cannot list the objects", &prefix, token.as_deref()).await?;
                let objects = page.objects.into_iter().filter_map(|object| {
                    let key = self.keys.key_of(&object.name);
                    let key = key.filter(|key| !key.starts_with(UPLOADS_DIRECTORY))?;
                    let key = key.to_owned();
                    Some(object.into_head(&key).info)
                });
                Ok(ObjectPage { objects: objects.collect(), next: page.next })
            }
        })
    }

    /// Returns one page of the objects whose names in the bucket begin with `prefix`.
    pub(super) async fn objects_page(
        &self,
        what: &str,
        prefix: &str,
        token: Option<&str>,
    ) -> Result<ObjectsPage> {
        let fields = format!("kind,nextPageToken,items({FIELDS})");
        let call = self.json(what, Method::GET, None)?.below("/o");
        let call = call
            .query([("prefix", prefix), ("fields", &fields)])
            .query(token.map(|token| ("pageToken", token)));
        let answer = self.send(call).await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => self.no_bucket(what, None),
            _ => error,
        })?;
        let page: ListAnswer = answer.json()?;
        // Any other document would look like an empty listing.
        if page.kind != "storage#objects" {
            return Err(answer.unusable("the store's answer is not a listing"));
        }
        let next = page.next_page_token.filter(|next| !next.is_empty());
        // A listing whose token repeats would never end.
        if next.is_some() && next.as_deref() == token {
            return Err(self.malformed(what, "it repeats its continuation token"));
        }
        let objects = page.items.unwrap_or_default().into_iter();
        let objects = objects.map(|object| object.described().map_err(|why| self.malformed(what, why)));
        Ok(ObjectsPage { objects: objects.collect::<Result<_>>()?, next })
    }

    /// Writes `body` at `key` in one request, either only if the key is unused or over an existing object. Returns `None`
    /// when the key is taken.
    pub(super) async fn insert(
        &self,
        what: &str,
        key: &str,
        body: Payload,
        digest: &PartDigest,
        only_if_free: bool,
    ) -> Result<Option<ObjectHead>> {
        let mut resource = self.new_resource();
        resource["crc32c"] = json!(digest.crc32c.to_base64());
        let boundary = format!("stepvault-{}", crate::random::identity());
        let before = format!(
            "--{boundary}\r\ncontent-type: application/json; charset=utf-8\r\n\r\n{resource}\r\n--{boundary}\r\n\
             content-type: {CONTENT_TYPE}\r\n\r\n"
        );
        let after = format!("\r\n--{boundary}--\r\n");
        let call = self
            .json_upload(what, key)?
            .query(only_if_free.then_some(ONLY_IF_FREE))
            .query(self.kms_key())
            .body(
                &format!("multipart/related; boundary={boundary}"),
                body.between(before.into(), after.into()),
            );
        let answer = match self.send(call).await {
            Ok(answer) => answer,
            Err(error) if only_if_free && error.kind() == ErrorKind::Conflict => return Ok(None),
            // What does not exist can only be the bucket.
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(self.no_bucket(what, Some(key))),
            Err(error) => return Err(error),
        };
        let object = self.described(key, &answer)?;
        let head = self.compare(what, key, object, (digest.size_bytes, digest.crc32c), true);
        head.await.map(Some)
    }

    fn no_bucket(&self, what: &str, key: Option<&str>) -> Error {
        Error::new(ErrorKind::Usage, what)
            .on(self.subject(key))
            .because("the bucket does not exist")
            .hint("create the bucket or container, or correct the remote's URL")
    }

    /// Returns the error for a listing that breaks the API's rules.
    pub(super) fn malformed(&self, what: &str, why: &str) -> Error {
        malformed(what, &self.subject(None), why)
    }

    /// Returns the properties of a new object.
    fn new_resource(&self) -> Value {
        let mut resource = json!({ "contentType": CONTENT_TYPE });
        if let Some(class) = &self.options.storage_class {
            resource["storageClass"] = json!(class);
        }
        resource
    }

    fn kms_key(&self) -> Option<(&'static str, &str)> {
        self.options.kms_key.as_deref().map(|name| ("kmsKeyName", name))
    }

    /// Deletes objects, several at once. Missing ones are not an error.
    pub(super) async fn delete_objects(&self, keys: &[String]) -> Result<()> {
        stream::iter(keys.to_vec())
            .map(|key| async move {
                let deleted = self.delete_object("cannot delete the object", &key, None).await;
                if_found(deleted).map(drop)
            })
            .buffer_unordered(REQUESTS_AT_ONCE)
            .try_collect()
            .await
    }

    /// Removes exactly the object that was written as `generation`, because it is damaged; best effort.
    pub(super) async fn discard(&self, key: &str, generation: i64) {
        const WHAT: &str = "cannot remove the damaged object";
        if let Err(error) = self.delete_object(WHAT, key, Some(generation)).await {
            tracing::warn!("{error}");
        }
    }

    /// Deletes an object, or only one generation of it. A missing one is an error.
    async fn delete_object(&self, what: &str, key: &str, generation: Option<i64>) -> Result<()> {
        let condition = generation.map(|generation| ("ifGenerationMatch", generation.to_string()));
        let call = self.json(what, Method::DELETE, Some(key))?.query(condition);
        self.send(call).await.map(drop)
    }

    /// Joins at most 32 objects to one at `key`, either only if the key is unused or over an existing object.
    pub(super) async fn compose(
        &self,
        what: &str,
        key: &str,
        sources: &[SourceObject],
        only_if_free: bool,
    ) -> Result<Described> {
        let mut listed = Vec::with_capacity(sources.len());
        for source in sources {
            let name = self.keys.full(&source.key)?;
            listed.push(json!({ "name": name, "generation": source.generation }));
        }
        let body = json!({ "sourceObjects": listed, "destination": self.new_resource() });
        let call = self
            .json(what, Method::POST, Some(key))?
            .below("/compose")
            .query(only_if_free.then_some(ONLY_IF_FREE))
            .query(self.kms_key())
            .body("application/json", Bytes::from(body.to_string()));
        let answer = self.send(call).await?;
        self.described(key, &answer)
    }

    /// See [`RemoteStore::read`](crate::store::RemoteStore::read).
    pub(super) async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        let subject = self.subject(Some(key));
        if let Some(range) = range.as_ref().filter(|range| range.is_empty()) {
            let size_bytes = self.object(key).await?.map(|object| object.size_bytes);
            return no_bytes(&subject, size_bytes, range);
        }
        let bounds = range.as_ref().map(|range| {
            let last = range.end.saturating_sub(1);
            ("range", format!("bytes={}-{last}", range.start))
        });
        let call = self.json(READ, Method::GET, Some(key))?.query([("alt", "media")]);
        let (response, _take_back) = self.open(call.headers(bounds)).await?;
        let size_bytes = sent_bytes(&response, range.as_ref(), &subject)?;
        let expected = Expected { subject: subject.clone(), size_bytes, stall_timeout: self.stall_timeout };
        let pieces = response.bytes_stream();
        let pieces = pieces.map_err(move |error| client_error(READ, &subject, error));
        Ok(watched(pieces.boxed(), expected))
    }
}

/// Returns the length of the body of an answer, which must be of the whole object or of the `wanted` bytes.
fn sent_bytes(response: &reqwest::Response, wanted: Option<&Range<u64>>, subject: &str) -> Result<u64> {
    let fault = |kind, why: &str| Error::new(kind, READ).on(subject).because(why);
    let Some(wanted) = wanted else {
        let length = length(response.headers());
        return length.ok_or_else(|| fault(ErrorKind::Unreachable, "the answer does not state its length"));
    };
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return Err(fault(ErrorKind::Failed, "the store answered a part of it with the whole"));
    }
    let (sent, object_bytes) = content_range(response.headers())
        .ok_or_else(|| fault(ErrorKind::Unreachable, "the answer does not state its range"))?;
    if object_bytes < wanted.end {
        return Err(shorter_than_asked(subject, object_bytes, wanted));
    }
    if sent != *wanted {
        return Err(fault(ErrorKind::Failed, "the store answered with another range"));
    }
    Ok(wanted.end - wanted.start)
}

/// Returns the length of a whole object.
fn length(headers: &HeaderMap) -> Option<u64> {
    let of = |name: &str| headers.get(name)?.to_str().ok()?.parse().ok();
    of(CONTENT_LENGTH.as_str()).or_else(|| of("x-goog-stored-content-length"))
}

/// Returns the range of an answer and the length of the object. The end may be before the start: some servers answer a
/// range past the end this way.
fn content_range(headers: &HeaderMap) -> Option<(Range<u64>, u64)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (range, object_bytes) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let last: u64 = last.parse().ok()?;
    Some((start.parse().ok()?..last.saturating_add(1), object_bytes.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_an_answer_is_read_or_unknown() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, http::HeaderValue::from_static(text));
            content_range(&headers)
        };
        assert_eq!(read("bytes 3-6/10"), Some((3..7, 10)));
        let (sent, object_bytes) = read("bytes 5000-99/100").unwrap();
        assert!(sent.is_empty() && object_bytes == 100);
        for unknown in ["bytes */10", "bytes 3-6/*", "items 3-6/10", "bytes 3-/10", ""] {
            assert_eq!(read(unknown), None, "{unknown}");
        }
    }
}
