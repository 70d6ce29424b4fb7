//! Strict S3: a server that enforces what AWS documents.
//!
//! The `s3s` crate provides protocol and signatures; storage and rules are here. Objects are in memory. Unsupported
//! features (versions, object lock, customer keys, reads by part number) are refused with 501, not ignored.

mod access;
mod attributes;
pub(crate) mod checksums;
mod complete;
pub(crate) mod connections;
mod embedded_fs;
mod faults_layer;
pub(crate) mod listing;
mod manners;
mod multipart;
mod reads;
mod service;
mod state;
mod uploads_listing;
mod writes;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::S3ServiceBuilder;

pub use self::embedded_fs::EmbeddedS3Fs;
use self::state::State;
use crate::faults::Faults;
use crate::objects::Objects;
use crate::serve::ServerHandle;
use crate::tls::Acceptor;

const ACCESS_KEY: &str = "AKIATESTKITEXAMPLE01";
const SECRET_KEY: &str = "testkit/secret+key/that-opens-nothing-else";

/// How a [`StrictS3`] deviates from strictness, and other settings of a test.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fault of its own, and independent of the others")]
pub struct StrictS3Options {
    /// Never returns a checksum in an answer, although it verifies given ones.
    pub no_checksum_answers: bool,
    /// Accepts every checksum unverified and returns it: a store that claims to verify but does not.
    pub accept_wrong_checksums: bool,
    /// Overwrites despite `If-None-Match: *`.
    pub ignore_create_only: bool,
    /// Refuses every write with `If-None-Match`, as `OpenStack` Swift does.
    pub refuse_create_only: bool,
    /// Completes uploads over existing objects despite `If-None-Match: *`, as Ceph does; other writes honour it.
    pub ignore_completion_conditions: bool,
    /// Answers the completion of an upload with an empty entity tag, as Ceph does.
    pub empty_completion_etag: bool,
    /// Stores `a\b` as `a/b` and answers to both names, as `SeaweedFS` does.
    pub backslashes_are_slashes: bool,
    /// Accepts storage class, encryption, tags and the expected owner of the bucket, and does nothing with them.
    pub ignores_attributes: bool,
    /// Refuses requests with headers of checksums, as Backblaze B2 does.
    pub refuse_checksums: bool,
    /// Refuses requests that do not say that their sender pays for them.
    pub requester_pays: bool,
    /// Lets everyone read and list, with signature or without.
    pub public_reads: bool,
    /// Refuses to delete several objects by one request.
    pub no_batch_deletes: bool,
    /// Supports no copies, of objects or of parts.
    pub no_copies: bool,
    /// Maximum number of entries in one page of any listing; 1000 as on S3.
    pub max_keys: usize,
    /// Account that owns every bucket; `x-amz-expected-bucket-owner` must name it.
    pub bucket_owner: String,
    /// How far the server's clock is ahead of this machine's; negative if it is behind. Answers are dated by it, and
    /// requests signed for a time more than 15 minutes away from it are refused.
    pub clock_ahead_seconds: i64,
    /// The region for which requests must be signed; any for `None`.
    pub only_region: Option<String>,
}

impl Default for StrictS3Options {
    fn default() -> Self {
        Self {
            no_checksum_answers: false,
            accept_wrong_checksums: false,
            ignore_create_only: false,
            refuse_create_only: false,
            ignore_completion_conditions: false,
            empty_completion_etag: false,
            backslashes_are_slashes: false,
            ignores_attributes: false,
            refuse_checksums: false,
            requester_pays: false,
            public_reads: false,
            no_batch_deletes: false,
            no_copies: false,
            max_keys: 1000,
            bucket_owner: "111122223333".to_owned(),
            clock_ahead_seconds: 0,
            only_region: None,
        }
    }
}

/// A multipart upload that was neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingUpload {
    /// Bucket of the future object.
    pub bucket: String,
    /// Key of the future object.
    pub key: String,
    /// Upload id.
    pub upload_id: String,
    /// When it was created, by the server's clock.
    pub initiated: SystemTime,
    /// Part numbers uploaded so far, in order.
    pub part_numbers: Vec<i32>,
    /// Sum of the lengths of those parts.
    pub part_bytes: u64,
}

/// A running strict S3 server; it stops when dropped.
#[derive(Debug)]
pub struct StrictS3 {
    handle: ServerHandle,
    state: Arc<State>,
    faults: Faults,
}

impl StrictS3 {
    /// Starts a server without any leniency on a free loopback port.
    pub fn start() -> Self {
        Self::start_with(StrictS3Options::default())
    }

