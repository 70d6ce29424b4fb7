//! A strict Google Cloud Storage server on loopback.
//!
//! It implements the requests of stepvault's clients: the JSON API's uploads and media reads (`google-cloud-storage`), its
//! objects, listings, deletions, copies and compositions, and the XML API's objects, listings, copies and multipart
//! uploads (`object_store`). It
//! follows Google's documentation where other emulators do not:
//!
//! - every checksum a client states (crc32c and md5 in upload metadata, `x-goog-hash`, `Content-MD5`) is
//!   compared with the bytes received, and a wrong one means 400 and no object;
//! - a resumable session persists whole multiples of 256 KiB, reports them with 308 and `Range`, accepts only
//!   what continues them, and a status query never ends an upload that is not complete;
//! - generation preconditions hold for single-shot and resumable uploads (at the start and at the end), XML PUT
//!   and XML copies. XML multipart uploads have none, as documented: a request that states one is refused
//!   rather than silently not create-only;
//! - XML multipart uploads check part sizes, order and `ETags`, and yield objects with a crc32c and no MD5;
//! - a composition takes 1 to 32 sources of one storage class, each in the generation that the request names, and
//!   yields an object with a crc32c and no MD5;
//! - what a request states twice has to agree: names, content types, lengths.
//!
//! Faults come from [`Faults`]. Two actions that are worded for reads also act on uploads (PUT and POST):
//! [`FaultAction::CutBody`](crate::faults::FaultAction::CutBody) takes only that many bytes of the request's
//! body and drops the connection, and [`FaultAction::FlipBit`](crate::faults::FaultAction::FlipBit) damages the
//! uploaded bytes in transit, before any check.
//!
//! Not implemented: changes of object and bucket metadata, versioning, ACLs, encryption keys, gRPC.

mod checksums;
mod compose;
mod conditions;
mod fields;
mod json;
mod list;
mod multipart;
mod objects;
mod read;
mod reply;
mod request;
mod resumable;
mod rewrite;
mod server;
mod state;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::faults::Faults;
use crate::objects::Objects;
use crate::serve::ServerHandle;
use state::Core;

/// How a [`StrictGcs`] deviates from the strict default.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent way to misbehave")]
pub struct StrictGcsOptions {
    /// Accept an upload whose checksum is wrong; the answer still contains the true checksum.
    pub accept_wrong_checksums: bool,
    /// Leave checksums out of every answer.
    pub no_checksum_answers: bool,
    /// Overwrite despite a precondition that the object must not exist.
    pub ignore_create_only: bool,
    /// Maximum number of entries in one page of a listing, whatever the client requests.
    pub list_page_size: usize,
    /// Maximum number of bytes that one request of a rewrite moves, whatever the client requests.
    pub rewrite_bytes: usize,
    /// Accept requests without a bearer (or with an empty one), as emulators do; a wrong one is always refused.
    pub anonymous: bool,
    /// The valid bearer token.
    pub bearer: String,
}

impl Default for StrictGcsOptions {
    fn default() -> Self {
        Self {
            accept_wrong_checksums: false,
            no_checksum_answers: false,
            ignore_create_only: false,
            list_page_size: 1000,
            rewrite_bytes: usize::MAX,
            anonymous: true,
            bearer: "strict-gcs-test-bearer".to_owned(),
        }
    }
}

/// Which protocol an unfinished upload uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingKind {
    /// A JSON API resumable session.
    Resumable,
    /// An XML API multipart upload.
    Multipart,
}

/// An upload that was started and neither finished nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingUpload {
    /// Protocol.
    pub kind: PendingKind,
    /// Upload or session id.
    pub id: String,
    /// Bucket.
    pub bucket: String,
    /// Object name.
    pub key: String,
    /// Number of bytes that the server holds for it.
    pub stored_bytes: u64,
    /// When it was started, by the server's clock.
    pub initiated: SystemTime,
}

/// A running strict server; dropping it stops it.
#[derive(Debug)]
pub struct StrictGcs {
    server: ServerHandle,
    core: Arc<Core>,
}

impl StrictGcs {
    /// Starts a server with the strict defaults.
    pub fn start() -> Self {
        Self::start_with(StrictGcsOptions::default())
    }

    /// Starts a server with `options`.
    pub fn start_with(options: StrictGcsOptions) -> Self {
        let core = Arc::new(Core::new(options));
        let shared = Arc::clone(&core);
        let server = ServerHandle::start(move |listener| server::serve(listener, shared))
            .expect("a loopback port and a thread for the strict GCS server");
        Self { server, core }
    }

    /// Returns `http://127.0.0.1:PORT`, for both clients and for `STORAGE_EMULATOR_HOST`.
    pub fn endpoint(&self) -> String {
        self.server.endpoint()
    }

    /// Returns the bearer token that the server accepts.
    pub fn bearer(&self) -> &str {
        &self.core.options.bearer
    }

    /// Creates a bucket. A new server has none.
    pub fn create_bucket(&self, name: &str) {
        self.core.create_bucket(name);
    }

    /// Adds a field to a bucket's JSON resource: `versioning`, `lifecycle`. It has no effect on the server's behaviour.
    pub fn describe_bucket(&self, name: &str, field: &str, value: serde_json::Value) {
        self.core.describe(name, field, value);
    }

    /// Returns the objects, by `bucket/name`.
    pub fn objects(&self) -> &Objects {
        &self.core.objects
    }

    /// Returns the active faults and the log of requests.
    pub fn faults(&self) -> &Faults {
        &self.core.faults
    }

    /// Returns the unfinished uploads, resumable sessions first, each kind by bucket, name and id.
    pub fn pending_uploads(&self) -> Vec<PendingUpload> {
        let mut pending = resumable::pending(&self.core);
        pending.extend(multipart::pending(&self.core));
        pending
    }

    /// Expires every resumable session: its URI answers 410 from now on, even if it was finished.
    pub fn expire_sessions(&self) {
        resumable::expire_all(&self.core);
    }

    /// Makes every pending multipart upload appear older by this time, for age-based clean-up.
    pub fn age_multipart_uploads(&self, by: Duration) {
        multipart::age_all(&self.core, by);
    }
}
