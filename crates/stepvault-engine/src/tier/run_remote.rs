//! One run on one remote: its keys, its marker, and the reading and writing of records.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use stepvault_core::codec::{MAX_RECORD_BYTES, Record, decode, encode};
use stepvault_core::commit::Commit;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest, PartHasher};
use stepvault_core::file_parts::FileParts;
use stepvault_core::ids::{NodeName, RemoteName, RunName, StepId};
use stepvault_core::imported::Imported;
use stepvault_core::keys::{KeyKind, RunKeys};
use stepvault_core::observe::Tier;
use stepvault_core::records::VaultMarker;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::vault::Vault;
use stepvault_remote::file::will_be_begun;
use stepvault_remote::random;
use stepvault_remote::store::{ArchivePlace, Created, ObjectInfo, RemoteStore};

use super::cache::{RemoteCache, identity_url, other_runs_at};
use super::catalog::CommitMemory;
use super::marked_store::{MarkedStore, gone, same_archive};
use super::removed::RetiredMemory;
use crate::blocking::blocking;
use crate::outage::is_outage;
use crate::remote_file::{BodyRetries, RangeBody};

/// How long work that can do without the answer of a remote waits for it: sealing, which then gives a provisional attempt,
/// and a restore that another remote has answered.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(15);

/// A run on a remote. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RunRemote {
    /// The store, with its decorators. It is unreachable while the marker that this vault saw on it is missing.
    pub store: Arc<dyn RemoteStore>,
    marked: Arc<MarkedStore>,
    /// The run's keys.
    pub keys: RunKeys,
    /// The configuration.
    pub settings: Arc<RemoteSettings>,
    /// The remote as a tier, for events and reports.
    pub tier: Tier,
    /// Cleared once the store has refused to copy for a permanent cause: copying is then not tried again.
    pub may_copy: Arc<AtomicBool>,
    /// The same for parts of files alone.
    pub may_copy_parts: Arc<AtomicBool>,
    /// The records of retired steps that were read on it.
    pub(crate) retired: RetiredMemory,
    /// The commits that were read on it; none unless they are [remembered](Self::remembering_commits).
    pub(crate) commits: CommitMemory,
}

impl RunRemote {
    /// Creates the run `run` on `store`.
    pub fn new(store: Arc<dyn RemoteStore>, settings: Arc<RemoteSettings>, run: RunName) -> Self {
        let tier = Tier::Remote(settings.name.clone());
        let keys = RunKeys::new(run);
        let marked = Arc::new(MarkedStore::new(store, Arc::clone(&settings), keys.clone()));
        Self {
            store: Arc::clone(&marked) as Arc<dyn RemoteStore>,
            marked,
            keys,
            settings,
            tier,
            may_copy: Arc::new(AtomicBool::new(true)),
            may_copy_parts: Arc::new(AtomicBool::new(true)),
            retired: RetiredMemory::default(),
            commits: CommitMemory::default(),
        }
    }

    /// Returns the remote's name.
    pub fn name(&self) -> &RemoteName {
        &self.settings.name
    }

