//! The server's state: buckets, objects, sessions and multipart uploads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;

use super::StrictGcsOptions;
use super::checksums::Checksums;
use super::conditions::Conditions;
use super::multipart::MultipartUpload;
use super::reply::Failure;
use super::resumable::Session;
use crate::faults::Faults;
use crate::objects::{Objects, StoredObject};

/// Everything shared between the connections and the test.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) options: StrictGcsOptions,
    pub(super) objects: Objects,
    pub(super) faults: Faults,
    pub(super) sessions: Mutex<BTreeMap<String, Arc<Mutex<Session>>>>,
    /// The IDs of sessions that were cancelled or have expired.
    pub(super) ended_sessions: Mutex<BTreeSet<String>>,
    pub(super) multipart_uploads: Mutex<BTreeMap<String, MultipartUpload>>,
    /// Buckets with their JSON resources.
    buckets: Mutex<BTreeMap<String, serde_json::Value>>,
    last_generation: AtomicI64,
}

/// An object about to be written.
#[derive(Debug)]
pub(super) struct NewObject {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) body: Bytes,
    pub(super) checksums: Checksums,
    pub(super) attributes: BTreeMap<String, String>,
}

impl Core {
    pub(super) fn new(options: StrictGcsOptions) -> Self {
        Self {
            options,
            objects: Objects::default(),
            faults: Faults::default(),
            sessions: Mutex::default(),
            ended_sessions: Mutex::default(),
            multipart_uploads: Mutex::default(),
            buckets: Mutex::default(),
            last_generation: AtomicI64::new(0),
        }
    }

    pub(super) fn create_bucket(&self, name: &str) {
        let described = serde_json::json!({"kind": "storage#bucket", "name": name});
        lock(&self.buckets).entry(name.to_owned()).or_insert(described);
    }

    /// Adds a field to a bucket's JSON resource.
    pub(super) fn describe(&self, name: &str, field: &str, value: serde_json::Value) {
        if let Some(described) = lock(&self.buckets).get_mut(name) {
            described[field] = value;
        }
    }

    /// Returns a bucket's JSON resource.
    pub(super) fn described(&self, name: &str) -> Result<serde_json::Value, Failure> {
        self.require_bucket(name)?;
        Ok(lock(&self.buckets).get(name).cloned().unwrap_or_default())
    }

    pub(super) fn require_bucket(&self, name: &str) -> Result<(), Failure> {
        if lock(&self.buckets).contains_key(name) {
            Ok(())
        } else {
            Err(Failure::new(404, "NoSuchBucket", "The specified bucket does not exist."))
        }
    }

    pub(super) fn object(&self, bucket: &str, key: &str) -> Option<StoredObject> {
        self.objects.with(|table| table.get(&table_key(bucket, key)).cloned())
    }

    /// Checks the conditions against the existing object without writing.
    pub(super) fn check(&self, bucket: &str, key: &str, conditions: &Conditions) -> Result<(), Failure> {
        self.objects.with(|table| {
            conditions.check(table.get(&table_key(bucket, key)), self.options.ignore_create_only)
        })
    }

    /// Makes the object visible if the conditions hold at this moment.
    pub(super) fn commit(&self, new: NewObject, conditions: &Conditions) -> Result<StoredObject, Failure> {
        let mut checksums = BTreeMap::from([("crc32c".to_owned(), new.checksums.crc32c_base64())]);
        if let Some(md5) = new.checksums.md5_base64() {
            checksums.insert("md5".to_owned(), md5);
        }
        let key = table_key(&new.bucket, &new.key);
        self.objects.with(|table| {
            conditions.check(table.get(&key), self.options.ignore_create_only)?;
            let generation = self.next_generation();
            let object = StoredObject {
                body: new.body,
                modified: SystemTime::now(),
                // As documented, an ETag is the MD5 only where there is one.
                etag: new.checksums.md5_hex().unwrap_or_else(|| opaque_etag(generation)),
                generation,
                checksums,
                attributes: new.attributes,
            };
            table.insert(key, object.clone());
            Ok(object)
        })
    }

    /// Deletes the object if the conditions hold at this moment.
    pub(super) fn delete(&self, bucket: &str, key: &str, conditions: &Conditions) -> Result<(), Failure> {
        let key = table_key(bucket, key);
        self.objects.with(|table| {
            let object = table.get(&key).ok_or_else(Failure::no_such_key)?;
            conditions.check(Some(object), false)?;
            table.remove(&key);
            Ok(())
        })
    }

    /// Returns a generation: microseconds, like the real ones, and strictly increasing.
    fn next_generation(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX - 1);
        let next = |last: i64| Some(now.max(last + 1));
        match self.last_generation.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
            Ok(last) | Err(last) => now.max(last + 1),
        }
    }
}

pub(super) fn table_key(bucket: &str, key: &str) -> String {
    format!("{bucket}/{key}")
}

/// Returns the JSON API's `ETag`, which is independent of the content.
pub(super) fn opaque_etag(generation: i64) -> String {
    BASE64_STANDARD.encode(generation.to_be_bytes())
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
