//! The JSON API: single-request uploads, object resources and media reads.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::checksums::{Checksums, Claims};
use super::compose::COMPONENT_COUNT;
use super::conditions::{Conditions, METAGENERATION};
use super::fields::select;
use super::read::{read, storage_class};
use super::reply::{Failure, Reply, rfc3339};
use super::request::{KMS_KEY, Request};
use super::server::Outcome;
use super::state::{Core, NewObject, opaque_etag};
use crate::objects::StoredObject;

/// JSON fields of an object resource and the headers under which they are stored.
const FIELDS: [(&str, &str); 7] = [
    ("cacheControl", "cache-control"),
    ("contentDisposition", "content-disposition"),
    ("contentEncoding", "content-encoding"),
    ("contentLanguage", "content-language"),
    ("contentType", "content-type"),
    ("storageClass", "x-goog-storage-class"),
    ("kmsKeyName", KMS_KEY),
];

/// `uploadType=multipart`: metadata, media and optionally a trailing part with checksums.
pub(super) fn insert_multipart(core: &Core, request: &Request, bucket: &str, body: &Bytes) -> Outcome {
    let parts = split_related(request, body)?;
    let [metadata, media, trailing @ ..] = parts.as_slice() else {
        return Err(invalid("A multipart upload has a metadata part and a media part."));
    };
    let resource = parse_resource(&metadata.body)?;
    let mut claims = Claims::from_headers(&request.headers)?.and(Claims::from_resource(&resource)?);
    if let [trailing] = trailing {
        claims = claims.and(Claims::from_resource(&parse_resource(&trailing.body)?)?);
    } else if !trailing.is_empty() {
        return Err(invalid("Too many parts."));
    }
    let mut attributes = attributes_of(&resource);
    set_content_type(&mut attributes, media.content_type.as_deref())?;
    let key = object_name(request, &resource)?;
    insert(core, request, bucket, key, &media.body, attributes, &claims)
}

/// `uploadType=media`: the body is the object.
pub(super) fn insert_media(core: &Core, request: &Request, bucket: &str, body: &Bytes) -> Outcome {
    let key = object_name(request, &Value::Null)?;
    let claims = Claims::from_headers(&request.headers)?;
    insert(core, request, bucket, key, body, request.attributes(), &claims)
}

fn insert(
    core: &Core,
    request: &Request,
    bucket: &str,
    key: String,
    media: &Bytes,
    attributes: BTreeMap<String, String>,
    claims: &Claims,
) -> Outcome {
    let conditions = Conditions::from_query(&request.query)?;
    let body = request.arrived(media.clone());
    let checksums = Checksums::of(&body);
    claims.check(&checksums, core)?;
    let mut attributes = attributes;
    if let Some(key) = request.parameter("kmsKeyName") {
        attributes.insert(KMS_KEY.to_owned(), key.to_owned());
    }
    let new = NewObject { bucket: bucket.to_owned(), key, body, checksums, attributes };
    let key = new.key.clone();
    let object = core.commit(new, &conditions)?;
    Ok(Reply::json(200, &resource_of(core, &request.endpoint, bucket, &key, &object)))
}

/// Returns the object resource.
pub(super) fn get(core: &Core, request: &Request, bucket: &str, key: &str) -> Outcome {
    let object = core.object(bucket, key).ok_or_else(Failure::no_such_key)?;
    request.check_generation(&object)?;
    Conditions::from_query(&request.query)?.check_read(&object)?;
    let resource = resource_of(core, &request.endpoint, bucket, key, &object);
    Ok(Reply::json(200, &select(resource, request.parameter("fields"))?))
}

/// Deletes an object; a missing one is an error.
pub(super) fn delete(core: &Core, request: &Request, bucket: &str, key: &str) -> Outcome {
    let object = core.object(bucket, key).ok_or_else(Failure::no_such_key)?;
    request.check_generation(&object)?;
    core.delete(bucket, key, &Conditions::from_query(&request.query)?)?;
    Ok(Reply::new(204))
}

/// `alt=media`: returns the body.
pub(super) fn read_media(core: &Core, request: &Request, bucket: &str, key: &str) -> Outcome {
    read(core, request, bucket, key, &Conditions::from_query(&request.query)?)
}

/// Returns the name from the query parameter or the resource.
pub(super) fn object_name(request: &Request, resource: &Value) -> Result<String, Failure> {
    let in_resource = resource.get("name").and_then(Value::as_str);
    let in_query = request.parameter("name");
    if let (Some(query), Some(resource)) = (in_query, in_resource)
        && query != resource
    {
        return Err(invalid(&format!("Value '{resource}' in content does not agree with value '{query}'.")));
    }
    match in_query.or(in_resource) {
        Some(name) if !name.is_empty() && name.len() <= 1024 => Ok(name.to_owned()),
        Some(_) => Err(invalid("An object name has 1 to 1024 bytes.")),
        None => Err(Failure::new(400, "required", "Required parameter: name")),
    }
}

/// Parses an object resource sent by a client; an empty body counts as an empty resource.
pub(super) fn parse_resource(body: &[u8]) -> Result<Value, Failure> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).map_err(|_| Failure::new(400, "parseError", "Parse Error"))
}

