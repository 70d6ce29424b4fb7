//! The vault: the directory of the local tier, and its layout.
//!
//! ```text
//! vault.json                          marker: identity and format version
//! place.json                          where it is, so that a copy notices that it is one
//! lock                                held by the process that seals, evicts or cleans
//! runs/<run>/steps/<label>/           a sealed step: seal.json, data/, manifest.json, remotes/<remote>.json
//! runs/<run>/{journal,pins,notes,quarantine}/
//! staging/  trash/                    half-made and half-deleted; emptied at a start
//! restore/                            restores under way, each with a lock of its own
//! rank-restore.{lock,json}            the restore that the ranks of a node share, and its result
//! invocation.json                     how the last agent was started
//! saves/                              steps that trainers write, until they are committed
//! moved-aside/                        what restores moved out of a trainer's way; never deleted by us
//! ```

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stepvault_core::codec::{decode, encode};
use stepvault_core::disk_facts::{MountFacts, Nature};
use stepvault_core::records::VaultMarker;
use stepvault_core::vault_place::{Machine, VaultPlace};
use stepvault_core::{Error, ErrorKind, Result, RunName, Sha256Digest, StepId};

use crate::errors::IoAt as _;
use crate::lock::VaultLock;
use crate::ownership::{self, Parents};
use crate::probe::PROBE_PREFIX;
use crate::probe::mounts::Mounts;
use crate::staging_place::{MOVED_ASIDE, RESTORE, SAVES};
use crate::temporary::TEMPORARY_PREFIX;
use crate::{durable, lock, process, remove};

const MARKER: &str = "vault.json";
const MAX_MARKER_BYTES: u64 = 4096;
const INVOCATION: &str = "invocation.json";
/// It holds a configuration file, escaped.
const MAX_INVOCATION_BYTES: u64 = 16 << 20;

/// An open vault. Cheap to clone; holds no lock (see [`Vault::lock`]).
#[derive(Debug, Clone)]
pub struct Vault {
    root: PathBuf,
    identity: String,
    /// What was allowed when it was opened, and holds whenever it is looked at again.
    parents: Parents,
}

impl Vault {
    /// Opens the vault in `directory`, and creates it when it does not exist. A vault that finds itself copied gets a new
    /// identity.
    ///
    /// # Errors
    /// `Refused` when the directory holds something else: a vault empties its own `staging/` and `trash/`, which must
    /// never be another program's files. `Refused` also when another user owns it or could replace it.
    pub fn open_or_create(directory: &Path) -> Result<Self> {
        Self::open_or_create_below(directory, Parents::Private)
    }

    /// Like [`open_or_create`](Self::open_or_create), with a choice whether the directories above may be open to
    /// others.
    ///
    /// # Errors
    /// As for [`open_or_create`](Self::open_or_create).
    pub fn open_or_create_below(directory: &Path, parents: Parents) -> Result<Self> {
        if let Some(vault) = Self::open_below(directory, parents)? {
            return vault.settled();
        }
        ownership::check_place(directory, parents)?;
        durable::create_directories(directory)?;
        if let Some(foreign) = foreign_entry(directory)? {
            // Another process may have created the vault meanwhile.
            if let Some(vault) = Self::open_below(directory, parents)? {
                return vault.settled();
            }
            return Err(Error::at(ErrorKind::Refused, "cannot create a vault here", directory)
                .because(format!("the directory is not a vault and contains {foreign:?}"))
                .hint("name an empty directory, or one that does not exist yet"));
        }
        // Another process may create the marker first.
        durable::create_new(&directory.join(MARKER), &encode(&fresh_marker())?)?;
        let vault = Self::open_below(directory, parents)?.ok_or_else(|| {
            Error::at(ErrorKind::Failed, "cannot create a vault here", directory)
                .because("its marker vanished as soon as it was written")
        })?;
        vault.settled()
    }

    /// Opens the vault in `directory`. Returns `None` when it does not exist.
    ///
    /// # Errors
    /// `Refused` when another user owns it or could replace it.
    pub fn open(directory: &Path) -> Result<Option<Self>> {
        Self::open_below(directory, Parents::Private)
    }

