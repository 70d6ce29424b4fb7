//! An in-memory object store, strongly consistent, with its own clock that runs in virtual time.
//!
//! This module implements the effect of a request once it has arrived. The link decides whether and when it arrives.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use stepvault_core::digest::{FileDigest, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::store::{Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, StoredChecksum};

use crate::actor::Actor;
use crate::invariants::Judge;
use crate::trace::Trace;

/// The start of the virtual time, in seconds since 1970: long ago, so that no clock that is off by days reaches the
/// real present.
pub const BEGINNING_SECONDS: u64 = 1_600_000_000;

#[derive(Debug, Clone)]
pub struct Object {
    pub bytes: Bytes,
    pub checksum: StoredChecksum,
    /// The time of the store's clock, as reported.
    pub modified: SystemTime,
    /// Incremented by every write to the store.
    pub version: u64,
    /// The process that wrote it.
    pub writer: Actor,
}

#[derive(Debug, Clone)]
pub struct Upload {
    key: String,
    initiated: SystemTime,
    parts: BTreeMap<u32, (Bytes, PartDigest, String)>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Upload>,
    /// Counts every change.
    sequence: u64,
}

/// One store. Every change to it is checked when it is made.
#[derive(Debug)]
pub struct Cloud {
    pub index: usize,
    /// Whether it reports times in whole seconds, as S3 does.
    whole_seconds: bool,
    state: Mutex<State>,
    judge: Arc<Mutex<Judge>>,
    trace: Arc<Trace>,
    /// Whether it answers nobody.
    away: AtomicBool,
    /// The contents of its filesystem while that is not mounted: an empty directory is in its place.
    unmounted: Mutex<Option<Stand>>,
    /// How often its filesystem was mounted or unmounted.
    mounts: AtomicU64,
}

/// Objects and pending uploads.
pub type Stand = (BTreeMap<String, Object>, BTreeMap<String, Upload>);

impl Cloud {
    pub fn new(index: usize, whole_seconds: bool, judge: Arc<Mutex<Judge>>, trace: Arc<Trace>) -> Self {
        Self {
            index,
            whole_seconds,
            state: Mutex::default(),
            judge,
            trace,
            away: AtomicBool::new(false),
            unmounted: Mutex::default(),
            mounts: AtomicU64::default(),
        }
    }

    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    pub fn go_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    pub fn is_mounted(&self) -> bool {
        self.unmounted.lock().unwrap().is_none()
    }

    /// Returns how often its filesystem was mounted or unmounted.
    pub fn mounts(&self) -> u64 {
        self.mounts.load(Ordering::Relaxed)
    }

