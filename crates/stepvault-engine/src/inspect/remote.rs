//! A prefix of a bucket as a directory to inspect: one listing, and ranges of the objects that the checks open.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt as _;
use parking_lot::Mutex;
use stepvault_core::{Error, ErrorKind, RelativePath, RemoteUrl, Result, Scheme, Timestamp};
use stepvault_formats::profile::last_component;
use stepvault_formats::step_name::looks_like_a_step;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, ReadAt, Tree};
use stepvault_remote::store::{ObjectInfo, RemoteStore};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::{InspectRequest, Inspection, Subject, View, WHAT, judge};
use crate::remote_file::RemoteFile;

/// As many as a directory may have files.
const MAX_OBJECTS: u64 = 1_000_000;
/// Checks that run at once; the remote's own limit of requests applies besides.
const CHECKS_AT_ONCE: usize = 16;
/// Bytes of a request, at least; a smaller object is read whole.
const LEAST_BYTES: u64 = 64 << 10;
/// Objects up to this size are read by one request.
const SMALL_BYTES: u64 = 4 * LEAST_BYTES;
/// Bytes of a request, at most.
const MOST_BYTES: u64 = 4 << 20;
/// Bytes of all answers that are kept for the next check of the same object.
const KEPT_BYTES: usize = 64 << 20;
/// Bytes that are read of one object, and of all, if not all data is to be read.
const MAX_HEADER_BYTES: u64 = 128 << 20;
const MAX_ALL_HEADERS_BYTES: u64 = 1 << 30;
/// Objects that could not be read, as far as they are named.
const MAX_UNREAD: usize = 1000;

/// What lies below a URL, as it was listed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RemoteDirectory {
    /// The listed prefix, or the directory of the object that was asked for.
    url: RemoteUrl,
    /// The name of the object, if the URL is that of one.
    object: Option<String>,
    /// Whether the URL is one half of a pair, which is listed instead.
    is_trial: bool,
    ignored: u64,
    reader: Arc<Reader>,
}

/// Ends the reads of a [`RemoteDirectory`] when it is dropped: a thread that blocks does not end with the future that
/// waits for it.
#[derive(Debug)]
pub struct ReadGuard(#[allow(dead_code, reason = "it is only dropped")] watch::Sender<()>);

/// What an inspection took, and what it could not check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteReads {
    /// Objects that were listed.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// Requests that listed them.
    pub list_requests: u64,
    /// Requests that read ranges of objects, or asked for one object's size. Repeated ones are not counted.
    pub read_requests: u64,
    /// Bytes that were read of objects.
    pub read_bytes: u64,
    /// Objects whose check was not made, or not to its end, with the reason.
    pub unread: BTreeMap<String, String>,
    /// Listed names that no file can have; they are left out.
    pub ignored: u64,
}

#[derive(Debug)]
struct Reader {
    store: Arc<dyn RemoteStore>,
    runtime: Handle,
    /// The text before each path in its key: empty, or with a slash at its end.
    base: String,
    tree: Tree,
    reads_all: bool,
    listing: (u64, u64),
    state: Mutex<ReaderState>,
    is_wanted: watch::Receiver<()>,
}

#[derive(Debug, Default)]
struct ReaderState {
    answers: HashMap<String, BTreeMap<u64, Bytes>>,
    /// The answers in the order of their arrival.
    order: VecDeque<(String, u64)>,
    kept_bytes: usize,
    requests: u64,
    bytes: u64,
    unread: BTreeMap<String, String>,
    /// The first error that concerns more than one object.
    outage: Option<Error>,
    denial: Option<Error>,
    has_read: bool,
}