    /// Like [`open`](Self::open), with a choice whether the directories above may be open to others.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_below(directory: &Path, parents: Parents) -> Result<Option<Self>> {
        let path = directory.join(MARKER);
        // A directory without a marker is not a vault, regardless of its owner: nothing in it is used.
        if path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let Some(opened) = ownership::open_directory(directory, parents)? else {
            return Ok(None);
        };
        check_skeleton(&opened, directory)?;
        let Some(bytes) = durable::read_bounded(&path, MAX_MARKER_BYTES)? else {
            return Ok(None);
        };
        let marker: VaultMarker = decode(&bytes, &path.display().to_string())?;
        // Absolute, so that a later change of the working directory has no effect.
        let root = std::path::absolute(directory).at("cannot open the vault", directory)?;
        Ok(Some(Self { root, identity: marker.vault, parents }))
    }

    /// Checks the vault in `directory`, or the path where one is to be created. Creates nothing.
    ///
    /// # Errors
    /// `Refused` when another user owns it or could replace it.
    pub fn check_place(directory: &Path, parents: Parents) -> Result<()> {
        match Self::open_below(directory, parents)? {
            Some(_) => Ok(()),
            None => ownership::check_place(directory, parents),
        }
    }

    /// Returns the vault's directory, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the vault's random identity, 32 hexadecimal digits.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Takes the vault's lock, which is required to seal, evict or clean. The kernel releases it when the process ends
    /// for any reason.
    ///
    /// # Errors
    /// `Held` when another process holds it, naming that process.
    pub fn lock(&self) -> Result<VaultLock> {
        VaultLock::take(&self.root)
    }

    /// Returns whether the directory still holds this vault. The vault may have been deleted, unmounted or replaced
    /// while this process had it open.
    ///
    /// # Errors
    /// When this cannot be determined.
    pub fn is_there(&self) -> Result<bool> {
        Ok(Self::open_below(&self.root, self.parents)?.is_some_and(|there| there.identity == self.identity))
    }

    /// Records how the agent that holds the vault was started, instead of the one before. Blocks.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn replace_invocation(&self, bytes: &[u8]) -> Result<()> {
        durable::replace(&self.root.join(INVOCATION), bytes)
    }

    /// Returns what [`replace_invocation`](Self::replace_invocation) recorded last; `None` if no agent has. Blocks.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_invocation(&self) -> Result<Option<Vec<u8>>> {
        durable::read_bounded(&self.root.join(INVOCATION), MAX_INVOCATION_BYTES)
    }

    /// Creates a directory of the vault and its missing ancestors, but never the vault itself: a process that writes to
    /// a deleted vault must not leave a partial one behind, and must not write to another one in its place.
    pub(crate) fn create_directories(&self, path: &Path) -> Result<()> {
        if !self.is_there()? {
            return Err(Error::at(ErrorKind::Failed, "cannot write to the vault", &self.root)
                .because("it was deleted or replaced")
                .hint("run the command again; a running agent creates a new vault by itself"));
        }
        durable::create_directories_below(&self.root, path)
    }

    /// Returns the runs that have anything in this vault, sorted.
    pub fn runs(&self) -> Result<Vec<RunName>> {
        let mut runs = Vec::new();
        for path in entries(&self.root.join("runs"))? {
            let name = file_name(&path);
            match RunName::new(name.replace("%2F", "/")) {
                Ok(run) if run.as_component() == name => runs.push(run),
                _ => {
                    tracing::warn!(path = %path.display(), "ignoring a directory that is not a run of this vault");
                }
            }
        }
        runs.sort_unstable();
        Ok(runs)
    }

    pub(crate) fn run_directory(&self, run: &RunName) -> PathBuf {
        self.root.join("runs").join(run.as_component())
    }

    pub(crate) fn steps_directory(&self, run: &RunName) -> PathBuf {
        self.run_directory(run).join("steps")
    }

    pub(crate) fn step_directory(&self, run: &RunName, id: StepId) -> PathBuf {
        self.steps_directory(run).join(id.label())
    }

    pub(crate) fn journal_directory(&self, run: &RunName, id: StepId) -> PathBuf {
        self.run_directory(run).join("journal").join(id.label())
    }

    /// Returns a new name in `staging/` or `trash/`, and creates that directory.
    pub(crate) fn fresh_place(&self, area: &str) -> Result<PathBuf> {
        let directory = self.root.join(area);
        self.create_directories(&directory)?;
        Ok(directory.join(uuid::Uuid::new_v4().simple().to_string()))
    }
}

/// An empty vault among the system's temporary files, removed when this is dropped: for a plan on a node without a vault.
#[derive(Debug)]
pub struct ScratchVault(Vault);

