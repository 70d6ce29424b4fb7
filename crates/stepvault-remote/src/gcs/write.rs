//! Writes whole objects through Google's SDK, with a checksum computed in advance and compared with the answer; copies
//! objects inside the bucket by the JSON API's rewrite.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use google_cloud_auth::errors::CredentialsError;
use google_cloud_storage::client::Storage;
use google_cloud_storage::error::WriteError;
use google_cloud_storage::model::Object;
use google_cloud_storage::streaming_source::{Seek, SizeHint, StreamingSource};
use http::{HeaderMap, Method};
use http_body::Body as _;
use serde::Deserialize;
use serde_json::{Value, json};
use stepvault_core::{Crc32c, Error, ErrorKind, PartDigest, Result};
use tokio::time::timeout;

use super::access::kind_of;
use super::api::{Api, CONTENT_TYPE};
use super::json::ONLY_IF_FREE;
use super::resource::{Described, number};
use crate::causes::find;
use crate::http::body::{LentBody, TakeBack, lend};
use crate::http::one_line;
use crate::http::refusal::{Refusal, Silent};
use crate::keys::percent_encode;
use crate::payload::{Payload, PayloadBody};
use crate::pieces::patience;
use crate::store::{Created, ObjectHead};

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

/// Returns the payload block by block until it is taken back.
#[derive(Debug)]
pub(super) struct Source(LentBody<PayloadBody>);

impl Source {
    pub(super) fn lend(payload: Payload) -> (Self, TakeBack<PayloadBody>) {
        let (body, take_back) = lend(payload.into_body());
        (Self(body), take_back)
    }
}

impl StreamingSource for Source {
    type Error = io::Error;

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let frame = poll_fn(|context| Pin::new(&mut self.0).poll_frame(context)).await?;
        // There are no trailers.
        frame.map_err(io::Error::other).map(|frame| frame.into_data().ok()).transpose()
    }

    async fn size_hint(&self) -> io::Result<SizeHint> {
        Ok(self.0.size_hint())
    }
}

impl Seek for Source {
    type Error = io::Error;

    async fn seek(&mut self, offset: u64) -> io::Result<()> {
        // Only resumable uploads start elsewhere, and they are not used.
        if offset != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.0.rewind();
        Ok(())
    }
}

const WHAT: &str = "cannot copy the object";
/// Bytes moved per request, where the store has to move them: an answer arrives before the stall time.
const BYTES_IN_A_REQUEST: u64 = 1 << 30;

/// The fields of an answer that are used here. 64-bit numbers are text in this API, and numbers in some compatible
/// servers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    done: bool,
    rewrite_token: Option<String>,
    #[serde(default)]
    total_bytes_rewritten: Value,
}

impl Progress {
    fn bytes(&self) -> u64 {
        number(&self.total_bytes_rewritten).unwrap_or(0)
    }
}

impl Api {
    /// Copies an object to an unused key.
    pub(super) async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        let Some(source) = self.object(from).await? else {
            return Err(self.error(ErrorKind::NotFound, WHAT, from, "the object does not exist"));
        };
        if let Err(error) = self.rewrite(from, source.generation, to).await {
            // A failed condition concerns the target, or a source that changed meanwhile: the metadata shows which.
            if error.kind() == ErrorKind::Conflict && self.object(to).await?.is_some() {
                return Ok(Created::Exists);
            }
            return Err(error);
        }
        let head = self.head(to).await?;
        head.map(Created::Written).ok_or_else(|| {
            let why = "the store acknowledged it, but it does not exist";
            self.error(ErrorKind::Unreachable, WHAT, to, why)
        })
    }

    /// Copies `from`, in its generation `generation`, to an unused key.
    ///
    /// # Errors
    /// `Conflict` when the key is taken, or the source no longer has that generation.
    async fn rewrite(&self, from: &str, generation: i64, to: &str) -> Result<()> {
        let (mut token, mut moved_bytes) = (None, 0);
        loop {
            let progress = self.rewrite_some(from, generation, to, token).await?;
            if progress.done {
                return Ok(());
            }
            let fault = |why| self.error(ErrorKind::Unreachable, WHAT, to, why);
            if progress.bytes() <= moved_bytes {
                return Err(fault("the store makes no progress on it"));
            }
            moved_bytes = progress.bytes();
            token = progress.rewrite_token;
            if token.is_none() {
                return Err(fault("the answer says neither that the copy is done nor how to continue it"));
            }
        }
    }

    async fn rewrite_some(
        &self,
        from: &str,
        generation: i64,
        to: &str,
        token: Option<String>,
    ) -> Result<Progress> {
        let class = self.options.storage_class.as_deref();
        let body = class.map_or_else(Payload::default, |class| {
            Bytes::from(json!({ "storageClass": class }).to_string()).into()
        });
        // The target is what messages name.
        let call = self.json(WHAT, Method::POST, None)?.about(to);
        let target = format!("/b/{}/o/{}", percent_encode(&self.bucket, ""), self.encoded(to)?);
        let call = call
            .below(&format!("/o/{}/rewriteTo{target}", self.encoded(from)?))
            .query([ONLY_IF_FREE])
            .query([
                ("maxBytesRewrittenPerCall", BYTES_IN_A_REQUEST.to_string()),
                ("ifSourceGenerationMatch", generation.to_string()),
            ])
            .query(self.options.kms_key.clone().map(|key| ("destinationKmsKeyName", key)))
            .query(token.map(|token| ("rewriteToken", token)))
            .body("application/json", body);
        // When a successful answer cannot be read, the next attempt finds out the result.
        self.send(call).await?.json()
    }
}
