//! Requests of the JSON API for objects: writes, metadata, listings, reads, deletions, compositions.
//!
//! Writes do not go through Google's SDK: it states no length and no type for the bytes, which some servers require.

use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use stepvault_core::digest::PartDigest;
use stepvault_core::{Error, ErrorKind, Result};

use super::api::{Api, Call, ObjectOptions, encode};
use super::client::http_error;
use super::resource::{Described, FIELDS, Resource};
use crate::generic::errors::transport_error;
use crate::generic::objects::shorter_than_asked;
use crate::payload::Payload;
use crate::store::{IgnoredAttribute, ObjectHead};

const CONTENT_TYPE: &str = "application/octet-stream";
const READ: &str = "cannot read the object";
/// The largest number of objects that one request joins.
pub(super) const MAXIMUM_SOURCES: usize = 32;

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

/// Bytes as they arrive, with the length of the object that they are from.
pub(super) struct Media {
    pub(super) object_bytes: u64,
    pub(super) bytes: BoxStream<'static, Result<Bytes>>,
}

impl Api {
    fn object_path(&self, key: &str) -> Result<String> {
        Ok(format!("/o/{}", encode(&self.keys.full(key)?)))
    }

    /// Returns the head of an object, or `None` when it does not exist.
    pub(super) async fn object(&self, key: &str) -> Result<Option<ObjectHead>> {
        const WHAT: &str = "cannot read the object's metadata";
        let path = format!("{}?fields={}", self.object_path(key)?, encode(FIELDS));
        match self
            .send_json(&path, Call::new(WHAT, Method::GET, Some(key)))
            .await
        {
            Ok(document) => Ok(Some(self.described(WHAT, key, &document)?.into_head(key))),
            Err(missing) if missing.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the requested attributes that an object does not have by its metadata.
    pub(super) async fn ignored_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        let ObjectOptions {
            storage_class,
            kms_key,
        } = &self.options;
        if storage_class.is_none() && kms_key.is_none() {
            return Ok(Vec::new());
        }
        let what = "cannot read the object's attributes";
        let path = format!("{}?fields=storageClass,kmsKeyName", self.object_path(key)?);
        let document = self
            .send_json(&path, Call::new(what, Method::GET, Some(key)))
            .await?;
        let reported: Attributes = serde_json::from_str(&document).map_err(|error| {
            Error::new(ErrorKind::Unreachable, what)
                .on(self.subject(Some(key)))
                .because(format!("the store's answer cannot be read ({error})"))
        })?;
        // The answer names the version of the key.
        let key_name = reported.kms_key_name.map(|name| {
            name.split("/cryptoKeyVersions/")
                .next()
                .unwrap_or_default()
                .to_owned()
        });
        let compared = [
            ("storage-class", storage_class, reported.storage_class),
            ("kms-key", kms_key, key_name),
        ];
        Ok(compared
            .into_iter()
            .filter_map(|(setting, requested, reported)| {
                let requested = requested.clone().filter(|_| *requested != reported)?;
                Some(IgnoredAttribute {
                    setting,
                    requested,
                    reported,
                })
            })
            .collect())
    }

    /// Returns one page of the objects whose names in the bucket begin with `prefix`.
    pub(super) async fn objects_page(
        &self,
        what: &str,
        prefix: &str,
        token: Option<&str>,
    ) -> Result<ObjectsPage> {
        let fault = |kind, why: String| Error::new(kind, what).on(self.subject(None)).because(why);
        let fields = format!("kind,nextPageToken,items({FIELDS})");
        let mut path = format!("/o?prefix={}&fields={}", encode(prefix), encode(&fields));
        if let Some(token) = token {
            path.push_str("&pageToken=");
            path.push_str(&encode(token));
        }
        let call = Call::new(what, Method::GET, None);
        let document = self.send_json(&path, call).await.map_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                return error;
            }
            self.no_bucket(what, None)
        })?;
        let answer: ListAnswer = serde_json::from_str(&document).map_err(|error| {
            let why = format!("the store's answer cannot be read ({error})");
            fault(ErrorKind::Unreachable, why)
        })?;
        // Any other document would look like an empty listing.
        if answer.kind != "storage#objects" {
            let why = "the store's answer is not a listing".to_owned();
            return Err(fault(ErrorKind::Unreachable, why));
        }
        let malformed = |why: &str| {
            let why = format!("the store's listing is malformed: {why}");
            fault(ErrorKind::Failed, why)
        };
        let next = answer.next_page_token.filter(|next| !next.is_empty());
        // A listing whose token repeats would never end.
        if next.is_some() && next.as_deref() == token {
            return Err(malformed("it repeats its continuation token"));
        }
        let objects = answer.items.unwrap_or_default().into_iter();
        let objects = objects.map(|object| object.described().map_err(malformed));
        Ok(ObjectsPage {
            objects: objects.collect::<Result<_>>()?,
            next,
        })
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
        let mut query = format!("uploadType=multipart&name={}", encode(&self.keys.full(key)?));
        let condition = only_if_free.then_some(("ifGenerationMatch", "0"));
        for (name, value) in condition.into_iter().chain(self.kms_key()) {
            query.push('&');
            query.push_str(name);
            query.push('=');
            query.push_str(&encode(value));
        }
        let mut resource = self.new_resource();
        resource["crc32c"] = json!(digest.crc32c.to_base64());
        let boundary = format!("stepvault-{}", crate::random::identity());
        let before = format!(
            "--{boundary}\r\ncontent-type: application/json; charset=utf-8\r\n\r\n{resource}\r\n--{boundary}\r\n\
             content-type: {CONTENT_TYPE}\r\n\r\n"
        );
        let after = format!("\r\n--{boundary}--\r\n");
        let call = Call {
            headers: vec![("content-type", format!("multipart/related; boundary={boundary}"))],
            body: body.between(before.into(), after.into()),
            ..Call::new(what, Method::POST, Some(key))
        };
        let document = match self.send_insert(&query, call).await {
            Ok(document) => document,
            Err(error) if only_if_free && error.kind() == ErrorKind::Conflict => return Ok(None),
            // What does not exist can only be the bucket.
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(self.no_bucket(what, Some(key))),
            Err(error) => return Err(error),
        };
        let object = self.described(what, key, &document)?;
        let sent = (digest.size_bytes, digest.crc32c);
        self.compare(what, key, object, sent).await.map(Some)
    }

    fn no_bucket(&self, what: &str, key: Option<&str>) -> Error {
        Error::new(ErrorKind::Usage, what)
            .on(self.subject(key))
            .because("the bucket does not exist")
            .hint("create the bucket or container, or correct the remote's URL")
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

    /// Deletes an object, or only one generation of it. A missing one is an error.
    pub(super) async fn delete_object(&self, what: &str, key: &str, generation: Option<&str>) -> Result<()> {
        let mut path = self.object_path(key)?;
        if let Some(generation) = generation {
            path.push_str("?ifGenerationMatch=");
            path.push_str(&encode(generation));
        }
        let call = Call::new(what, Method::DELETE, Some(key));
        self.send_json(&path, call).await.map(|_| ())
    }

    /// Joins at most 32 objects to one at `key`, either only if the key is unused or over an existing object.
    pub(super) async fn compose(
        &self,
        what: &str,
        key: &str,
        sources: &[SourceObject],
        only_if_free: bool,
    ) -> Result<Described> {
        let mut path = format!("{}/compose", self.object_path(key)?);
        let condition = only_if_free.then_some(("ifGenerationMatch", "0"));
        for (index, (name, value)) in condition.into_iter().chain(self.kms_key()).enumerate() {
            path.push(if index == 0 { '?' } else { '&' });
            path.push_str(name);
            path.push('=');
            path.push_str(&encode(value));
        }
        let mut listed = Vec::with_capacity(sources.len());
        for source in sources {
            let name = self.keys.full(&source.key)?;
            listed.push(json!({ "name": name, "generation": source.generation }));
        }
        let body = json!({ "sourceObjects": listed, "destination": self.new_resource() });
        let call = Call {
            headers: vec![("content-type", "application/json".to_owned())],
            body: Bytes::from(body.to_string()).into(),
            ..Call::new(what, Method::POST, Some(key))
        };
        let document = self.send_json(&path, call).await?;
        self.described(what, key, &document)
    }

    /// Begins to read the bytes of a range that is not empty; the whole object for `None`.
    pub(super) async fn media(&self, key: &str, range: Option<&Range<u64>>) -> Result<Media> {
        let subject = self.subject(Some(key));
        let path = format!("{}?alt=media", self.object_path(key)?);
        let mut call = Call::new(READ, Method::GET, Some(key));
        if let Some(range) = range {
            let value = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            call.headers.push(("range", value));
        }
        let response = self.open_json(&path, call).await?;
        let fault = |kind, why: &str| Error::new(kind, READ).on(&subject).because(why);
        let object_bytes = match range {
            None => length(response.headers())
                .ok_or_else(|| fault(ErrorKind::Unreachable, "the answer does not state its length"))?,
            Some(wanted) => {
                if response.status() != StatusCode::PARTIAL_CONTENT {
                    let why = "the store answered a part of it with the whole";
                    return Err(fault(ErrorKind::Failed, why));
                }
                let (sent, object_bytes) = content_range(response.headers())
                    .ok_or_else(|| fault(ErrorKind::Unreachable, "the answer does not state its range"))?;
                if object_bytes < wanted.end {
                    return Err(shorter_than_asked(&subject, object_bytes, wanted));
                }
                if sent != *wanted {
                    return Err(fault(ErrorKind::Failed, "the store answered with another range"));
                }
                object_bytes
            }
        };
        let bytes = stream::try_unfold((response, subject), |(mut response, subject)| async move {
            match response.chunk().await {
                Ok(Some(piece)) => Ok(Some((piece, (response, subject)))),
                Ok(None) => Ok(None),
                Err(error) => Err(transport_error(READ, &subject, &http_error(error))),
            }
        });
        Ok(Media {
            object_bytes,
            bytes: bytes.boxed(),
        })
    }
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
    Some((
        start.parse().ok()?..last.saturating_add(1),
        object_bytes.parse().ok()?,
    ))
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