impl ScratchVault {
    /// Creates it.
    ///
    /// # Errors
    /// As for [`Vault::open_or_create`].
    pub fn create() -> Result<Self> {
        let name = format!("stepvault-{}", uuid::Uuid::new_v4().simple());
        Vault::open_or_create_below(&std::env::temp_dir().join(name), Parents::Shared).map(Self)
    }

    /// Returns the vault.
    pub fn vault(&self) -> &Vault {
        &self.0
    }
}

impl Drop for ScratchVault {
    fn drop(&mut self) {
        if let Err(error) = remove::tree(&self.0.root) {
            tracing::warn!(%error, "cannot remove a temporary vault");
        }
    }
}

fn fresh_marker() -> VaultMarker {
    VaultMarker::new(uuid::Uuid::new_v4().simple().to_string())
}

/// Returns the names in a directory, sorted; empty when it does not exist.
pub fn entry_names(directory: &Path) -> Result<Vec<std::ffi::OsString>> {
    let paths = entries(directory)?.into_iter();
    Ok(paths.filter_map(|path| path.file_name().map(ToOwned::to_owned)).collect())
}

/// Refuses a vault in which another user could create a step, a note or a staged file: users with write access to these
/// directories could have created anything in them.
fn check_skeleton(vault: &OwnedFd, shown: &Path) -> Result<()> {
    for name in [MARKER, "runs", "staging", "trash", RESTORE, SAVES, MOVED_ASIDE] {
        ownership::check_inside(vault, OsStr::new(name), &shown.join(name))?;
    }
    for run in entries(&shown.join("runs"))? {
        let inside = run.strip_prefix(shown).unwrap_or(&run);
        for below in ["", "steps", "journal", "pins", "notes"] {
            let name = if below.is_empty() { inside.to_path_buf() } else { inside.join(below) };
            ownership::check_inside(vault, name.as_os_str(), &shown.join(&name))?;
        }
    }
    Ok(())
}

/// Returns the paths in a directory, sorted; empty when it does not exist.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let list = durable::with_retries(|| match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        list => list?.map(|entry| Ok(entry?.path())).collect(),
    });
    let mut paths: Vec<PathBuf> = list.at("cannot list", directory)?;
    paths.sort_unstable();
    Ok(paths)
}

/// Returns the last component of a path; empty when it is not UTF-8.
pub(crate) fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Returns whether a file is a leftover of an interrupted durable write.
pub(crate) fn is_temporary(path: &Path) -> bool {
    begins_with(path, TEMPORARY_PREFIX)
}

fn begins_with(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
}

/// Returns an entry that keeps the directory from becoming a vault.
fn foreign_entry(directory: &Path) -> Result<Option<String>> {
    // A fresh filesystem's root has `lost+found`. An interrupted creation leaves temporary files or, seen by a second
    // process at the right moment, the marker itself. Steps are staged in the default vault directory even where there
    // is no vault.
    let known = ["lost+found", MARKER, RESTORE, SAVES, MOVED_ASIDE];
    let foreign = entries(directory)?.into_iter().find(|path| {
        let is_ours = is_temporary(path) || begins_with(path, PROBE_PREFIX);
        !is_ours && !known.iter().any(|name| path.ends_with(name))
    });
    Ok(foreign.map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned()))
}

const PLACE: &str = "place.json";
const LOCK: &str = "place.lock";
const MAX_PLACE_BYTES: u64 = 4096;
const MACHINE_ID: &str = "/etc/machine-id";
const MAX_MACHINE_ID_BYTES: u64 = 256;

impl Vault {
    /// Returns the identity under which this vault holds leases, 32 hexadecimal digits. Blocks.
    ///
    /// # Errors
    /// When the vault's directory cannot be read.
    pub fn holder(&self) -> Result<String> {
        Ok(self.present_place()?.holder())
    }