impl RemoteDirectory {
    /// Lists what lies below `url`. `store` is open at the root of its bucket. Unless all data is to be read
    /// (`reads_all`), the number of bytes is bounded that [`inspect_remote`] reads. Must be called inside the runtime.
    ///
    /// # Errors
    /// `Usage` if nothing lies there; `Refused` for more than a million objects; that of the store.
    pub async fn list(
        store: Arc<dyn RemoteStore>,
        url: &RemoteUrl,
        reads_all: bool,
    ) -> Result<(Self, ReadGuard)> {
        let listed = Listed::of(&*store, url).await?;
        let mut requests = 0;
        let (url, listed, is_trial) = match listed.areal_trial(url) {
            Some(trial) => {
                requests += 1;
                let pair = format!("{}/recover_info/step_info.json", trial.prefix);
                match store.head(&pair).await? {
                    Some(_) => (trial.clone(), Listed::of(&*store, &trial).await?, true),
                    None => (url.clone(), listed, false),
                }
            }
            None => (url.clone(), listed, false),
        };
        let object = listed.object.clone();
        let directory = if object.is_some() { above(&url) } else { url.clone() };
        let base = if directory.prefix.is_empty() { String::new() } else { format!("{}/", directory.prefix) };
        let (alive, is_wanted) = watch::channel(());
        let ignored = listed.ignored;
        let state = ReaderState { requests: requests + listed.heads, ..ReaderState::default() };
        let reader = Reader {
            store,
            runtime: Handle::current(),
            base,
            reads_all,
            listing: (listed.objects, listed.requests(url.scheme)),
            state: Mutex::new(state),
            is_wanted,
            tree: Tree::new(listed.entries),
        };
        let listed = Self { url: directory, object, is_trial, ignored, reader: Arc::new(reader) };
        Ok((listed, ReadGuard(alive)))
    }

    /// Returns what was requested so far.
    pub fn reads(&self) -> RemoteReads {
        let state = self.reader.state.lock();
        let sizes = self.reader.tree.files().filter_map(|(path, _)| self.reader.tree.file_size_bytes(path));
        RemoteReads {
            objects: self.reader.listing.0,
            object_bytes: sizes.fold(0, u64::saturating_add),
            list_requests: self.reader.listing.1,
            read_requests: state.requests,
            read_bytes: state.bytes,
            unread: state.unread.clone(),
            ignored: self.ignored,
        }
    }

    /// Returns the key of the directory to which the paths of an inspection are relative; `None` for the store's own.
    pub(crate) fn directory_of(&self, inspection: &Inspection) -> Option<String> {
        let url = if inspection.is_from_above { above(&self.url) } else { self.url.clone() };
        Some(url.prefix).filter(|prefix| !prefix.is_empty())
    }

    /// Returns what was listed, by paths as an inspection has them.
    pub(crate) fn tree_of(&self, inspection: &Inspection) -> Tree {
        let name = if inspection.is_from_above { last_component(&self.url.prefix) } else { "" };
        self.view(name).tree
    }

    /// Returns the inside of this directory as seen from the one above it, or as it is for an empty name.
    fn view(&self, name: &str) -> View {
        let tree = self.reader.tree.clone();
        let tree =
            if name.is_empty() { tree } else { tree.under(name, directory(Timestamp::from_seconds(0))) };
        let files = RemoteView { reader: Arc::clone(&self.reader), name: name.to_owned() };
        View { tree, files: Arc::new(files), checks_at_once: CHECKS_AT_ONCE }
    }

    fn subject(&self) -> Subject {
        if self.is_trial {
            return Subject::Trial(PathBuf::from(self.url.to_string()), self.view(""));
        }
        if self.object.is_some() {
            return Subject::Entry { inside: None, above: Some(self.view("")) };
        }
        let name = last_component(&self.url.prefix);
        let above = (!name.is_empty()).then(|| self.view(name));
        Subject::Entry { inside: Some(self.view("")), above }
    }
}

/// Inspects what was listed, as [`inspect`](super::inspect) does a directory. Blocks.
///
/// # Errors
/// [`ErrorKind::Usage`] for an unknown profile; that of the store if it stopped answering, or allowed no read at all.
pub fn inspect_remote(
    directory: &RemoteDirectory,
    request: &InspectRequest<'_>,
    now: Timestamp,
) -> Result<Inspection> {
    let inspection = judge(directory.subject(), request, now)?;
    let mut state = directory.reader.state.lock();
    let has_read = state.has_read;
    match state.outage.take().or_else(|| state.denial.take().filter(|_| !has_read)) {
        Some(error) => Err(error),
        None => Ok(inspection),
    }
}

