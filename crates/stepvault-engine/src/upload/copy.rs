//! Decides what the store may copy for one step's upload: files and file parts of an earlier revision of it, or of the newest
//! other step; and of a step that is copied from another remote in the same store, all files. A failed copy never fails an
//! upload: the bytes are sent instead.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use stepvault_core::commit::{Commit, CommittedPart};
use stepvault_core::digest::{ContentDigest, Crc32c, FileDigest, PartDigest};
use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::manifest::{EntryDigests, PartManifest};
use stepvault_core::{Error, ErrorKind, Observer, RemoteSettings, Result};
use stepvault_local::vault::Vault;
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::store::{Created, RemoteStore};

use super::origin::SourceStep;
use crate::blocking::blocking;
use crate::tier::catalog::{committed_ids, read_commit, read_part_manifest};
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::is_durable_on;

/// The objects of an earlier step that the store may copy, shared by all files of one upload.
#[derive(Debug, Default)]
pub(super) struct CopySources {
    copies: Copies,
    /// Where the step is copied from, if the files are those of another remote.
    common: Option<CommonStore>,
    /// Keys that are no longer used as copy sources.
    unusable: Mutex<BTreeSet<String>>,
    /// Whether copying has stopped for this upload, so that all remaining bytes are sent.
    stopped: AtomicBool,
    /// Bytes that were copied.
    copied_bytes: AtomicU64,
}

/// The store in which both remotes of a copy are, under the URL that is above both. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CommonStore {
    store: Arc<dyn RemoteStore>,
    /// How the keys of each remote begin in it.
    from: String,
    to: String,
}

impl CommonStore {
    /// Opens the store of two remotes, if they are in one.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn open(
        from: &RemoteSettings,
        to: &RemoteSettings,
        observer: Arc<dyn Observer>,
        options: OpenOptions,
    ) -> Result<Option<Self>> {
        let Some(above) = Self::settings(from, to) else { return Ok(None) };
        let store = open_with(&above, observer, options).await?;
        Ok(Some(Self::new(store, from, to)))
    }

    /// Returns the settings with which the store is opened: those of the target with a URL above both, or `None` where they
    /// are not in one bucket of one provider. Directories are none: what is copied there is read back anyway.
    pub fn settings(from: &RemoteSettings, to: &RemoteSettings) -> Option<RemoteSettings> {
        let (source, target) = (&from.url, &to.url);
        let is_one = source.scheme == target.scheme
            && source.bucket == target.bucket
            && from.endpoint == to.endpoint
            && !target.scheme.is_directory();
        let mut settings = to.clone();
        settings.url.prefix = String::new();
        is_one.then_some(settings)
    }

    /// Describes the store that was opened with these settings.
    pub fn new(store: Arc<dyn RemoteStore>, from: &RemoteSettings, to: &RemoteSettings) -> Self {
        let prefix = |settings: &RemoteSettings| match settings.url.prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Self { store, from: prefix(from), to: prefix(to) }
    }
}

/// What the store was asked to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyOf {
    File,
    Part,
}

impl CopySources {
    /// Finds what a remote already has of a node's files of a step, which have these sizes. A failure only costs bytes.
    pub(super) async fn find(
        remote: &RunRemote,
        vault: &Vault,
        id: StepId,
        node: &NodeName,
        sizes: BTreeSet<u64>,
    ) -> Self {
        let has_bytes = sizes.iter().any(|size| *size > 0);
        let may_copy = remote.settings.copy_unchanged && remote.may_copy.load(Ordering::Relaxed);
        if !has_bytes || !may_copy || !remote.store.capabilities().copies {
            return Self::default();
        }
        let planned = match previous_part(remote, vault, id, node).await {
            Ok(Some(previous)) => Copies::plan(&sizes, &previous),
            Ok(None) => Ok(Copies::default()),
            Err(error) => Err(error),
        };
        let copies = planned.unwrap_or_else(|error| {
            tracing::debug!(remote = %remote.name(), %error, "cannot copy inside the store: every file is sent");
            Copies::default()
        });
        Self { copies, ..Self::default() }
    }

