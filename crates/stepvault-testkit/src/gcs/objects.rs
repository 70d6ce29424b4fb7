//! The XML API's requests for one object.

use bytes::Bytes;

use super::checksums::{Checksums, Claims};
use super::conditions::Conditions;
use super::read::{describe, quoted_etag, read};
use super::reply::{Failure, Reply, rfc3339};
use super::request::{Request, decode};
use super::server::Outcome;
use super::state::{Core, NewObject};

/// `GET` and `HEAD`.
pub(super) fn get(core: &Core, request: &Request, bucket: &str, key: &str) -> Outcome {
    read(core, request, bucket, key, &Conditions::from_headers(&request.headers)?)
}

/// `PUT` with a body.
pub(super) fn put(core: &Core, request: &Request, bucket: &str, key: &str, body: &Bytes) -> Outcome {
    let conditions = Conditions::from_headers(&request.headers)?;
    let body = request.arrived(body.clone());
    let checksums = Checksums::of(&body);
    Claims::from_headers(&request.headers)?.check(&checksums, core)?;
    let object = core.commit(
        NewObject {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            body,
            checksums,
            attributes: request.attributes(),
        },
        &conditions,
    )?;
    Ok(describe(core, Reply::new(200), &object).header("etag", quoted_etag(&object)))
}

/// `PUT` with `x-goog-copy-source`; the conditions concern the destination.
pub(super) fn copy(core: &Core, request: &Request, bucket: &str, key: &str) -> Outcome {
    let conditions = Conditions::from_headers(&request.headers)?;
    let source = decode(request.header("x-goog-copy-source").unwrap_or_default());
    let (source_bucket, source_key) = source
        .trim_start_matches('/')
        .split_once('/')
        .ok_or_else(|| Failure::new(400, "InvalidArgument", "Invalid x-goog-copy-source."))?;
    core.require_bucket(source_bucket)?;
    let source = core.object(source_bucket, source_key).ok_or_else(Failure::no_such_key)?;
    // A copy is not an upload: it has no MD5 where its source has none.
    let checksums = if source.checksums.contains_key("md5") {
        Checksums::of(&source.body)
    } else {
        Checksums::without_md5(&source.body)
    };
    let replace = request.header("x-goog-metadata-directive") == Some("REPLACE");
    let object = core.commit(
        NewObject {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            body: source.body,
            checksums,
            attributes: if replace { request.attributes() } else { source.attributes },
        },
        &conditions,
    )?;
    let modified = rfc3339(object.modified);
    let etag = quoted_etag(&object).replace('"', "&quot;");
    let result = format!(
        "<CopyObjectResult><LastModified>{modified}</LastModified><ETag>{etag}</ETag></CopyObjectResult>"
    );
    Ok(describe(core, Reply::xml(200, &result), &object))
}

/// `DELETE`; a missing object is an error, unlike in S3.
pub(super) fn delete(core: &Core, request: &Request, bucket: &str, key: &str) -> Outcome {
    core.delete(bucket, key, &Conditions::from_headers(&request.headers)?)?;
    Ok(Reply::new(204))
}