/// Returns the URL of the directory that has this one.
fn above(url: &RemoteUrl) -> RemoteUrl {
    let prefix = url.prefix.rsplit_once('/').map_or("", |(above, _)| above);
    RemoteUrl { prefix: prefix.to_owned(), ..url.clone() }
}

/// Returns the path of the step that a file is part of, else that of its directory. A pair of directories is one step.
fn group_of(path: &str, is_pair: bool) -> &str {
    let is_step = |path: &str| {
        let name = last_component(path);
        looks_like_a_step(name) && name.contains(|letter: char| letter.is_ascii_digit())
    };
    let mut above = path.match_indices('/').map(|(end, _)| &path[..end]);
    let directory = || path.rsplit_once('/').map_or("", |(directory, _)| directory);
    match above.find(|above| is_step(above)) {
        _ if is_pair => "",
        Some(step) => step,
        None if is_step(path) => path,
        None => directory(),
    }
}

fn directory(mtime: Timestamp) -> Entry {
    Entry { kind: EntryKind::Directory, mtime }
}

/// The objects below a prefix, or the one at it.
#[derive(Debug, Default)]
struct Listed {
    entries: BTreeMap<String, Entry>,
    object: Option<String>,
    objects: u64,
    heads: u64,
    ignored: u64,
}

impl Listed {
    async fn of(store: &dyn RemoteStore, url: &RemoteUrl) -> Result<Self> {
        let mut listed = Self::default();
        let below = if url.prefix.is_empty() { String::new() } else { format!("{}/", url.prefix) };
        let mut objects = store.list(&below);
        while let Some(object) = objects.try_next().await? {
            listed.objects += 1;
            if listed.objects > MAX_OBJECTS {
                return Err(Error::new(ErrorKind::Refused, WHAT)
                    .on(url)
                    .because(format!("it holds more than {MAX_OBJECTS} objects"))
                    .hint("give the prefix that holds the checkpoints"));
            }
            let path = object.key.strip_prefix(&below).unwrap_or_default();
            if !path.is_empty() {
                listed.add(path, &object);
            }
        }
        if listed.objects > 0 || url.prefix.is_empty() {
            listed.level_times();
            return Ok(listed);
        }
        listed.heads = 1;
        let Some(head) = store.head(&url.prefix).await? else {
            return Err(Error::new(ErrorKind::Usage, WHAT).on(url).because("no object lies there"));
        };
        let name = last_component(&url.prefix);
        listed.objects = 1;
        listed.object = Some(name.to_owned());
        listed.add(name, &head.info);
        Ok(listed)
    }

    /// Adds an object, and the directories above it. A name that ends with a slash is that of a directory, as consoles
    /// and mounts write it.
    fn add(&mut self, path: &str, object: &ObjectInfo) {
        let Ok(name) = RelativePath::new(path.trim_end_matches('/')) else {
            self.ignored += 1;
            return;
        };
        let mtime = Timestamp::from(object.modified);
        for above in name.ancestors() {
            let entry = self.entries.entry(above.to_owned()).or_insert_with(|| directory(mtime));
            // An object with the name of a directory is no file there.
            if entry.kind != EntryKind::Directory {
                self.ignored += 1;
                entry.kind = EntryKind::Directory;
            }
            entry.mtime = entry.mtime.max(mtime);
        }
        let kind = EntryKind::File { size_bytes: object.size_bytes, allocated_bytes: None };
        let entry = if path.ends_with('/') { directory(mtime) } else { Entry { kind, mtime } };
        if self.entries.get(name.as_str()).is_none_or(|known| known.kind != EntryKind::Directory) {
            self.entries.insert(name.as_str().to_owned(), entry);
        } else if !path.ends_with('/') {
            self.ignored += 1;
        }
    }

    /// Gives all files of a step the time of the newest one. Tools upload in any order, so that the times of objects do not
    /// show in which order the files were written, only when the upload was over.
    fn level_times(&mut self) {
        let is_pair = self.entries.contains_key("recover_info");
        let is_file = |entry: &Entry| matches!(entry.kind, EntryKind::File { .. });
        let mut newest: HashMap<String, Timestamp> = HashMap::new();
        for (path, entry) in self.entries.iter().filter(|(_, entry)| is_file(entry)) {
            let of_group = newest.entry(group_of(path, is_pair).to_owned()).or_insert(entry.mtime);
            *of_group = entry.mtime.max(*of_group);
        }
        for (path, entry) in self.entries.iter_mut().filter(|(_, entry)| is_file(entry)) {
            entry.mtime = newest.get(group_of(path, is_pair)).copied().unwrap_or(entry.mtime);
        }
    }

