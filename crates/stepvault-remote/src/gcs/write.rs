//! Writes whole objects through Google's SDK, with a checksum computed in advance and compared with the answer.

use std::time::{Duration, SystemTime};

use google_cloud_auth::errors::CredentialsError;
use google_cloud_storage::client::Storage;
use google_cloud_storage::error::WriteError;
use google_cloud_storage::model::Object;
use http::HeaderMap;
use stepvault_core::digest::{Crc32c, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};

use super::access::kind_of;
use super::api::Api;
use super::resource::Described;
use super::source::Source;
use crate::generic::errors::{find, refused};
use crate::generic::transport::{Refusal, patience};
use crate::payload::Payload;
use crate::store::ObjectHead;

/// Writes objects to one bucket.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    pub(super) storage: Storage,
    pub(super) api: Api,
    pub(super) stall_timeout: Duration,
}

impl Writer {
    /// Writes `body` at `key`, either only if the key is unused or over an existing object. Returns `None` when the key
    /// is taken.
    pub(super) async fn write(
        &self,
        what: &str,
        key: &str,
        body: Payload,
        digest: &PartDigest,
        only_if_free: bool,
    ) -> Result<Option<ObjectHead>> {
        self.api.check_credentials().await?;
        let bucket = format!("projects/_/buckets/{}", self.api.bucket);
        let limit = patience(self.stall_timeout, body.size_bytes());
        let (source, _take_back) = Source::lend(body);
        let mut request = self
            .storage
            .write_object(bucket, self.api.keys.full(key)?, source)
            // In one request: with a session there is a moment at which the SDK treats an existing object as its own
            // without checking.
            .with_resumable_upload_threshold(usize::MAX)
            .with_known_crc32c(digest.crc32c.0)
            .set_content_type("application/octet-stream");
        if only_if_free {
            request = request.set_if_generation_match(0);
        }
        if let Some(class) = &self.api.options.storage_class {
            request = request.set_storage_class(class);
        }
        if let Some(kms_key) = &self.api.options.kms_key {
            request = request.set_kms_key(kms_key);
        }
        let subject = self.api.subject(Some(key));
        // Boxed, because the SDK's future has some 30 KB.
        match tokio::time::timeout(limit, Box::pin(request.send_unbuffered())).await {
            Ok(Ok(object)) => self.compare(what, key, &object, digest).await.map(Some),
            Ok(Err(error)) if only_if_free && error.http_status_code() == Some(412) => Ok(None),
            Ok(Err(error)) => {
                if let Some(WriteError::ChecksumMismatch { object, .. }) = find::<WriteError>(&error) {
                    return self.compare(what, key, object, digest).await.map(Some);
                }
                Err(sdk_error(what, &subject, error))
            }
            Err(_) => Err(Error::new(ErrorKind::Unreachable, what)
                .on(subject)
                .because(format!("no answer within {} seconds", limit.as_secs()))),
        }
    }

    /// Compares the store's answer with what was sent.
    async fn compare(
        &self,
        what: &str,
        key: &str,
        object: &Object,
        digest: &PartDigest,
    ) -> Result<ObjectHead> {
        let fault = |why| {
            Error::new(ErrorKind::Unreachable, what)
                .on(self.api.subject(Some(key)))
                .because(why)
        };
        if object.name != self.api.keys.full(key)? || object.generation <= 0 {
            return Err(fault("the answer does not describe the object"));
        }
        let modified = object.update_time.as_ref().and_then(|time| {
            let whole = Duration::from_secs(u64::try_from(time.seconds()).ok()?);
            SystemTime::UNIX_EPOCH
                .checked_add(whole + Duration::from_nanos(u64::try_from(time.nanos()).ok()?))
        });
        let described = Described {
            name: object.name.clone(),
            generation: object.generation,
            size_bytes: u64::try_from(object.size).unwrap_or(0),
            modified: modified.ok_or_else(|| fault("the answer has no modification time"))?,
            crc32c: object
                .checksums
                .as_ref()
                .and_then(|checksums| checksums.crc32c)
                .map(Crc32c),
        };
        let sent = (digest.size_bytes, digest.crc32c);
        self.api.compare(what, key, described, sent).await
    }
}

/// Converts an error of Google's SDK.
fn sdk_error(what: &str, subject: &str, error: google_cloud_storage::Error) -> Error {
    if let Some(status) = error.http_status_code() {
        return refused(what, subject, &refusal_of(status, &error));
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
    let mut refusal = Refusal::new(status, error.http_headers().unwrap_or(&none), document);
    if let Some(details) = error.status().filter(|_| refusal.message.is_empty()) {
        let words: Vec<&str> = details.message.split_whitespace().collect();
        refusal.message = words.join(" ").chars().take(300).collect();
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