    /// Starts a server with these options on a free loopback port.
    pub fn start_with(options: StrictS3Options) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        Self::start_on(listener, options)
    }

    /// Starts a server with these options on `listener`, for clients in network namespaces of their own.
    pub fn start_on(listener: TcpListener, options: StrictS3Options) -> Self {
        let manners = manners::Manners {
            clock_ahead_seconds: options.clock_ahead_seconds,
            only_region: options.only_region.clone(),
        };
        let state = Arc::new(State::new(options));
        let faults = Faults::default();
        let mut builder = S3ServiceBuilder::new(service::Service(Arc::clone(&state)));
        builder.set_auth(access::Keys(Arc::clone(&state)));
        builder.set_access(access::Gate(Arc::clone(&state)));
        if manners.clock_ahead_seconds != 0 {
            // The protocol's own check would use this machine's clock.
            let mut config = S3Config::default();
            config.presigned_url_max_skew_time_secs = u32::MAX;
            builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        }
        let layer = faults_layer::FaultsLayer {
            service: builder.build(),
            faults: faults.clone(),
            manners,
            state: Arc::clone(&state),
        };
        let handle = ServerHandle::start_on(listener, move |listener| {
            connections::serve(listener, Acceptor::default(), layer)
        })
        .expect("a server");
        Self { handle, state, faults }
    }

    /// Returns `http://127.0.0.1:PORT`, or its other address.
    pub fn endpoint(&self) -> String {
        self.handle.endpoint()
    }

    /// Returns the access key that is accepted from the start.
    pub fn access_key(&self) -> &'static str {
        ACCESS_KEY
    }

    /// Returns the secret of [`access_key`](Self::access_key).
    pub fn secret_key(&self) -> &'static str {
        SECRET_KEY
    }

    /// Accepts another access key, with its secret.
    pub fn issue_key(&self, access_key: &str, secret_key: &str) {
        let key = state::Key { secret: secret_key.to_owned(), expired: false };
        self.state.keys().insert(access_key.to_owned(), key);
    }

    /// Refuses later requests signed with this key, as S3 does after a session has ended.
    pub fn expire_key(&self, access_key: &str) {
        if let Some(key) = self.state.keys().get_mut(access_key) {
            key.expired = true;
        }
    }

    /// Creates a bucket; does nothing when it exists.
    pub fn create_bucket(&self, name: &str) {
        self.state.create_bucket(name);
    }

    /// Makes the bucket report that it keeps old versions, although it keeps none.
    pub fn claim_versioning(&self, bucket: &str) {
        if let Some(bucket) = self.state.buckets().get_mut(bucket) {
            bucket.claims_versioning = true;
        }
    }

    /// Lets listings of the bucket lag behind: they do not show objects whose key contains this text.
    pub fn hide_from_listings(&self, bucket: &str, text: &str) {
        if let Some(bucket) = self.state.buckets().get_mut(bucket) {
            bucket.unlisted = Some(text.to_owned());
        }
    }

    /// Returns the stored objects by `bucket/key`.
    pub fn objects(&self) -> &Objects {
        &self.state.objects
    }

    /// Moves all data objects to this class, as a lifecycle rule does; with `records`, the records too.
    pub fn archive(&self, class: &str, records: bool) {
        self.objects().with(|objects| {
            for (_, object) in objects.iter_mut().filter(|(key, _)| records || !key.contains("/.stepvault/"))
            {
                object.attributes.insert(attributes::STORAGE_CLASS.to_owned(), class.to_owned());
            }
        });
    }

    /// Makes the archived objects readable that were requested. Returns their number.
    pub fn finish_thaws(&self) -> usize {
        self.objects().with(|objects| {
            let requested =
                objects.values_mut().filter_map(|object| object.attributes.get_mut(attributes::RESTORE));
            let done = "ongoing-request=\"false\", expiry-date=\"Fri, 21 Dec 2040 00:00:00 GMT\"";
            requested.map(|restore| done.clone_into(restore)).count()
        })
    }

    /// Returns the faults to inject and the log of all requests.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Makes every pending multipart upload appear older by this time, for age-based clean-up.
    pub fn age_multipart_uploads(&self, by: Duration) {
        for upload in self.state.uploads().table.values_mut() {
            upload.initiated = upload.initiated.checked_sub(by).unwrap_or(SystemTime::UNIX_EPOCH);
        }
    }

    /// Returns multipart uploads neither completed nor aborted, by bucket, key and age.
    pub fn pending_uploads(&self) -> Vec<PendingUpload> {
        self.state
            .uploads()
            .table
            .iter()
            .map(|((bucket, key, id), upload)| PendingUpload {
                bucket: bucket.clone(),
                key: key.clone(),
                upload_id: id.clone(),
                initiated: upload.initiated,
                part_numbers: upload.parts.keys().copied().collect(),
                part_bytes: upload.parts.values().map(|part| part.body.len() as u64).sum(),
            })
            .collect()
    }
}