    /// Returns the URL of `AReaL`'s trial if this one may be a half of its pair, as for a path of this machine.
    fn areal_trial(&self, url: &RemoteUrl) -> Option<RemoteUrl> {
        let has = |name: &str| self.entries.get(name).is_some_and(|entry| entry.kind == EntryKind::Directory);
        let trial = match last_component(&url.prefix) {
            _ if has("recover_info") => return None,
            "recover_checkpoint" => above(&above(url)),
            "recover_info" => above(url),
            _ if has("recover_checkpoint") => above(url),
            _ => return None,
        };
        (!trial.prefix.is_empty()).then_some(trial)
    }

    /// Returns the number of pages: a store lists as many objects in each as it can.
    fn requests(&self, scheme: Scheme) -> u64 {
        let page = if scheme == Scheme::Azure { 5000 } else { 1000 };
        (self.objects - self.object.iter().len() as u64).div_ceil(page).max(1)
    }
}

/// The files of a listing, with a name before each path or none.
struct RemoteView {
    reader: Arc<Reader>,
    name: String,
}

impl OpenFile for RemoteView {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let inside = match self.name.as_str() {
            "" => Some(path),
            name => path.strip_prefix(name).and_then(|rest| rest.strip_prefix('/')),
        };
        let found = inside.and_then(|path| Some((path, self.reader.tree.file_size_bytes(path)?)));
        let (path, size_bytes) = found.ok_or(io::ErrorKind::NotFound)?;
        let file = RemoteFile {
            store: Arc::clone(&self.reader.store),
            key: format!("{}{path}", self.reader.base),
            size_bytes,
            runtime: self.reader.runtime.clone(),
        };
        let (path, reader) = (path.to_owned(), Arc::clone(&self.reader));
        Ok(Box::new(KeptFile { path, file, reader, ahead: Mutex::default() }))
    }
}

/// An object whose last answers are kept.
struct KeptFile {
    path: String,
    file: RemoteFile,
    reader: Arc<Reader>,
    ahead: Mutex<Ahead>,
}

/// The last answer to this reader of an object, and how much was read of it.
#[derive(Default)]
struct Ahead {
    start: u64,
    bytes: Bytes,
    all_bytes: u64,
}

impl Ahead {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ReadAt for KeptFile {
    fn size_bytes(&self) -> u64 {
        self.file.size_bytes
    }

    fn read_exact_at(&self, offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.file.size_bytes);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut ahead = self.ahead.lock();
        while !buffer.is_empty() {
            let at = end - buffer.len() as u64;
            let (start, bytes) = self.answer(at, end, &mut ahead)?;
            let inside = usize::try_from(at - start).ok().and_then(|from| bytes.get(from..));
            let piece = inside.unwrap_or_default();
            let count = piece.len().min(buffer.len());
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (filled, rest) = buffer.split_at_mut(count);
            filled.copy_from_slice(&piece[..count]);
            buffer = rest;
        }
        Ok(())
    }
}

impl KeptFile {
    /// Returns an answer that holds the byte at `at`, with its first byte's offset.
    fn answer(&self, at: u64, end: u64, ahead: &mut Ahead) -> io::Result<(u64, Bytes)> {
        if (ahead.start..ahead.end()).contains(&at) {
            return Ok((ahead.start, ahead.bytes.clone()));
        }
        if let Some(kept) = self.reader.kept(&self.path, at) {
            return Ok(kept);
        }
        let range = self.range(at, end, ahead);
        let bytes = self.reader.request(&self.path, &self.file, range.clone(), ahead.all_bytes)?;
        let all_bytes = ahead.all_bytes + bytes.len() as u64;
        *ahead = Ahead { start: range.start, bytes: bytes.clone(), all_bytes };
        Ok((range.start, bytes))
    }

