//! `compose`: joins objects to a new one.

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use super::checksums::{Checksums, Claims};
use super::conditions::Conditions;
use super::json::{attributes_of, parse_resource, resource_of};
use super::read::storage_class;
use super::reply::{Failure, Reply};
use super::request::{KMS_KEY, Request};
use super::server::Outcome;
use super::state::{Core, NewObject};
use crate::objects::StoredObject;

/// The largest number of sources of one request.
const MAXIMUM_SOURCES: usize = 32;
/// The header of the XML API that states how many uploaded objects a composite object has.
pub(super) const COMPONENT_COUNT: &str = "x-goog-component-count";

/// `POST …/o/KEY/compose`. The conditions concern the destination.
pub(super) fn compose(core: &Core, request: &Request, bucket: &str, key: &str, body: &Bytes) -> Outcome {
    let conditions = Conditions::from_query(&request.query)?;
    let document = parse_resource(body)?;
    if request.query.contains_key("deleteSourceObjects") || document.get("deleteSourceObjects").is_some() {
        // Ignored, it would look as if it were done.
        return Err(Failure::not_implemented("deleteSourceObjects"));
    }
    let destination = document.get("destination").cloned().unwrap_or_default();
    if destination.get("name").is_some_and(|name| name != key) {
        return Err(invalid("The destination has another name than the request."));
    }
    let listed = document.get("sourceObjects").and_then(Value::as_array);
    let listed = listed
        .filter(|listed| !listed.is_empty())
        .ok_or_else(|| Failure::new(400, "required", "You must provide at least one source component."))?;
    if listed.len() > MAXIMUM_SOURCES {
        return Err(invalid(&format!(
            "The number of source components provided ({}) exceeds the maximum ({MAXIMUM_SOURCES})",
            listed.len()
        )));
    }
    let sources = listed.iter().map(|listed| source(core, bucket, listed)).collect::<Result<Vec<_>, _>>()?;
    let class = storage_class(&sources[0]).to_owned();
    let stated = destination.get("storageClass").and_then(Value::as_str);
    if sources.iter().any(|source| storage_class(source) != class)
        || stated.is_some_and(|stated| stated != class)
    {
        return Err(invalid("All objects of a composition have the same storage class."));
    }
    let components: u64 = sources.iter().map(component_count).sum();
    let mut attributes = attributes_of(&destination);
    attributes.insert("x-goog-storage-class".to_owned(), class);
    if let Some(key) = request.parameter("kmsKeyName") {
        attributes.insert(KMS_KEY.to_owned(), key.to_owned());
    }
    attributes.insert(COMPONENT_COUNT.to_owned(), components.to_string());
    let mut whole = BytesMut::new();
    for source in &sources {
        whole.extend_from_slice(&source.body);
    }
    let checksums = Checksums::without_md5(&whole);
    Claims::from_resource(&destination)?.check(&checksums, core)?;
    let new = NewObject {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        body: whole.freeze(),
        checksums,
        attributes,
    };
    let object = core.commit(new, &conditions)?;
    Ok(Reply::json(200, &resource_of(core, &request.endpoint, bucket, key, &object)))
}

/// Returns one source in the generation that the request names.
fn source(core: &Core, bucket: &str, listed: &Value) -> Result<StoredObject, Failure> {
    let name = listed
        .get("name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
        .ok_or_else(|| Failure::new(400, "required", "A source component has no name."))?;
    let object = core.object(bucket, name).ok_or_else(Failure::no_such_key)?;
    if number(listed.get("generation"))?.is_some_and(|generation| generation != object.generation) {
        // Without versioning, a replaced generation is gone.
        return Err(Failure::no_such_key());
    }
    let condition =
        listed.get("objectPreconditions").and_then(|conditions| conditions.get("ifGenerationMatch"));
    if number(condition)?.is_some_and(|generation| generation != object.generation) {
        return Err(Failure::precondition());
    }
    Ok(object)
}

/// Returns a 64-bit number, which this API writes as text.
fn number(value: Option<&Value>) -> Result<Option<i64>, Failure> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => text.parse().map(Some).map_err(|_| invalid("Invalid generation.")),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| invalid("Invalid generation.")),
    }
}

/// Returns how many uploaded objects an object consists of.
fn component_count(object: &StoredObject) -> u64 {
    object.attributes.get(COMPONENT_COUNT).and_then(|count| count.parse().ok()).unwrap_or(1)
}

fn invalid(message: &str) -> Failure {
    Failure::new(400, "InvalidArgument", message)
}