    /// Returns the vault, with a new identity if it finds itself copied. Its uploads then begin again: those in its
    /// journals are the original's.
    pub(crate) fn settled(self) -> Result<Self> {
        let now = self.present_place()?;
        let before = self.recorded_place()?;
        if before.as_ref() == Some(&now) {
            return Ok(self);
        }
        if copied(before.as_ref(), &now).is_none() {
            // A full disk must not keep an agent from starting.
            if let Err(error) = self.record_place(&now) {
                tracing::debug!(%error, "cannot record where the vault is");
            }
            return Ok(self);
        }
        let _lock = lock::wait_for(&self.root().join(LOCK))?;
        // Another process may have done it meanwhile.
        let Some(mut vault) = Self::open_below(self.root(), self.parents)? else {
            return Ok(self);
        };
        let now = vault.present_place()?;
        if let Some(reason) = copied(vault.recorded_place()?.as_ref(), &now) {
            for run in vault.runs()? {
                remove::tree(&vault.run_directory(&run).join("journal"))?;
            }
            let marker = fresh_marker();
            durable::replace(&vault.root.join(MARKER), &encode(&marker)?)?;
            vault.identity = marker.vault;
            vault.record_place(&vault.present_place()?)?;
            tracing::warn!(
                path = %vault.root().display(),
                "this vault is a copy of another one ({reason}): it has a new identity now, and begins its unfinished \
                 uploads again"
            );
        }
        Ok(vault)
    }

    fn record_place(&self, place: &VaultPlace) -> Result<()> {
        durable::replace(&self.root().join(PLACE), &encode(place)?)
    }

    /// Returns where the vault was when it was opened before; `None` if that is not known.
    fn recorded_place(&self) -> Result<Option<VaultPlace>> {
        let path = self.root().join(PLACE);
        let Some(bytes) = durable::read_bounded(&path, MAX_PLACE_BYTES)? else {
            return Ok(None);
        };
        match decode(&bytes, &path.display().to_string()) {
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(None),
            place => place.map(Some),
        }
    }

    fn present_place(&self) -> Result<VaultPlace> {
        let root = self.root();
        let facts = root.metadata().at("cannot open the vault", root)?;
        let nature = Mounts::read().of(root).map(MountFacts::nature);
        let is_shared = matches!(nature, Some(Nature::Network | Nature::Fuse));
        let machine = process::boot().filter(|_| !is_shared).map(|boot| Machine {
            id: machine_id(),
            boot,
            device: facts.dev(),
        });
        Ok(VaultPlace::new(self.identity(), facts.ino(), machine))
    }
}

/// Returns what shows that the vault was copied. A record of another identity is of a process that was killed when the
/// identity had just changed.
fn copied(before: Option<&VaultPlace>, now: &VaultPlace) -> Option<&'static str> {
    let before = before.filter(|before| before.vault == now.vault)?;
    before.copied_to(now)
}