    /// Returns what to request for the bytes from `at` to `end`: more each time for one who reads on, and the end of an
    /// object, where archives have their directory, from further before.
    fn range(&self, at: u64, end: u64, ahead: &Ahead) -> Range<u64> {
        let size_bytes = self.file.size_bytes;
        if size_bytes <= SMALL_BYTES {
            return 0..size_bytes;
        }
        if size_bytes - at <= LEAST_BYTES {
            return size_bytes - LEAST_BYTES..size_bytes;
        }
        let reads_on = at == ahead.end() && at > 0;
        let before = if reads_on { ahead.bytes.len() as u64 * 2 } else { 0 };
        let wanted = (end - at).max(before).clamp(LEAST_BYTES, MOST_BYTES);
        at..(at + wanted).min(size_bytes)
    }
}

impl Reader {
    fn kept(&self, path: &str, at: u64) -> Option<(u64, Bytes)> {
        let state = self.state.lock();
        let (start, bytes) = state.answers.get(path)?.range(..=at).next_back()?;
        (at - start < bytes.len() as u64).then(|| (*start, bytes.clone()))
    }

    /// Requests a range. An error that concerns this object alone is kept as the reason why its check was not made.
    fn request(&self, path: &str, file: &RemoteFile, range: Range<u64>, before: u64) -> io::Result<Bytes> {
        let length = range.end - range.start;
        let unread = |why: String| {
            let mut state = self.state.lock();
            if state.unread.len() < MAX_UNREAD {
                state.unread.entry(path.to_owned()).or_insert_with(|| why.clone());
            }
            io::Error::other(why)
        };
        {
            let mut state = self.state.lock();
            if state.outage.is_some() {
                return Err(io::Error::other("the remote does not answer"));
            }
            let all = state.bytes.saturating_add(length);
            let bound = match self.reads_all {
                true => None,
                false if before + length > MAX_HEADER_BYTES => {
                    Some(format!("its check reads more than {} MiB of it", MAX_HEADER_BYTES >> 20))
                }
                false => (all > MAX_ALL_HEADERS_BYTES).then(|| {
                    format!("{} MiB of other objects were read before", MAX_ALL_HEADERS_BYTES >> 20)
                }),
            };
            if let Some(bound) = bound {
                drop(state);
                return Err(unread(bound));
            }
            (state.requests, state.bytes) = (state.requests + 1, all);
        }
        let mut buffer = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        let mut is_wanted = self.is_wanted.clone();
        let outcome = self.runtime.block_on(async {
            tokio::select! {
                read = file.read(range.start, &mut buffer) => read,
                _ = is_wanted.changed() => Err(Error::new(ErrorKind::Interrupted, "the inspection was ended")),
            }
        });
        match outcome {
            Ok(()) => {
                let bytes = Bytes::from(buffer);
                self.keep(path, range.start, &bytes);
                Ok(bytes)
            }
            Err(error) => {
                let why = error.to_string();
                let mut state = self.state.lock();
                match error.kind() {
                    ErrorKind::Unreachable | ErrorKind::Interrupted => state.outage = Some(error),
                    ErrorKind::Denied => state.denial = state.denial.take().or(Some(error)),
                    _ => {}
                }
                drop(state);
                Err(unread(why))
            }
        }
    }

    fn keep(&self, path: &str, start: u64, bytes: &Bytes) {
        let mut state = self.state.lock();
        state.has_read = true;
        // Long answers are those of one who reads on.
        if bytes.len() as u64 > SMALL_BYTES {
            return;
        }
        state.kept_bytes += bytes.len();
        state.order.push_back((path.to_owned(), start));
        let replaced = state.answers.entry(path.to_owned()).or_default().insert(start, bytes.clone());
        state.kept_bytes -= replaced.map_or(0, |replaced| replaced.len());
        while state.kept_bytes > KEPT_BYTES
            && let Some((path, start)) = state.order.pop_front()
        {
            let Some(of_path) = state.answers.get_mut(&path) else { continue };
            let dropped = of_path.remove(&start).map_or(0, |dropped| dropped.len());
            if of_path.is_empty() {
                state.answers.remove(&path);
            }
            state.kept_bytes -= dropped;
        }
    }
}
