//! Writes whole objects through Google's SDK, with a checksum computed in advance and compared with the answer.

use std::time::{Duration, SystemTime};

use google_cloud_auth::errors::CredentialsError;
use google_cloud_storage::client::Storage;
use google_cloud_storage::error::WriteError;
use google_cloud_storage::model::Object;
use http::HeaderMap;
use stepvault_core::digest::{Crc32c, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use super::access::kind_of;
use super::api::{Api, CONTENT_TYPE};
use super::resource::Described;
use super::source::Source;
use crate::causes::find;
use crate::http::one_line;
use crate::http::refusal::{Refusal, Silent};
use crate::payload::Payload;
use crate::pieces::patience;
use crate::store::ObjectHead;

/// Writes `body` at `key`, either only if the key is unused or over an existing object. Returns `None` when the key is
/// taken.
pub(super) async fn write(
    storage: &Storage,
    api: &Api,
    what: &str,
    key: &str,
    body: Payload,
    digest: &PartDigest,
    only_if_free: bool,
) -> Result<Option<ObjectHead>> {
    // Google's own message would not say what to do, and it has no time limit.
    api.access().bearer().await?;
    let bucket = format!("projects/_/buckets/{}", api.bucket);
    let limit = patience(api.stall_timeout, body.size_bytes());
    let (source, _take_back) = Source::lend(body);
    let mut request = storage
        .write_object(bucket, api.keys.full(key)?, source)
        // In one request: with a session there is a moment at which the SDK treats an existing object as its own
        // without checking.
        .with_resumable_upload_threshold(usize::MAX)
        .with_known_crc32c(digest.crc32c.0)
        .set_content_type(CONTENT_TYPE);
    if only_if_free {
        request = request.set_if_generation_match(0);
    }
    if let Some(class) = &api.options.storage_class {
        request = request.set_storage_class(class);
    }
    if let Some(kms_key) = &api.options.kms_key {
        request = request.set_kms_key(kms_key);
    }
    let fault = |kind| Error::new(kind, what).on(api.subject(Some(key)));
    // Boxed, because the SDK's future has some 30 KB.
    let Ok(sent) = timeout(limit, Box::pin(request.send_unbuffered())).await else {
        return Err(fault(ErrorKind::Unreachable).because(Silent(limit)));
    };
    let object = match sent {
        Ok(object) => object,
        Err(error) if only_if_free && error.http_status_code() == Some(412) => return Ok(None),
        Err(error) => match find::<WriteError>(&error) {
            Some(WriteError::ChecksumMismatch { object, .. }) => object.as_ref().clone(),
            _ => return Err(sdk_error(what, &api.subject(Some(key)), error)),
        },
    };
    if object.name != api.keys.full(key)? {
        return Err(fault(ErrorKind::Unreachable).because("the answer does not describe the object"));
    }
    let described = described(object).map_err(|why| fault(ErrorKind::Unreachable).because(why))?;
    let sent = (digest.size_bytes, digest.crc32c);
    api.compare(what, key, described, sent, true).await.map(Some)
}

/// Returns the object of an answer, or why it is unusable.
fn described(object: Object) -> std::result::Result<Described, &'static str> {
    if object.generation <= 0 {
        return Err("the answer does not describe the object");
    }
    let modified = object.update_time.and_then(|time| {
        let whole = Duration::from_secs(u64::try_from(time.seconds()).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(whole + Duration::from_nanos(u64::try_from(time.nanos()).ok()?))
    });
    Ok(Described {
        name: object.name,
        generation: object.generation,
        size_bytes: u64::try_from(object.size).unwrap_or(0),
        modified: modified.ok_or("the answer has no modification time")?,
        crc32c: object.checksums.and_then(|checksums| checksums.crc32c).map(Crc32c),
    })
}

/// Converts an error of Google's SDK.
fn sdk_error(what: &str, subject: &str, error: google_cloud_storage::Error) -> Error {
    if let Some(status) = error.http_status_code() {
        return refusal_of(status, &error).to_error(what, subject);
    }
    if let Some(credentials) = find::<CredentialsError>(&error) {
        return Error::new(kind_of(credentials), what).on(subject).because(credentials).hint(
            "set GOOGLE_APPLICATION_CREDENTIALS, run 'gcloud auth application-default login', or run on a machine \
             with a service account",
        );
    }
    // The answer says nothing about the object: the next attempt finds out whether it was written.
    let passing = error.is_timeout()
        || error.is_io()
        || error.is_connect()
        || error.is_transport()
        || error.is_exhausted()
        || error.is_deserialization();
    if passing {
        return Error::new(ErrorKind::Unreachable, what)
            .on(subject)
            .caused_by(error)
            .hint("check the network and the endpoint; the request is safe to repeat");
    }
    Error::new(ErrorKind::Failed, what).on(subject).caused_by(error)
}

fn refusal_of(status: u16, error: &google_cloud_storage::Error) -> Refusal {
    let none = HeaderMap::new();
    let document = error.http_payload().map_or(&[][..], |payload| payload);
    let mut refusal = super::api::refusal_of(status, error.http_headers().unwrap_or(&none), document);
    if let Some(details) = error.status().filter(|_| refusal.message.is_empty()) {
        refusal.message = one_line(&details.message, 300);
    }
    // The JSON API has no code for these; the text is the documented one.
    if status == 400 && refusal.message.contains("match calculated") {
        "BadDigest".clone_into(&mut refusal.code);
    }
    if status == 404 && refusal.is_of_store {
        // An object that is being written cannot be the missing one.
        "NoSuchBucket".clone_into(&mut refusal.code);
    }
    refusal
}