fn machine_id() -> Option<Sha256Digest> {
    let bytes = durable::read_bounded(MACHINE_ID.as_ref(), MAX_MACHINE_ID_BYTES).ok()??;
    let id = bytes.trim_ascii();
    (!id.is_empty()).then(|| Sha256Digest::of(id))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use std::fs;

    use stepvault_core::ids::RunName;

    use super::*;

    #[test]
    fn keeps_its_identity() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("a/vault");
        assert!(Vault::open(&directory).unwrap().is_none());
        let made = Vault::open_or_create(&directory).unwrap();
        let opened = Vault::open(&directory).unwrap().unwrap();
        assert_eq!(made.identity(), opened.identity());
        assert_eq!(made.identity().len(), 32);
        assert!(made.runs().unwrap().is_empty());
    }

    #[test]
    fn never_moves_into_somebody_elses_directory() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("lost+found")).unwrap();
        fs::write(place.path().join(format!("{TEMPORARY_PREFIX}0")), "").unwrap();
        Vault::open_or_create(place.path()).unwrap();

        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("staging")).unwrap();
        let error = Vault::open_or_create(place.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(
            error.to_string().ends_with("the directory is not a vault and contains \"staging\""),
            "{error}"
        );
    }

    #[test]
    fn nothing_is_written_into_a_vault_that_was_deleted_or_replaced() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("vault");
        let vault = Vault::open_or_create(&directory).unwrap();
        let run = RunName::new("a").unwrap();
        vault.write_note(&run, "note", b"before").unwrap();
        assert!(vault.is_there().unwrap());
        fs::remove_dir_all(&directory).unwrap();
        assert!(!vault.is_there().unwrap());
        vault.write_note(&run, "note", b"after").unwrap_err();
        assert!(!directory.exists());
        let other = Vault::open_or_create(&directory).unwrap();
        assert!(!vault.is_there().unwrap() && other.is_there().unwrap());
        let error = vault.write_note(&run, "note", b"after").unwrap_err();
        assert!(error.to_string().contains("it was deleted or replaced"), "{error}");
        assert_eq!(other.read_note(&run, "note").unwrap(), None);
    }

    #[test]
    fn many_at_once_agree_on_one_identity() {
        let place = tempfile::tempdir().unwrap();
        let identities = std::thread::scope(|scope| {
            let open = || Vault::open_or_create(place.path()).unwrap().identity().to_owned();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(identities.windows(2).all(|pair| pair[0] == pair[1]), "{identities:?}");
    }

    #[test]
    fn a_damaged_marker_is_an_error_and_is_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        Vault::open_or_create(place.path()).unwrap();
        fs::write(place.path().join(MARKER), "").unwrap();
        assert_eq!(Vault::open_or_create(place.path()).unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn runs_with_segments_come_back() {
        let place = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(place.path()).unwrap();
        for name in ["b/weights", "a", "b/checkpoints"] {
            fs::create_dir_all(vault.run_directory(&RunName::new(name).unwrap())).unwrap();
        }
        fs::create_dir(place.path().join("runs/not a run")).unwrap();
        let names: Vec<String> = vault.runs().unwrap().into_iter().map(String::from).collect();
        assert_eq!(names, ["a", "b/checkpoints", "b/weights"]);
    }

    #[test]
    fn what_others_could_have_put_into_a_vault_closes_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("vault");
        let vault = Vault::open_or_create(&root).unwrap();
        let steps = vault.steps_directory(&RunName::new("a").unwrap());
        fs::create_dir_all(&steps).unwrap();
        for path in [&root, &root.join("runs"), &steps] {
            Vault::open(&root).unwrap().unwrap();
            let own = path.metadata().unwrap().permissions();
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
            for refused in [Vault::open(&root).unwrap_err(), Vault::open_or_create(&root).unwrap_err()] {
                assert_eq!(refused.kind(), ErrorKind::Refused);
                assert!(refused.to_string().contains(&path.display().to_string()), "{refused}");
            }
            fs::set_permissions(path, own).unwrap();
        }
        // No vault is created where others could replace it.
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Vault::open_or_create(&place.path().join("new")).is_err());
        assert!(!place.path().join("new").exists());
        let shared = Vault::open_or_create_below(&place.path().join("new"), Parents::Shared).unwrap();
        assert!(Vault::open(shared.root()).is_err());
        assert!(shared.is_there().unwrap());
        Vault::open_below(shared.root(), Parents::Shared).unwrap().unwrap();
    }

    #[test]
    fn a_copied_vault_gets_an_identity_of_its_own_once_and_none_of_the_uploads() {
        let place = tempfile::tempdir().unwrap();
        let original = Vault::open_or_create(&place.path().join("a")).unwrap();
        let run = RunName::new("r").unwrap();
        let journal = original.run_directory(&run).join("journal/0001");
        fs::create_dir_all(&journal).unwrap();
        fs::write(journal.join("bucket.jsonl"), "x").unwrap();
        original.write_note(&run, "note", b"kept").unwrap();
        let copied = place.path().join("b");
        let status =
            std::process::Command::new("cp").arg("-a").args([original.root(), &copied]).status().unwrap();
        assert!(status.success());

        let copy = Vault::open_or_create(&copied).unwrap();
        assert_ne!(copy.identity(), original.identity());
        assert_ne!(copy.holder().unwrap(), original.holder().unwrap());
        assert!(!copy.run_directory(&run).join("journal").exists());
        assert_eq!(copy.read_note(&run, "note").unwrap().unwrap(), b"kept");
        assert!(copy.is_there().unwrap() && original.is_there().unwrap() && journal.exists());
        for same in [&copy, &original] {
            let again = Vault::open_or_create(same.root()).unwrap();
            assert_eq!(again.identity(), same.identity());
        }
        // It was only renamed.
        let moved = place.path().join("c");
        fs::rename(copy.root(), &moved).unwrap();
        let moved = Vault::open_or_create(&moved).unwrap();
        assert_eq!(moved.identity(), copy.identity());
    }

    #[test]
    fn a_place_that_is_unreadable_or_of_another_identity_is_written_anew() {
        let place = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(place.path()).unwrap();
        let path = place.path().join(PLACE);
        let mut of_another = vault.present_place().unwrap();
        (of_another.vault, of_another.inode) = ("0a".repeat(16), 1);
        for content in [b"{".to_vec(), encode(&of_another).unwrap()] {
            fs::write(&path, content).unwrap();
            let again = Vault::open_or_create(place.path()).unwrap();
            assert_eq!(again.identity(), vault.identity());
            assert_eq!(again.recorded_place().unwrap(), Some(again.present_place().unwrap()));
        }
    }
}