    pub fn unmount(&self) {
        let (mut state, mut unmounted) = (self.state.lock().unwrap(), self.unmounted.lock().unwrap());
        if unmounted.is_none() {
            let state = &mut *state;
            *unmounted = Some((std::mem::take(&mut state.objects), std::mem::take(&mut state.uploads)));
            self.mounts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Mounts the filesystem. It hides whatever was written into the empty directory.
    pub fn mount(&self) {
        let (mut state, mut unmounted) = (self.state.lock().unwrap(), self.unmounted.lock().unwrap());
        if let Some(stand) = unmounted.take() {
            (state.objects, state.uploads) = stand;
            self.mounts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a copy of all that it holds.
    pub fn copy_of_all(&self) -> Stand {
        let state = self.state.lock().unwrap();
        (state.objects.clone(), state.uploads.clone())
    }

    /// Replaces all that it holds by what it held before.
    pub fn go_back(&self, stand: Stand) {
        let mut state = self.state.lock().unwrap();
        (state.objects, state.uploads) = stand;
    }

    /// Returns the time of the store's clock.
    pub fn now(&self) -> SystemTime {
        let elapsed = self.trace.elapsed();
        let elapsed = if self.whole_seconds { Duration::from_secs(elapsed.as_secs()) } else { elapsed };
        SystemTime::UNIX_EPOCH + Duration::from_secs(BEGINNING_SECONDS) + elapsed
    }

    /// Returns a copy of all its objects, mounted or not.
    pub fn objects(&self) -> BTreeMap<String, Object> {
        let state = self.state.lock().unwrap();
        match &*self.unmounted.lock().unwrap() {
            Some((objects, _)) => objects.clone(),
            None => state.objects.clone(),
        }
    }

    /// Returns the keys of pending uploads that are at least this old.
    pub fn pending_keys(&self, age: Duration) -> Vec<String> {
        let (state, now) = (self.state.lock().unwrap(), self.now());
        let is_old = |upload: &&Upload| now.duration_since(upload.initiated).unwrap_or_default() >= age;
        let uploads = state.uploads.values().filter(is_old);
        uploads.map(|upload| upload.key.clone()).collect()
    }

    fn note(&self, actor: &Actor, what: &str) {
        self.trace.note(format_args!("{actor}@{}", self.index), what);
    }

    fn put(
        &self,
        state: &mut State,
        actor: &Actor,
        key: &str,
        bytes: Bytes,
        checksum: StoredChecksum,
    ) -> Object {
        state.sequence += 1;
        let object =
            Object { bytes, checksum, modified: self.now(), version: state.sequence, writer: actor.clone() };
        state.objects.insert(key.to_owned(), object.clone());
        if self.is_mounted() {
            let mut judge = self.judge.lock().unwrap();
            judge.written(self, actor, key, &object, &state.objects);
        }
        object
    }

    pub fn create(&self, actor: &Actor, key: &str, body: &Bytes, digest: &PartDigest) -> Result<Created> {
        let mut state = self.state.lock().unwrap();
        if PartDigest::by(digest.content.algorithm(), body) != *digest {
            self.note(actor, &format!("create {key}: refused for its digest"));
            return Err(damaged(key));
        }
        if state.objects.contains_key(key) {
            self.note(actor, &format!("create {key}: taken"));
            return Ok(Created::Exists);
        }
        let checksum = StoredChecksum::of_part(digest);
        let object = self.put(&mut state, actor, key, body.clone(), checksum);
        self.note(actor, &format!("create {key}: {}", short(digest)));
        Ok(Created::Written(head(key, &object)))
    }

    pub fn replace(&self, actor: &Actor, key: &str, body: &Bytes, digest: &PartDigest) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if PartDigest::by(digest.content.algorithm(), body) != *digest {
            return Err(damaged(key));
        }
        let checksum = StoredChecksum::of_part(digest);
        self.put(&mut state, actor, key, body.clone(), checksum);
        self.note(actor, &format!("replace {key}: {}", short(digest)));
        Ok(())
    }

    pub fn start_upload(&self, actor: &Actor, key: &str) -> String {
        let mut state = self.state.lock().unwrap();
        state.sequence += 1;
        let id = format!("upload-{}", state.sequence);
        let upload = Upload { key: key.to_owned(), initiated: self.now(), parts: BTreeMap::new() };
        state.uploads.insert(id.clone(), upload);
        self.note(actor, &format!("start {id} of {key}"));
        id
    }

    pub fn upload_part(
        &self,
        actor: &Actor,
        key: &str,
        upload: &str,
        index: u32,
        body: &Bytes,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let mut state = self.state.lock().unwrap();
        state.sequence += 1;
        let tag = format!("part-{}", state.sequence);
        let pending = state.uploads.get_mut(upload).ok_or_else(|| missing(upload))?;
        if pending.key != key || PartDigest::by(digest.content.algorithm(), body) != *digest {
            return Err(damaged(key));
        }
        pending.parts.insert(index, (body.clone(), *digest, tag.clone()));
        self.note(actor, &format!("part {index} of {upload}: {}", short(digest)));
        Ok(PartReceipt { index, tag, digest: *digest })
    }

    pub fn complete_upload(
        &self,
        actor: &Actor,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        let mut state = self.state.lock().unwrap();
        let Some(pending) = state.uploads.get(upload).filter(|pending| pending.key == key) else {
            self.note(actor, &format!("complete {upload}: gone"));
            return Err(missing(upload));
        };
        if state.objects.contains_key(key) {
            self.note(actor, &format!("complete {upload}: taken"));
            return Ok(Created::Exists);
        }
        let mut bytes = Vec::new();
        let mut digests = Vec::new();
        for receipt in parts {
            match pending.parts.get(&receipt.index) {
                Some((body, digest, tag)) if *tag == receipt.tag => {
                    bytes.extend_from_slice(body);
                    digests.push(*digest);
                }
                _ => return Err(damaged(key)),
            }
        }
        let whole = FileDigest::from_parts(&digests);
        if whole != *digest {
            return Err(damaged(key));
        }
        state.uploads.remove(upload);
        let checksum = StoredChecksum::of_file(&whole, u32::try_from(parts.len()).unwrap());
        let object = self.put(&mut state, actor, key, bytes.into(), checksum);
        self.note(actor, &format!("complete {upload}: {key}"));
        Ok(Created::Written(head(key, &object)))
    }

    pub fn abort_upload(&self, actor: &Actor, upload: &str) {
        let gone = self.state.lock().unwrap().uploads.remove(upload);
        self.note(actor, &format!("abort {upload}: {}", gone.is_some()));
    }

    pub fn pending_uploads(&self, actor: &Actor, prefix: &str) -> Vec<PendingUpload> {
        self.note(actor, &format!("pending {prefix}"));
        let state = self.state.lock().unwrap();
        let under = state.uploads.iter().filter(|(_, upload)| upload.key.starts_with(prefix));
        under
            .map(|(id, upload)| PendingUpload {
                key: upload.key.clone(),
                upload: id.clone(),
                initiated: Some(upload.initiated),
            })
            .collect()
    }

    pub fn head(&self, actor: &Actor, key: &str) -> Option<ObjectHead> {
        let state = self.state.lock().unwrap();
        let found = state.objects.get(key).map(|object| head(key, object));
        self.note(actor, &format!("head {key}: {}", found.is_some()));
        found
    }

    pub fn read(&self, actor: &Actor, key: &str, range: Option<Range<u64>>) -> Result<Bytes> {
        let state = self.state.lock().unwrap();
        let found = state.objects.get(key).map(|object| object.bytes.clone());
        self.note(actor, &format!("read {key}: {}", found.is_some()));
        let bytes = found.ok_or_else(|| missing(key))?;
        let Some(range) = range else { return Ok(bytes) };
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if range.end > bytes.len() as u64 {
            return Err(damaged(key));
        }
        Ok(bytes.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()))
    }

    /// Answers that an object is not there, whether it is or not.
    pub fn deny(&self, actor: &Actor, key: &str) -> Result<Bytes> {
        self.note(actor, &format!("read {key}: denied"));
        Err(missing(key))
    }

    /// Returns at most `most` objects whose keys come after `after`.
    pub fn page(&self, actor: &Actor, prefix: &str, after: Option<&str>, most: usize) -> Vec<ObjectInfo> {
        let state = self.state.lock().unwrap();
        let keys = state.objects.range(prefix.to_owned()..);
        let page: Vec<ObjectInfo> = keys
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(key, _)| after.is_none_or(|after| key.as_str() > after))
            .take(most)
            .map(|(key, object)| info(key, object))
            .collect();
        self.note(actor, &format!("list {prefix}: {}", page.len()));
        if self.is_mounted() {
            let mut judge = self.judge.lock().unwrap();
            judge.listed(self, actor, prefix, state.sequence);
        }
        page
    }

    pub fn delete(&self, actor: &Actor, keys: &[String]) {
        let mut state = self.state.lock().unwrap();
        for key in keys {
            state.sequence += 1;
            let Some(object) = state.objects.remove(key) else {
                self.note(actor, &format!("delete {key}: not there"));
                continue;
            };
            self.note(actor, &format!("delete {key}"));
            if self.is_mounted() {
                let mut judge = self.judge.lock().unwrap();
                judge.deleted(self, actor, key, &object, &state.objects);
            }
        }
    }

    /// Returns bytes of an object, for a part that is copied.
    pub fn range_of(&self, from: &str, start: u64, size_bytes: u64) -> Result<Bytes> {
        let state = self.state.lock().unwrap();
        let object = state.objects.get(from).ok_or_else(|| missing(from))?;
        let at = |position: u64| usize::try_from(position).unwrap();
        let range = at(start)..at(start + size_bytes);
        if range.end > object.bytes.len() {
            return Err(damaged(from));
        }
        Ok(object.bytes.slice(range))
    }

    /// Returns an object, for a copy of it.
    pub fn object(&self, key: &str) -> Result<Object> {
        self.state.lock().unwrap().objects.get(key).cloned().ok_or_else(|| missing(key))
    }

    /// Puts a copy of an object at a key, if that is unused.
    pub fn put_copy(&self, actor: &Actor, from: &str, to: &str, object: Object) -> Created {
        let mut state = self.state.lock().unwrap();
        if state.objects.contains_key(to) {
            return Created::Exists;
        }
        let copy = self.put(&mut state, actor, to, object.bytes, object.checksum);
        self.note(actor, &format!("copy {from} to {to}"));
        Created::Written(head(to, &copy))
    }
}

fn info(key: &str, object: &Object) -> ObjectInfo {
    ObjectInfo {
        key: key.to_owned(),
        size_bytes: object.bytes.len() as u64,
        modified: object.modified,
        version: Some(format!("v{}", object.version)),
    }
}

fn head(key: &str, object: &Object) -> ObjectHead {
    ObjectHead { info: info(key, object), checksum: object.checksum.clone() }
}

fn short(digest: &PartDigest) -> String {
    format!("{} bytes {}", digest.size_bytes, &digest.content.to_string()[..8])
}

fn missing(key: &str) -> Error {
    Error::new(ErrorKind::NotFound, "it is not there").on(key)
}

fn damaged(key: &str) -> Error {
    Error::new(ErrorKind::Damaged, "other bytes than were announced").on(key)
}