    /// Returns the files of a step of another remote in the same store.
    pub(super) fn of_step(remote: &RunRemote, common: &CommonStore, step: &SourceStep) -> Result<Self> {
        let may_copy = remote.settings.copy_unchanged && remote.may_copy.load(Ordering::Relaxed);
        let mut copies = Copies::default();
        for manifest in step.manifests.iter().filter(|_| may_copy) {
            for file in manifest.files.iter().filter(|file| file.size_bytes > 0) {
                // One without digests is read, so that its copy has some.
                if let Some(digests) = file.digests() {
                    copies.add_file(file.size_bytes, digests, step.file(&file.path)?.key);
                }
            }
        }
        Ok(Self { copies, common: Some(common.clone()), ..Self::default() })
    }

    /// Lets the store copy an object to an unused key of the remote.
    pub(super) async fn copy(&self, to: &RunRemote, source: &str, key: &str) -> Result<Created> {
        match &self.common {
            Some(common) => {
                let (from, to) = (format!("{}{source}", common.from), format!("{}{key}", common.to));
                common.store.copy(&from, &to).await
            }
            None => to.store.copy(source, key).await,
        }
    }

    /// Counts bytes that were copied.
    pub(super) fn count(&self, bytes: u64) {
        self.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that were copied.
    pub(super) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Whether the store has a file with this digest.
    pub(super) fn has_file(&self, digest: &FileDigest) -> bool {
        self.source_of_file(digest).is_some()
    }

    /// Whether nothing can be copied.
    pub(super) fn is_idle(&self) -> bool {
        self.copies.is_empty() || self.stopped.load(Ordering::Relaxed)
    }

    /// Returns the key of a file with this digest.
    pub(super) fn source_of_file(&self, digest: &FileDigest) -> Option<&str> {
        self.usable(self.copies.of_file(digest))
    }

    /// Returns the key of a file of that size whose part `index` has this digest.
    pub(super) fn source_of_part(&self, size_bytes: u64, index: u32, digest: &PartDigest) -> Option<&str> {
        self.usable(self.copies.of_part(size_bytes, index, digest))
    }

    fn usable<'a>(&self, source: Option<&'a str>) -> Option<&'a str> {
        let unusable = self.unusable.lock();
        source.filter(|source| !self.is_idle() && !unusable.contains(*source))
    }

    /// Stops copying, because copied data turned out to be wrong.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Handles a failed copy from `source`: decides what is retried, and warns if a user has to act.
    pub(super) fn failed(
        &self,
        on: &RunRemote,
        observer: &dyn Observer,
        (of, source): (CopyOf, &str),
        error: &Error,
    ) {
        let remote = on.name();
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::Damaged => {
                let is_new = self.unusable.lock().insert(source.to_owned());
                if is_new && error.kind() == ErrorKind::Damaged {
                    observer.warn(format!(
                            "{} no longer holds what was uploaded and is not used as a copy source: {error} (check \
                             its step with `stepvault verify --deep`)",
                            on.describe(source)
                        ));
                } else {
                    tracing::debug!(%remote, source, %error, "sent instead of copied");
                }
            }
            // These errors would recur for every part, or every file and step.
            ErrorKind::Failed if of == CopyOf::Part && !error.is_transient() => {
                if on.may_copy_parts.swap(false, Ordering::Relaxed) {
                    tracing::info!(%remote, %error, "the store does not copy parts: changed files are sent again");
                }
            }
            ErrorKind::Failed | ErrorKind::Denied | ErrorKind::Usage if !error.is_transient() => {
                self.stop();
                if on.may_copy.swap(false, Ordering::Relaxed) {
                    tracing::info!(%remote, %error, "the store does not support copies: unchanged files are sent \
                                                     again");
                }
            }
            _ => {
                self.stop();
                tracing::info!(%remote, %error, "the store could not copy: the remaining files of this step are sent");
            }
        }
    }
}

/// Returns this node's part of the nearest other step on this remote, as in [`nearness`]. If the vault still has that
/// step and knows it to be durable there, this takes no request; on a new node it takes one listing and two records.
async fn previous_part(
    remote: &RunRemote,
    vault: &Vault,
    id: StepId,
    node: &NodeName,
) -> Result<Option<PartManifest>> {
    if let Some(known) = previous_in_vault(remote, vault, id).await? {
        return Ok(Some(known));
    }
    let committed = committed_ids(remote).await?;
    let others = committed.into_keys().filter(|known| *known != id);
    let Some(nearest) = others.max_by_key(|known| nearness(id, *known)) else {
        return Ok(None);
    };
    let commit = read_commit(remote, nearest).await?;
    match part_of(&commit, node) {
        Some(part) => read_part_manifest(remote, &commit, part).await.map(Some),
        None => Ok(None),
    }
}