    /// Returns what `answer` returns, or an error if that takes longer than [`ANSWER_PATIENCE`].
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] without an answer.
    pub(crate) async fn answers_soon<T>(&self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = tokio::time::timeout(ANSWER_PATIENCE, answer).await;
        answer.unwrap_or_else(|_| Err(self.no_answer()))
    }

    /// Returns the error for a remote that did not answer in time.
    pub(crate) fn no_answer(&self) -> Error {
        Error::new(ErrorKind::Unreachable, "the remote does not answer")
            .on(format!("{} ({})", self.name(), self.settings.url))
            .because(format!("no answer within {} s", ANSWER_PATIENCE.as_secs()))
    }

    /// Returns where the remote is, for records: its URL, and its endpoint if it has one of its own. Buckets of the same
    /// name on two servers are two places.
    pub fn identity_url(&self) -> String {
        identity_url(self.store.url(), &self.settings)
    }

    /// Returns a key prefixed with the remote's URL, for messages.
    pub fn describe(&self, key: &str) -> String {
        format!("{}/{key}", self.store.url())
    }

    /// Returns the location of a step's data, for messages.
    pub fn step_location(&self, name: &str, id: StepId) -> String {
        let (url, prefix) = (self.store.url(), self.keys.data_prefix(name, id));
        format!("{}/{}", url.trim_end_matches('/'), prefix.trim_end_matches('/'))
    }

    /// Returns the location of a committed step's data, for messages.
    pub(crate) fn location_of(&self, commit: &Commit) -> String {
        match commit.parts.iter().find_map(|part| part.imported.as_ref()) {
            Some(Imported { prefix: Some(prefix) }) => self.describe(prefix.as_str()),
            Some(Imported { prefix: None }) => self.store.url().to_owned(),
            None => self.step_location(&commit.name, commit.id),
        }
    }

    /// Returns the bytes of an object of at most [`MAX_RECORD_BYTES`]; `None` when it does not exist.
    pub async fn read_small(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let mut breaks = BodyRetries::default();
        loop {
            let stream = match self.store.read(key, None).await {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            match self.collect_small(key, stream).await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) => breaks.wait(error, false).await?,
            }
        }
    }

    async fn collect_small(
        &self,
        key: &str,
        mut stream: BoxStream<'static, Result<Bytes>>,
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(piece) = stream.try_next().await? {
            if (bytes.len() + piece.len()) as u64 > MAX_RECORD_BYTES {
                return Err(Error::new(ErrorKind::Damaged, "cannot read a record")
                    .on(self.describe(key))
                    .because(format!("it has more than {MAX_RECORD_BYTES} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// Returns a record and its bytes; `None` when it does not exist.
    pub async fn read_record<R: Record>(&self, key: &str) -> Result<Option<(R, Vec<u8>)>> {
        match self.read_small(key).await? {
            None => Ok(None),
            Some(bytes) => Ok(Some((decode(&bytes, &self.describe(key))?, bytes))),
        }
    }

    /// Returns a record on whose absence something rests; `None` when it does not exist and is not listed either. For records
    /// that are there as a rule: one that is missing costs a LIST.
    ///
    /// # Invariants
    /// One answer proves no absence. Without the tombstone, lease, claim, launch or retired steps that the remote has, a step
    /// would be deleted (S1, S4), its identity used again (S9), or a checkpoint left out (L4).
    pub(crate) async fn read_confirmed<R: Record>(&self, key: &str) -> Result<Option<R>> {
        if let Some((record, _)) = self.read_record(key).await? {
            return Ok(Some(record));
        }
        let missing = Error::new(ErrorKind::NotFound, "cannot read a record").on(self.describe(key));
        match self.confirmed(key, None, missing).await {
            error if error.kind() == ErrorKind::NotFound => Ok(None),
            error => Err(error),
        }
    }

    /// Like [`Self::read_confirmed`]; `None` also when the record cannot be used, for callers that treat both alike.
    ///
    /// # Errors
    /// When the store could not be read, which says nothing about the record.
    pub(crate) async fn read_usable_record<R: Record>(&self, key: &str) -> Result<Option<R>> {
        match self.read_confirmed(key).await {
            Ok(found) => Ok(found),
            Err(error) if is_outage(&error) => Err(error),
            Err(error) => {
                tracing::debug!(%error, "skipped a record that cannot be used");
                Ok(None)
            }
        }
    }

    /// Writes a record that never changes, and reads it back: after `Ok` exactly these bytes are stored, whether this
    /// call wrote them, an earlier one whose answer was lost, or another writer with the same record.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the key holds a different record.
    pub async fn create_record<R: Record>(&self, key: &str, record: &R) -> Result<Vec<u8>> {
        self.write_record(key, record).await?.confirm(self).await
    }

    /// Like [`Self::create_record`]; returns `false` when the key holds a different record.
    pub(crate) async fn create_unless_taken<R: Record>(&self, key: &str, record: &R) -> Result<bool> {
        match self.create_record(key, record).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes a record that never changes, unless its key is taken. It is not stored for certain before it was
    /// [confirmed](WrittenRecord::confirm).
    pub(crate) async fn write_record<R: Record>(&self, key: &str, record: &R) -> Result<WrittenRecord> {
        self.write_encoded::<R>(key, encode(record)?).await
    }

    /// Like [`Self::write_record`], for the bytes of a record.
    pub(crate) async fn write_encoded<R: Record>(&self, key: &str, bytes: Vec<u8>) -> Result<WrittenRecord> {
        // Never write what this program could not read back: the step would be durable but unreadable.
        drop(decode::<R>(&bytes, &self.describe(key))?);
        let bytes = Bytes::from(bytes);
        let digest = PartDigest::of(&bytes);
        let created = self.store.create(key, bytes.clone().into(), &digest).await?;
        Ok(WrittenRecord { what: R::WHAT, key: key.to_owned(), bytes, digest, created })
    }

    /// Writes a record, replacing an existing one.
    pub async fn replace_record<R: Record>(&self, key: &str, record: &R) -> Result<()> {
        let bytes = encode(record)?;
        let digest = PartDigest::of(&bytes);
        self.store.replace(key, Bytes::from(bytes), &digest).await
    }

    /// Lists everything under a prefix. A failure in the middle fails the whole call, because a partial listing decides
    /// nothing.
    pub async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.store.list(prefix).try_collect().await
    }

    /// Lists the objects under a prefix whose keys `select` accepts, each with what `select` returns.
    pub(crate) async fn list_kind<T>(
        &self,
        prefix: &str,
        select: impl Fn(KeyKind) -> Option<T>,
    ) -> Result<Vec<(T, ObjectInfo)>> {
        let objects = self.list(prefix).await?.into_iter();
        let selected = objects.filter_map(|object| Some((select(self.keys.classify(&object.key)?)?, object)));
        Ok(selected.collect())
    }

    /// Lists the objects of steps in a directory of records that holds one for each.
    pub(crate) async fn list_steps(&self, directory: &str) -> Result<BTreeMap<StepId, ObjectInfo>> {
        let listed = self.list_kind(&self.keys.all(directory), |kind| kind.step_id()).await?;
        Ok(listed.into_iter().collect())
    }

    /// Lists the nodes that have a record of their own under a prefix.
    pub(crate) async fn list_nodes(&self, prefix: &str) -> Result<BTreeSet<NodeName>> {
        let listed = self.list_kind(prefix, |kind| kind.node().cloned()).await?;
        Ok(listed.into_iter().map(|(node, _)| node).collect())
    }

    /// Lists the sizes of everything under a prefix, by key. For a step with many files, full listing entries would
    /// take too much memory.
    pub async fn list_sizes(&self, prefix: &str) -> Result<BTreeMap<String, u64>> {
        let objects = self.store.list(prefix);
        objects.map_ok(|object| (object.key, object.size_bytes)).try_collect().await
    }

    /// Returns what is known of an object that should exist, after a read of it failed with `error`: the error itself if the
    /// listing confirms it, otherwise an outage. `read_bytes` is the length of a record that cannot be used.
    ///
    /// A single answer proves nothing: a proxy, a gateway or a login page may have given it, or a replica that lags behind.
    ///
    /// # Invariants
    /// L4, and S1 of a restore: a step is skipped as damaged only if that is proven.
    pub(crate) async fn confirmed(&self, key: &str, read_bytes: Option<usize>, error: Error) -> Error {
        if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Damaged) {
            return error;
        }
        let unproven = |why: String| {
            Error::new(ErrorKind::Unreachable, "the remote's answer is not the object")
                .on(self.describe(key))
                .because(why)
                .hint("check that the endpoint leads to the store, and nothing between answers in its place")
        };
        match (self.listed_bytes(key).await, read_bytes) {
            // A listing that finds nothing is empty.
            (Err(error), _) if error.kind() == ErrorKind::NotFound => error.with_kind(ErrorKind::Unreachable),
            (Err(error), _) => error,
            (Ok(None), _) => error.with_kind(ErrorKind::NotFound),
            (Ok(Some(listed)), None) if error.kind() == ErrorKind::NotFound => unproven(format!(
                "the remote lists it with {listed} bytes, and answers that it does not exist"
            )),
            (Ok(Some(listed)), Some(read)) if listed != read as u64 => {
                unproven(format!("the answer has {read} bytes, and the remote lists {listed}"))
            }
            (Ok(Some(_)), _) => error,
        }
    }

    /// Returns the length of an object as it is listed; `None` if it is not.
    async fn listed_bytes(&self, key: &str) -> Result<Option<u64>> {
        let mut objects = self.store.list(key);
        while let Some(object) = objects.try_next().await? {
            if object.key == key {
                return Ok(Some(object.size_bytes));
            }
        }
        Ok(None)
    }

    /// Checks that an object exists and is empty: there are no bytes to read that would show it.
    pub(crate) async fn ensure_empty(&self, key: &str) -> Result<()> {
        match self.store.head(key).await? {
            Some(head) if head.info.size_bytes == 0 => Ok(()),
            Some(_) => {
                Err(Error::new(ErrorKind::Damaged, "an object has the wrong length").on(self.describe(key)))
            }
            None => {
                let missing = Error::new(ErrorKind::NotFound, "an object is missing").on(self.describe(key));
                Err(self.confirmed(key, None, missing).await)
            }
        }
    }

    /// Returns the marker; `None` when the run has none on this remote.
    pub async fn marker(&self) -> Result<Option<VaultMarker>> {
        Ok(self.read_record::<VaultMarker>(&self.keys.marker()).await?.map(|(marker, _)| marker))
    }

    /// Returns the same remote through a decorator of its store.
    #[must_use]
    pub fn through(&self, store: Arc<dyn RemoteStore>) -> Self {
        Self { store, ..self.clone() }
    }

    /// Returns the same remote, which is unreachable while the marker that this vault saw or will see on it is missing.
    /// Sends no request.
    #[must_use]
    pub fn remembered_by(self, vault: &Vault) -> Self {
        self.marked.remembered_by(vault);
        self
    }

    /// Returns the same remote, whose commits stay in this process once they were read, as many as have `max_parts` parts
    /// together: for one that lists it again and again.
    #[must_use]
    pub fn remembering_commits(self, max_parts: usize) -> Self {
        Self { commits: CommitMemory::of_parts(max_parts), ..self }
    }

    /// Returns what a vault remembers of this remote.
    pub(crate) fn cache(&self, vault: &Vault) -> RemoteCache {
        RemoteCache::new(vault, self.keys.run(), self.name())
    }

    /// Returns the vault that remembers this remote, if there is one.
    pub(crate) fn vault(&self) -> Option<&Vault> {
        self.marked.vault.get()
    }

    /// Records in the vault which archive the remote holds, if there is one and none was recorded before.
    ///
    /// # Errors
    /// When the remote is unreachable, or the vault cannot be read or written.
    pub async fn remember(&self, vault: &Vault) -> Result<()> {
        self.marked.remembered_by(vault);
        if self.marked.expected().await?.is_none()
            && let Some(marker) = self.marker().await?
        {
            self.cache(vault).write_archive(self.identity_url(), &marker).await?;
            self.marked.saw(&marker.vault);
        }
        Ok(())
    }

    /// Prepares the remote for writing: a directory that this vault has never seen is created if only its last
    /// component is missing, and then `true` is returned.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when it cannot be created, or not in such a place.
    pub async fn begin(&self, vault: &Vault, place: ArchivePlace) -> Result<bool> {
        self.marked.remembered_by(vault);
        if self.other_archives(vault).await?.is_empty() {
            return self.store.begin(place).await;
        }
        Ok(false)
    }

    /// Returns whether [`begin`](Self::begin) would create the remote, a directory beside other files.
    ///
    /// # Errors
    /// When the vault cannot be read.
    pub(crate) async fn will_be_begun(&self, vault: &Vault) -> Result<bool> {
        self.marked.remembered_by(vault);
        let settings = Arc::clone(&self.settings);
        let is_new = blocking(move || Ok(will_be_begun(&settings))).await?;
        Ok(is_new && self.marked.expected().await?.is_none())
    }

    /// Returns what to say of a directory that [`begin`](Self::begin) has created: it may be one that is not mounted.
    pub fn created_text(&self) -> String {
        format!("created {}: it is a new archive, without any step", self.store.url())
    }

    /// Shows whether the remote can be used at all, before there is anything to upload: it is prepared for writing, and
    /// the run's marker is on it. Returns whether it was created, beside other files.
    ///
    /// # Errors
    /// Why it cannot be used; [`ErrorKind::Unreachable`] without an answer within 15 seconds.
    pub async fn try_out(&self, vault: &Vault) -> Result<bool> {
        let tried = async {
            let is_new = self.begin(vault, ArchivePlace::BesideFiles).await?;
            self.ensure_marker(vault).await?;
            Ok(is_new)
        };
        self.answers_soon(tried).await
    }

    /// Returns the markers of other runs that this vault saw at this URL.
    async fn other_archives(&self, vault: &Vault) -> Result<Vec<String>> {
        let others = other_runs_at(vault, self.keys.run(), &self.identity_url()).await?;
        Ok(others.into_iter().map(|run| RunKeys::new(run).marker()).collect())
    }

    /// Checks that a run may begin an archive here: if this vault saw those of other runs here, one of them must exist.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when all of them are missing.
    async fn ensure_known_store(&self, vault: &Vault) -> Result<()> {
        let others = self.other_archives(vault).await?;
        for marker in &others {
            if self.store.head(marker).await?.is_some() {
                return Ok(());
            }
        }
        others.first().map_or(Ok(()), |marker| Err(gone(&self.settings, &self.describe(marker))))
    }

    /// Returns the marker, after writing it if there is none and this vault has never seen one on the remote, and
    /// records it.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when the marker that this vault saw on it is missing; [`ErrorKind::Refused`] when it
    /// holds a different archive than before: a wrong bucket, or one that was emptied and used for something else.
    pub async fn ensure_marker(&self, vault: &Vault) -> Result<VaultMarker> {
        self.ensure_marker_or(vault, VaultMarker::new(random::identity())).await
    }

    /// Like [`ensure_marker`](Self::ensure_marker), with `marker` for a remote that has none: that of the remote which the
    /// run is copied from.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn ensure_marker_or(&self, vault: &Vault, marker: VaultMarker) -> Result<VaultMarker> {
        self.begin(vault, ArchivePlace::Anywhere).await?;
        let expected = self.marked.expected().await?;
        let key = self.keys.marker();
        let marker = match (self.marker().await?, &expected) {
            (Some(marker), _) => marker,
            (None, Some(_)) => return Err(gone(&self.settings, &self.describe(&key))),
            (None, None) => {
                self.ensure_known_store(vault).await?;
                self.create_marker(marker).await?
            }
        };
        if let Some(expected) = expected {
            same_archive(&marker, &expected, &self.describe(&key), &self.settings)?;
        } else {
            self.cache(vault).write_archive(self.identity_url(), &marker).await?;
        }
        self.marked.saw(&marker.vault);
        Ok(marker)
    }

    /// From now on expects the marker that is on the remote, for a reader without a vault: the filesystem of a directory may
    /// be unmounted while it reads.
    pub(crate) async fn expect_marker(&self) -> Result<()> {
        if self.settings.url.scheme.is_directory()
            && self.marked.expected().await?.is_none()
            && let Some(marker) = self.marker().await?
        {
            self.marked.saw(&marker.vault);
        }
        Ok(())
    }

    /// Returns the marker, after writing it if there is none, for a caller without a vault.
    pub(crate) async fn ensure_marker_without_vault(&self) -> Result<VaultMarker> {
        match self.marker().await? {
            Some(marker) => Ok(marker),
            None => self.create_marker(VaultMarker::new(random::identity())).await,
        }
    }

    async fn create_marker(&self, marker: VaultMarker) -> Result<VaultMarker> {
        match self.create_record(&self.keys.marker(), &marker).await {
            Ok(_) => Ok(marker),
            // Another writer was first; its marker is used.
            Err(error) if error.kind() == ErrorKind::Conflict => self.marker().await?.ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// Deletes keys in batches.
    pub async fn delete(&self, keys: Vec<String>) -> Result<()> {
        for batch in keys.chunks(1000) {
            self.store.delete(batch).await?;
        }
        Ok(())
    }

    /// Reads a range of an object and digests it. A response that breaks off is continued.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] when the object is shorter.
    pub(crate) async fn digest_range(
        &self,
        key: &str,
        range: Range<u64>,
        algorithm: DigestAlgorithm,
    ) -> Result<PartDigest> {
        let mut hasher = PartHasher::new(algorithm);
        let mut body = RangeBody::new(&self.store, key, range);
        while let Some(piece) = body.next().await? {
            hasher.update(&piece);
        }
        Ok(hasher.finish())
    }

    /// Reads an object from end to end and digests it in parts of `part_size_bytes`.
    pub async fn digest_object(
        &self,
        key: &str,
        size_bytes: u64,
        algorithm: DigestAlgorithm,
    ) -> Result<Vec<PartDigest>> {
        let part_size_bytes = FileParts::of(size_bytes)?.part_size_bytes();
        let mut digests = Vec::new();
        if size_bytes == 0 {
            return Ok(vec![PartDigest::by(algorithm, &[])]);
        }
        let mut hasher = PartHasher::new(algorithm);
        let mut stream = self.store.read(key, None).await?;
        let (mut total, mut moved, mut breaks) = (0_u64, false, BodyRetries::default());
        while let Some(piece) = stream.next().await {
            let mut piece = match piece {
                Ok(piece) => piece,
                Err(error) if total < size_bytes => {
                    drop(stream);
                    breaks.wait(error, std::mem::take(&mut moved)).await?;
                    stream = self.store.read(key, Some(total..size_bytes)).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            moved = true;
            total += piece.len() as u64;
            while !piece.is_empty() {
                let room = part_size_bytes - hasher.size_bytes();
                let cut = piece.len().min(usize::try_from(room).unwrap_or(usize::MAX));
                hasher.update(&piece.split_to(cut));
                if hasher.size_bytes() == part_size_bytes {
                    let part = std::mem::replace(&mut hasher, PartHasher::new(algorithm));
                    digests.push(part.finish());
                }
            }
            if total > size_bytes {
                break;
            }
        }
        if hasher.size_bytes() > 0 {
            digests.push(hasher.finish());
        }
        Ok(digests)
    }
}

/// A record that [`RunRemote::write_record`] has written, or whose key was taken.
#[derive(Debug)]
pub(crate) struct WrittenRecord {
    /// What it is, for messages.
    pub(crate) what: &'static str,
    pub(crate) key: String,
    pub(crate) bytes: Bytes,
    pub(crate) digest: PartDigest,
    pub(crate) created: Created,
}

impl WrittenRecord {
    /// Whether this call wrote it, not an earlier one whose answer was lost or another writer.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.created, Created::Written(_))
    }

    /// Whether this call wrote it and the checksum in the store's answer proves its bytes: for a store that checks what it
    /// stores.
    pub(crate) fn is_proved(&self) -> bool {
        let Created::Written(head) = &self.created else { return false };
        let digest = FileDigest::from_parts(slice::from_ref(&self.digest));
        head.info.size_bytes == digest.size_bytes
            && head.checksum.proves(&digest, &[self.digest.content]) == Some(true)
    }

    /// Reads the record back: after `Ok` exactly these bytes are stored, whether this call wrote them, an earlier one
    /// whose answer was lost, or another writer with the same record.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the key holds a different record; [`ErrorKind::Damaged`] when what this call wrote is
    /// missing or different.
    pub(crate) async fn confirm(self, remote: &RunRemote) -> Result<Vec<u8>> {
        let conflict = |why: &str| {
            Error::new(ErrorKind::Conflict, format!("cannot write the {}", self.what))
                .on(remote.describe(&self.key))
                .because(why)
        };
        match remote.read_small(&self.key).await? {
            Some(found) if found == self.bytes => Ok(found),
            Some(_) if !self.is_new() => Err(conflict("a different one already exists").name_taken()),
            Some(_) => {
                Err(conflict("the bytes read back differ from those written").with_kind(ErrorKind::Damaged))
            }
            None => Err(conflict("it is missing after it was written").with_kind(ErrorKind::Damaged)),
        }
    }
}
