//! A bucket on S3, and what every request to it needs.

use std::sync::atomic::{AtomicBool, AtomicU8};

use aws_sdk_s3::Client;
use aws_sdk_s3::error::SdkError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};

use super::attributes::Attributes;
use super::checksums::ALL_CHECKS;
use super::client::Clients;
use super::errors::{Fault, OperationError};
use crate::options::StaticKeys;

/// A bucket, or a prefix of one, on S3 or a compatible server.
#[derive(Debug)]
pub(crate) struct S3Store {
    clients: Clients,
    pub(super) url: String,
    pub(super) bucket: String,
    /// Empty, or ends with a slash.
    prefix: String,
    pub(super) owner: Option<String>,
    pub(super) attributes: Attributes,
    pub(super) lists_pending_uploads: AtomicBool,
    pub(super) deletes_in_batches: AtomicBool,
    /// Cleared once the store has refused `If-None-Match` as such, and done the same write without it.
    pub(super) sends_conditions: AtomicBool,
    /// Which checksums the store accepts at the completion of an upload.
    pub(super) completion_checks: AtomicU8,
}

impl S3Store {
    pub(crate) async fn open(settings: &RemoteSettings, keys: Option<StaticKeys>) -> Result<Self> {
        let prefix = match settings.url.prefix.as_str() {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Ok(Self {
            clients: Clients::load(settings, keys).await?,
            url: settings.url.to_string(),
            bucket: settings.url.bucket.clone(),
            prefix,
            owner: settings.expected_bucket_owner.clone(),
            attributes: Attributes::of(settings),
            lists_pending_uploads: AtomicBool::new(true),
            deletes_in_batches: AtomicBool::new(true),
            sends_conditions: AtomicBool::new(true),
            completion_checks: AtomicU8::new(ALL_CHECKS),
        })
    }

    pub(super) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(super) async fn client(&self) -> Result<Client> {
        self.clients.get().await
    }

    /// Returns the key in the bucket.
    pub(super) fn full_key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Returns the key relative to the prefix, or `None` for a key outside it and for the prefix itself.
    pub(super) fn relative_key<'a>(&self, full_key: &'a str) -> Option<&'a str> {
        full_key.strip_prefix(&self.prefix).filter(|key| !key.is_empty())
    }

    /// Returns the URL of an object, for messages.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}/{key}", self.url)
    }

    /// Returns the error of an operation `what` on the object `key`.
    pub(super) fn error(&self, kind: ErrorKind, what: &str, key: &str, why: impl std::fmt::Display) -> Error {
        Error::new(kind, what).on(self.name(key)).because(why)
    }

    /// Converts an SDK error and records what it says about the credentials.
    pub(super) fn fault<E: OperationError>(&self, error: &SdkError<E, HttpResponse>) -> Fault {
        let mut fault = Fault::of(error);
        if fault.refuses_checksums() && self.clients.stop_checksums() {
            tracing::info!("{}: the store accepts no checksums; requests are sent without", self.url);
            fault.repeat();
        }
        if fault.is_expired() {
            self.clients.mark_expired();
        }
        fault
    }

    /// Returns the error of an operation `what` on the object `key` that the store answered.
    pub(super) fn failed<E: OperationError>(
        &self,
        what: &str,
        key: &str,
        error: &SdkError<E, HttpResponse>,
    ) -> Error {
        self.fault(error).into_error(what, &self.name(key))
    }

    /// Returns the answer, or `None` for a refusal that is `expected`; any other is the error of `what` on `key`.
    pub(super) fn unless<T, E: OperationError>(
        &self,
        what: &str,
        key: &str,
        answer: std::result::Result<T, SdkError<E, HttpResponse>>,
        expected: fn(&Fault) -> bool,
    ) -> Result<Option<T>> {
        let error = match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        let fault = self.fault(&error);
        if expected(&fault) {
            return Ok(None);
        }
        Err(fault.into_error(what, &self.name(key)))
    }
}