async fn previous_in_vault(remote: &RunRemote, vault: &Vault, id: StepId) -> Result<Option<PartManifest>> {
    let (remote, vault) = (remote.clone(), vault.clone());
    blocking(move || {
        let scan = vault.steps(remote.keys.run())?;
        let mut others: Vec<_> = scan.steps.into_iter().filter(|step| step.id() != id).collect();
        others.sort_by_key(|step| nearness(id, step.id()));
        for step in others.iter().rev() {
            if is_durable_on(step, &remote)? {
                return step.manifest();
            }
        }
        Ok(None)
    })
    .await
}

/// Returns how likely another step has the bytes of a step: a revision of it the most, otherwise the newest one.
fn nearness(id: StepId, other: StepId) -> (bool, StepId) {
    (other.is_revision_of(id), other)
}

/// Returns the node's own part. A node that replaces another may have a different name; the only part of a step counts
/// as its own.
fn part_of<'a>(commit: &'a Commit, node: &NodeName) -> Option<&'a CommittedPart> {
    let own = commit.parts.iter().find(|part| part.node == *node);
    own.or(match &commit.parts[..] {
        [only] => Some(only),
        _ => None,
    })
}

/// The files of an earlier step, indexed by content. Of two files with the same content, the first by path counts.
///
/// Paths are ignored, because some trainers include the step number in them. A file matches if it has the same size,
/// is divided at the same offsets, and has the same bytes.
#[derive(Debug, Clone, Default)]
struct Copies {
    /// The object keys of the files.
    keys: Vec<String>,
    files: HashMap<(u64, ContentDigest), (usize, Crc32c)>,
    parts: HashMap<Place, usize>,
}

/// A part of a file of a given size, and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    file_size_bytes: u64,
    index: u32,
    content: ContentDigest,
}

impl Copies {
    /// Returns what files of `wanted_sizes_bytes` can have in common with those of `earlier`, which is on the remote.
    ///
    /// # Errors
    /// When a path of the manifest yields no valid key.
    fn plan(wanted_sizes_bytes: &BTreeSet<u64>, earlier: &PartManifest) -> Result<Self> {
        let (mut copies, keys) = (Self::default(), earlier.file_keys());
        for file in &earlier.files {
            let size = file.size_bytes;
            let Some(digests) = file.digests().filter(|_| size > 0 && wanted_sizes_bytes.contains(&size))
            else {
                continue;
            };
            let source = copies.add_file(size, digests, keys.key(&file.path)?);
            // A file with one part is copied as a whole.
            if digests.parts.len() > 1 {
                for (index, content) in (0..).zip(&digests.parts) {
                    let place = Place { file_size_bytes: size, index, content: *content };
                    copies.parts.entry(place).or_insert(source);
                }
            }
        }
        Ok(copies)
    }

    /// Adds a file as a whole; returns its number.
    fn add_file(&mut self, size_bytes: u64, digests: &EntryDigests, key: String) -> usize {
        let source = self.keys.len();
        self.keys.push(key);
        self.files.entry((size_bytes, digests.content)).or_insert((source, digests.crc32c));
        source
    }

    /// Returns whether there is nothing to copy from.
    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the key of a file with exactly these bytes.
    fn of_file(&self, digest: &FileDigest) -> Option<&str> {
        let (source, crc32c) = self.files.get(&(digest.size_bytes, digest.content))?;
        (*crc32c == digest.crc32c).then(|| self.keys[*source].as_str())
    }