/// Sets the content type that an upload states beside its metadata. They must agree.
pub(super) fn set_content_type(
    attributes: &mut BTreeMap<String, String>,
    stated: Option<&str>,
) -> Result<(), Failure> {
    let Some(stated) = stated else {
        return Ok(());
    };
    let kept = attributes.entry("content-type".to_owned()).or_insert_with(|| stated.to_owned());
    if kept == stated {
        return Ok(());
    }
    Err(invalid(&format!(
        "Content-Type specified in the upload ({stated}) does not match Content-Type specified in metadata ({kept})."
    )))
}

/// Returns the attributes stored with the object, under the names of the XML API.
pub(super) fn attributes_of(resource: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    let fields = FIELDS.iter().filter_map(|(field, header)| {
        let value = resource.get(field).and_then(text)?;
        Some(((*header).to_owned(), value))
    });
    let metadata = resource.get("metadata").and_then(Value::as_object).into_iter().flatten();
    let metadata = metadata.filter_map(|(name, value)| Some((format!("x-goog-meta-{name}"), text(value)?)));
    fields.chain(metadata).collect()
}

/// Returns the resource in the JSON API's form.
pub(super) fn resource_of(
    core: &Core,
    endpoint: &str,
    bucket: &str,
    key: &str,
    object: &StoredObject,
) -> Value {
    let generation = object.generation.to_string();
    let time = rfc3339(object.modified);
    let encoded: String = url::form_urlencoded::byte_serialize(key.as_bytes()).collect();
    let path = format!("/storage/v1/b/{bucket}/o/{}", encoded.replace('+', "%20"));
    let mut resource = Map::new();
    let mut set = |name: &str, value: &str| resource.insert(name.to_owned(), json!(value));
    set("kind", "storage#object");
    set("id", &format!("{bucket}/{key}/{generation}"));
    set("selfLink", &format!("{endpoint}{path}"));
    set("mediaLink", &format!("{endpoint}/download{path}?generation={generation}&alt=media"));
    set("name", key);
    set("bucket", bucket);
    set("generation", &generation);
    set("metageneration", &METAGENERATION.to_string());
    set("size", &object.body.len().to_string());
    set("etag", &opaque_etag(object.generation));
    for field in ["timeCreated", "updated", "timeStorageClassUpdated", "timeFinalized"] {
        set(field, &time);
    }
    for (field, header) in FIELDS {
        if let Some(value) = object.attributes.get(header) {
            set(field, value);
        }
    }
    set("storageClass", storage_class(object));
    if !core.options.no_checksum_answers {
        for (field, name) in [("crc32c", "crc32c"), ("md5Hash", "md5")] {
            if let Some(value) = object.checksums.get(name) {
                set(field, value);
            }
        }
    }
    let metadata: Map<String, Value> = object
        .attributes
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("x-goog-meta-")?.to_owned(), json!(value))))
        .collect();
    let components = object.attributes.get(COMPONENT_COUNT);
    if let Some(count) = components.and_then(|count| count.parse::<u64>().ok()) {
        resource.insert("componentCount".to_owned(), json!(count));
    }
    if !metadata.is_empty() {
        resource.insert("metadata".to_owned(), Value::Object(metadata));
    }
    Value::Object(resource)
}

struct RelatedPart {
    content_type: Option<String>,
    body: Bytes,
}

/// Splits a `multipart/related` body at its boundary.
fn split_related(request: &Request, body: &Bytes) -> Result<Vec<RelatedPart>, Failure> {
    let boundary = request
        .header("content-type")
        .filter(|value| value.starts_with("multipart/related"))
        .and_then(|value| value.split(';').find_map(|item| item.trim().strip_prefix("boundary=")))
        .ok_or_else(|| invalid("The Content-Type is not multipart/related with a boundary."))?;
    let delimiter = format!("--{}", boundary.trim_matches('"'));
    let delimiter = delimiter.as_bytes();
    let malformed = || invalid("Malformed multipart body.");

    let mut parts = Vec::new();
    let mut rest = body.clone();
    if !rest.starts_with(delimiter) {
        return Err(malformed());
    }
    let _ = rest.split_to(delimiter.len());
    let between = [b"\r\n".as_slice(), delimiter].concat();
    while !rest.starts_with(b"--") {
        let start = find(&rest, b"\r\n\r\n").ok_or_else(malformed)?;
        let head = String::from_utf8_lossy(&rest[..start]).into_owned();
        let _ = rest.split_to(start + 4);
        let end = find(&rest, &between).ok_or_else(malformed)?;
        let content_type = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim().eq_ignore_ascii_case("content-type").then(|| value.trim().to_owned())
        });
        parts.push(RelatedPart { content_type, body: rest.split_to(end) });
        let _ = rest.split_to(between.len());
    }
    Ok(parts)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    // Finds candidates by their first byte, so that large media are not compared byte by byte.
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(step) = haystack[from..].iter().position(|byte| *byte == first) {
        let at = from + step;
        if haystack[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn invalid(message: &str) -> Failure {
    Failure::new(400, "InvalidArgument", message)
}
