//! `rewriteTo`: a copy inside the store, in one request, or in several when more bytes must move than one request may.

use bytes::Bytes;
use serde_json::json;

use super::checksums::Checksums;
use super::conditions::Conditions;
use super::json::{attributes_of, parse_resource, resource_of};
use super::reply::{Failure, Reply};
use super::request::Request;
use super::server::Outcome;
use super::state::{Core, NewObject};

/// Source and target are bucket and key. The token is the number of bytes copied so far.
pub(super) fn rewrite(
    core: &Core,
    request: &Request,
    from: &(String, String),
    to: &(String, String),
    body: &Bytes,
) -> Outcome {
    core.require_bucket(&from.0)?;
    core.require_bucket(&to.0)?;
    let source = core.object(&from.0, &from.1).ok_or_else(Failure::no_such_key)?;
    Conditions::of_source(&request.query)?.check(Some(&source), false)?;
    let conditions = Conditions::from_query(&request.query)?;
    core.check(&to.0, &to.1, &conditions)?;
    let attributes =
        if body.is_empty() { source.attributes.clone() } else { attributes_of(&parse_resource(body)?) };
    let size = source.body.len();
    let class = "x-goog-storage-class";
    // Copies within a storage class move no bytes.
    let moves = attributes.get(class) != source.attributes.get(class);
    let asked = request.number("maxBytesRewrittenPerCall")?.unwrap_or(usize::MAX);
    let most = if moves { asked.min(core.options.rewrite_bytes) } else { size };
    let done = request.number("rewriteToken")?.unwrap_or(0).saturating_add(most);
    let progress = |done: bool, bytes: usize| {
        json!({
            "kind": "storage#rewriteResponse",
            "done": done,
            "objectSize": size.to_string(),
            "totalBytesRewritten": bytes.to_string(),
        })
    };
    if done < size {
        let mut answer = progress(false, done);
        answer["rewriteToken"] = done.to_string().into();
        return Ok(Reply::json(200, &answer));
    }
    // A copy is not an upload: it has no MD5 where its source has none.
    let checksums = if source.checksums.contains_key("md5") {
        Checksums::of(&source.body)
    } else {
        Checksums::without_md5(&source.body)
    };
    let new = NewObject { bucket: to.0.clone(), key: to.1.clone(), body: source.body, checksums, attributes };
    let object = core.commit(new, &conditions)?;
    let mut answer = progress(true, size);
    answer["resource"] = resource_of(core, &request.endpoint, &to.0, &to.1, &object);
    Ok(Reply::json(200, &answer))
}