    /// Returns the key of a multipart file of that size that has these bytes as its part `index`.
    fn of_part(&self, file_size_bytes: u64, index: u32, digest: &PartDigest) -> Option<&str> {
        let place = Place { file_size_bytes, index, content: digest.content };
        self.parts.get(&place).map(|source| self.keys[*source].as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use stepvault_core::ids::{Attempt, NodeName, RunName, Step, StepId};
    use stepvault_core::manifest::{FileEntry, Shape};
    use stepvault_core::path::RelativePath;
    use stepvault_core::timestamp::Timestamp;

    const PART_BYTES: u64 = 8 << 20;

    /// Parts of a file by a letter each: equal letters, equal bytes.
    fn parts(letters: &str, last_bytes: u64) -> Vec<PartDigest> {
        let last = letters.len() - 1;
        let of = |(index, letter): (usize, char)| PartDigest {
            size_bytes: if index == last { last_bytes } else { PART_BYTES },
            ..PartDigest::of(letter.to_string().as_bytes())
        };
        letters.chars().enumerate().map(of).collect()
    }

    fn manifest(files: &[(&str, &str, u64)]) -> PartManifest {
        let file = |(path, letters, last_bytes): &(&str, &str, u64)| {
            let path = RelativePath::new(*path).unwrap();
            FileEntry::from_parts(path, 0o644, Timestamp::default(), &parts(letters, *last_bytes)).unwrap()
        };
        PartManifest {
            digest: stepvault_core::digest::DigestAlgorithm::Sha256,
            format: 1,
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::new(2).unwrap(), Step::new(100).unwrap()),
            node: NodeName::new("node-0").unwrap(),
            name: "step_100".to_owned(),
            shape: Shape::Directory,
            written_at: Timestamp::default(),
            metrics: BTreeMap::new(),
            shared_tree_sha256: None,
            files: files.iter().map(file).collect(),
            directories: Vec::new(),
            symlinks: Vec::new(),
            imported: None,
            members: Vec::new(),
            origin: stepvault_core::step_origin::StepOrigin::default(),
        }
    }

    fn plan(sizes: &[u64], files: &[(&str, &str, u64)]) -> Copies {
        Copies::plan(&sizes.iter().copied().collect(), &manifest(files)).unwrap()
    }

    fn file(letters: &str, last_bytes: u64) -> FileDigest {
        FileDigest::from_parts(&parts(letters, last_bytes))
    }

    #[test]
    fn a_file_is_found_by_its_bytes_whatever_its_path() {
        let copies = plan(&[20], &[("global_step100/x", "a", 20), ("y", "b", 20)]);
        assert_eq!(copies.of_file(&file("a", 20)), Some("run/000000000100.a2/step_100/global_step100/x"));
        assert_eq!(copies.of_file(&file("b", 20)), Some("run/000000000100.a2/step_100/y"));
        assert_eq!(copies.of_file(&file("c", 20)), None);
        assert_eq!(copies.of_file(&file("a", 21)), None, "another size");
        let other_crc = FileDigest { crc32c: Crc32c(7), ..file("a", 20) };
        assert_eq!(copies.of_file(&other_crc), None, "two digests that disagree prove nothing");
    }

    #[test]
    fn of_two_files_with_the_same_bytes_the_first_counts() {
        let copies = plan(&[20], &[("x", "a", 20), ("y", "a", 20)]);
        assert_eq!(copies.of_file(&file("a", 20)), Some("run/000000000100.a2/step_100/x"));
    }

    #[test]
    fn parts_are_found_at_the_same_place_of_a_file_of_the_same_size() {
        let size = 2 * PART_BYTES + 5;
        let copies = plan(&[size], &[("x", "abc", 5), ("y", "dec", 5)]);
        let (abc, dec) = (parts("abc", 5), parts("dec", 5));
        assert_eq!(copies.of_part(size, 0, &abc[0]), Some("run/000000000100.a2/step_100/x"));
        assert_eq!(copies.of_part(size, 1, &dec[1]), Some("run/000000000100.a2/step_100/y"));
        assert_eq!(copies.of_part(size, 2, &dec[2]), Some("run/000000000100.a2/step_100/x"));
        assert_eq!(copies.of_part(size, 1, &abc[0]), None, "another place");
        assert_eq!(copies.of_part(size + 1, 0, &abc[0]), None, "another size");
        assert_eq!(copies.of_file(&file("aec", 5)), None, "no one file has them all");
    }

    #[test]
    fn what_nobody_asks_for_is_not_kept_and_nothing_is_copied_for_no_bytes() {
        let copies = plan(&[0, 20], &[("empty", "a", 0), ("other", "b", 21)]);
        assert!(copies.is_empty());
        assert_eq!(copies.of_file(&file("a", 0)), None);
        assert!(!plan(&[21], &[("other", "b", 21)]).is_empty());
    }
}
