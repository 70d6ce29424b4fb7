//! Parses the head of a request.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, Method, request::Parts};
use percent_encoding::percent_decode_str;

use super::reply::Failure;
use super::state::Core;
use crate::objects::StoredObject;

/// The addressed resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    JsonUpload {
        bucket: String,
    },
    JsonObject {
        bucket: String,
        key: String,
    },
    JsonBucket {
        bucket: String,
    },
    /// All objects of a bucket.
    JsonObjects {
        bucket: String,
    },
    JsonCompose {
        bucket: String,
        key: String,
    },
    /// From one object to another.
    JsonRewrite {
        from: (String, String),
        to: (String, String),
    },
    JsonOther,
    XmlBucket {
        bucket: String,
    },
    XmlObject {
        bucket: String,
        key: String,
    },
    XmlService,
}

impl Target {
    fn parse(path: &str) -> Self {
        if let Some(rest) = path.strip_prefix("/upload/storage/v1/b/") {
            return match rest.split('/').collect::<Vec<_>>()[..] {
                [bucket, "o"] => Self::JsonUpload { bucket: decode(bucket) },
                _ => Self::JsonOther,
            };
        }
        // Reads of media have a path of their own beside the common one.
        let path =
            path.strip_prefix("/download").filter(|path| path.starts_with("/storage/v1/b/")).unwrap_or(path);
        if let Some(rest) = path.strip_prefix("/storage/v1/") {
            // An object's slashes are percent-encoded in JSON paths, so it is one segment.
            return match rest.split('/').collect::<Vec<_>>()[..] {
                ["b", bucket, "o", key] if !key.is_empty() => {
                    Self::JsonObject { bucket: decode(bucket), key: decode(key) }
                }
                ["b", bucket, "o", key, "rewriteTo", "b", to_bucket, "o", to_key]
                    if !key.is_empty() && !to_key.is_empty() =>
                {
                    Self::JsonRewrite {
                        from: (decode(bucket), decode(key)),
                        to: (decode(to_bucket), decode(to_key)),
                    }
                }
                ["b", bucket, "o"] if !bucket.is_empty() => Self::JsonObjects { bucket: decode(bucket) },
                ["b", bucket, "o", key, "compose"] if !key.is_empty() => {
                    Self::JsonCompose { bucket: decode(bucket), key: decode(key) }
                }
                ["b", bucket] if !bucket.is_empty() => Self::JsonBucket { bucket: decode(bucket) },
                _ => Self::JsonOther,
            };
        }
        match path.trim_start_matches('/').split_once('/') {
            Some((bucket, key)) if !key.is_empty() => {
                Self::XmlObject { bucket: decode(bucket), key: decode(key) }
            }
            Some((bucket, _)) => Self::XmlBucket { bucket: decode(bucket) },
            None if path.len() > 1 => Self::XmlBucket { bucket: decode(&path[1..]) },
            None => Self::XmlService,
        }
    }

    /// Returns whether answers take the JSON API's form.
    pub(super) fn is_json(&self) -> bool {
        matches!(
            self,
            Self::JsonUpload { .. }
                | Self::JsonObject { .. }
                | Self::JsonBucket { .. }
                | Self::JsonObjects { .. }
                | Self::JsonCompose { .. }
                | Self::JsonRewrite { .. }
                | Self::JsonOther
        )
    }
}

/// A request without its body.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) target: Target,
    pub(super) query: BTreeMap<String, String>,
    pub(super) headers: HeaderMap,
    /// `http://ADDRESS` of the listener, because a client's `Host` may lack the port.
    pub(super) endpoint: String,
    /// Whether a fault damages the uploaded bytes.
    pub(super) damage_upload: bool,
}

impl Request {
    pub(super) fn new(parts: Parts, endpoint: &str) -> Self {
        let query = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        Self {
            target: Target::parse(parts.uri.path()),
            query: query.into_owned().collect(),
            method: parts.method,
            headers: parts.headers,
            endpoint: endpoint.to_owned(),
            damage_upload: false,
        }
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// Returns a numeric query parameter.
    pub(super) fn number(&self, name: &str) -> Result<Option<usize>, Failure> {
        self.parameter(name).filter(|value| !value.is_empty()).map_or(Ok(None), |value| {
            value.parse().map(Some).map_err(|_| {
                Failure::new(400, "InvalidArgument", &format!("Invalid value for {name}: {value}"))
            })
        })
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Refuses a request for a generation that the object does not have: this server keeps no other one.
    pub(super) fn check_generation(&self, object: &StoredObject) -> Result<(), Failure> {
        let has_it = |asked: &str| asked == object.generation.to_string();
        if self.parameter("generation").is_none_or(has_it) { Ok(()) } else { Err(Failure::no_such_key()) }
    }

    /// Refuses a request without the bearer token that the options require.
    pub(super) fn authorize(&self, core: &Core) -> Result<(), Failure> {
        let given = self.header("authorization").unwrap_or_default();
        let bearer = given.strip_prefix("Bearer").map(str::trim).filter(|bearer| !bearer.is_empty());
        match bearer {
            Some(bearer) if bearer == core.options.bearer => Ok(()),
            None if core.options.anonymous && (given.is_empty() || given.trim() == "Bearer") => Ok(()),
            Some(_) => Err(Failure::new(401, "AuthenticationRequired", "Invalid Credentials")),
            None => Err(Failure::new(401, "AuthenticationRequired", "Authentication required.")),
        }
    }

    /// Returns the uploaded bytes, with a bit flipped if a fault requires it.
    pub(super) fn arrived(&self, body: Bytes) -> Bytes {
        if self.damage_upload { flip_first_bit(&body) } else { body }
    }

    /// Returns the headers that are stored with an object written through the XML API.
    pub(super) fn attributes(&self) -> BTreeMap<String, String> {
        const KEPT: [&str; 7] = [
            "cache-control",
            "content-disposition",
            "content-encoding",
            "content-language",
            "content-type",
            "x-goog-storage-class",
            KMS_KEY,
        ];
        self.headers
            .iter()
            .filter(|(name, _)| KEPT.contains(&name.as_str()) || name.as_str().starts_with("x-goog-meta-"))
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
            .collect()
    }
}

/// The header under which an object's encryption key is stored.
pub(super) const KMS_KEY: &str = "x-goog-encryption-kms-key-name";

/// Returns a copy with the lowest bit of the first byte flipped.
pub(super) fn flip_first_bit(body: &[u8]) -> Bytes {
    let mut damaged = body.to_vec();
    if let Some(byte) = damaged.first_mut() {
        *byte ^= 1;
    }
    Bytes::from(damaged)
}

/// Decodes percent-encoding.
pub(super) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
