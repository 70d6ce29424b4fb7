//! The objects of a strict server, with functions to damage them behind the client's back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;

/// One stored object.
#[derive(Debug, Clone)]
pub struct StoredObject {
    /// The body.
    pub body: Bytes,
    /// When it was last written, by the server's clock.
    pub modified: SystemTime,
    /// Entity tag without quotes.
    pub etag: String,
    /// GCS generation; S3 servers leave it 0.
    pub generation: i64,
    /// Checksums as the provider would report them (`sha256` → base64, with `-N` for a composite one).
    pub checksums: BTreeMap<String, String>,
    /// Headers and metadata stored with the object (storage class, encryption, tags …).
    pub attributes: BTreeMap<String, String>,
}

/// All objects of one server by `bucket/key`; cheap to clone and shared between a test and its server.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    inner: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    objects: BTreeMap<String, StoredObject>,
    watcher: Option<Watcher>,
}

/// A callback that receives all objects.
type Look = dyn FnMut(&BTreeMap<String, StoredObject>) + Send;

struct Watcher(Box<Look>);

impl fmt::Debug for Watcher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Watcher(…)")
    }
}

impl Objects {
    /// Runs `action` on the table while holding its lock.
    pub fn with<T>(&self, action: impl FnOnce(&mut BTreeMap<String, StoredObject>) -> T) -> T {
        let mut table = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Table { objects, watcher } = &mut *table;
        let result = action(objects);
        if let Some(Watcher(watcher)) = watcher {
            watcher(objects);
        }
        result
    }

    /// Calls `watcher` with all objects now and after each later access, under the same lock, so that it sees every
    /// state of the table. The watcher must be quick, and must not use these objects itself.
    pub fn watch(&self, watcher: impl FnMut(&BTreeMap<String, StoredObject>) + Send + 'static) {
        let mut table = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watcher = Watcher(Box::new(watcher));
        watcher.0(&table.objects);
        table.watcher = Some(watcher);
    }

    /// Returns the keys (`bucket/key`) in order.
    pub fn keys(&self) -> Vec<String> {
        self.with(|table| table.keys().cloned().collect())
    }

    /// Returns a copy of the body of `bucket/key`.
    pub fn body(&self, key: &str) -> Option<Bytes> {
        self.with(|table| table.get(key).map(|object| object.body.clone()))
    }

    /// Deletes an object behind the client's back. Returns false when it did not exist.
    pub fn remove(&self, key: &str) -> bool {
        self.with(|table| table.remove(key).is_some())
    }

    /// Truncates an object to `length` bytes without updating its recorded checksums.
    pub fn truncate(&self, key: &str, length: usize) -> bool {
        self.edit(key, |body| body.truncate(length))
    }

    /// Flips one bit of the byte at `offset` without updating the recorded checksums.
    pub fn flip_bit(&self, key: &str, offset: usize) -> bool {
        self.edit(key, |body| {
            if let Some(byte) = body.get_mut(offset) {
                *byte ^= 1;
            }
        })
    }

    fn edit(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.with(|table| {
            let Some(object) = table.get_mut(key) else {
                return false;
            };
            let mut body = object.body.to_vec();
            change(&mut body);
            object.body = Bytes::from(body);
            true
        })
    }
}
