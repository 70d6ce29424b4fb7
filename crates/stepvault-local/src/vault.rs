//! The vault: the local tier's own directory, and where everything stands in it.
//!
//! ```text
//! vault.json                          marker: identity and format version
//! lock                                held by whoever seals, evicts or cleans
//! runs/<run>/steps/<label>/           a sealed step: seal.json, data/, manifest.json, remotes/<remote>.json
//! runs/<run>/{journal,pins,notes,quarantine}/
//! staging/  trash/                    half-made and half-deleted; emptied at a start
//! restore/                            restores under way, each with a lock of its own
//! saves/                              steps that trainers write, until they are committed
//! moved-aside/                        what restores moved out of a trainer's way; never deleted by us
//! ```

use std::path::{Path, PathBuf};

use stepvault_core::codec::{decode, encode};
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::records::VaultMarker;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable::{self, CreateOutcome};
use crate::errors;
use crate::lock::VaultLock;
use crate::probe::PROBE_PREFIX;
use crate::staging_place::{MOVED_ASIDE, RESTORE, SAVES};
use crate::temporary::TEMPORARY_PREFIX;

const MARKER: &str = "vault.json";
const MAX_MARKER_BYTES: u64 = 4096;

/// An open vault. Cheap to clone; holds no lock (see [`Vault::lock`]).
#[derive(Debug, Clone)]
pub struct Vault {
    root: PathBuf,
    identity: String,
}

impl Vault {
    /// Opens the vault in `directory`, creating it first when there is none.
    ///
    /// # Errors
    /// `Refused` when the directory holds something else: a vault empties its own `staging/` and `trash/`, which must
    /// never be somebody's files.
    pub fn open_or_create(directory: &Path) -> Result<Self> {
        if let Some(vault) = Self::open(directory)? {
            return Ok(vault);
        }
        durable::create_directories(directory)?;
        if let Some(foreign) = foreign_entry(directory)? {
            return Err(Error::new(ErrorKind::Refused, "cannot make a vault here")
                .on(directory.display())
                .because(format!("the directory is no vault and holds {foreign:?}"))
                .hint("name an empty directory, or one that does not exist yet"));
        }
        let marker = VaultMarker::new(uuid::Uuid::new_v4().simple().to_string());
        match durable::create_new(&directory.join(MARKER), &encode(&marker)?)? {
            // Whoever was faster has named it.
            CreateOutcome::Written | CreateOutcome::Exists => {}
        }
        Self::open(directory)?.ok_or_else(|| {
            Error::new(ErrorKind::Failed, "cannot make a vault here")
                .on(directory.display())
                .because("its marker vanished as soon as it was written")
        })
    }

    /// Opens the vault in `directory`; `None` when there is none.
    pub fn open(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(MARKER);
        let Some(bytes) = durable::read_bounded(&path, MAX_MARKER_BYTES)? else {
            return Ok(None);
        };
        let marker: VaultMarker = decode(&bytes, &path.display().to_string())?;
        // Absolute, so that a later change of the working directory does not matter.
        let root = std::path::absolute(directory)
            .map_err(|error| errors::io("cannot open the vault", directory, error))?;
        Ok(Some(Self {
            root,
            identity: marker.vault,
        }))
    }

    /// The vault's directory, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The vault's random identity, 32 hexadecimal digits.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Takes the vault's lock, which whoever seals, evicts or cleans must hold. The kernel releases it when the
    /// process ends, however it ends.
    ///
    /// # Errors
    /// `Held` when another process has it, naming that process.
    pub fn lock(&self) -> Result<VaultLock> {
        VaultLock::take(&self.root)
    }

    /// The runs that have anything in this vault, sorted.
    pub fn runs(&self) -> Result<Vec<RunName>> {
        let mut runs = Vec::new();
        for path in entries(&self.root.join("runs"))? {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            match RunName::new(name.replace("%2F", "/")) {
                Ok(run) if run.as_component() == name => runs.push(run),
                _ => tracing::warn!(path = %path.display(), "not a run of this vault; left alone"),
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

    /// A new name in `staging/` or `trash/`, whose directory exists then.
    pub(crate) fn fresh_place(&self, area: &str) -> Result<PathBuf> {
        let directory = self.root.join(area);
        durable::create_directories(&directory)?;
        Ok(directory.join(uuid::Uuid::new_v4().simple().to_string()))
    }
}

/// The paths in a directory, sorted; none when it does not exist.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let fault = |error| errors::io("cannot list", directory, error);
    let list = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list.map_err(fault)?,
    };
    let mut paths = list
        .map(|entry| Ok(entry.map_err(fault)?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort_unstable();
    Ok(paths)
}

/// True for a file that an interrupted durable write left behind.
pub(crate) fn is_temporary(path: &Path) -> bool {
    begins_with(path, TEMPORARY_PREFIX)
}

fn begins_with(path: &Path, prefix: &str) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
}

/// Something in the directory that keeps it from becoming a vault.
fn foreign_entry(directory: &Path) -> Result<Option<String>> {
    // A fresh filesystem's root has the one; an interrupted creation leaves the other, or, seen by a second process
    // at the right moment, the marker itself.
    // Steps are staged in the vault's default place also where there is no vault.
    let known = ["lost+found", MARKER, RESTORE, SAVES, MOVED_ASIDE];
    let foreign = entries(directory)?.into_iter().find(|path| {
        let is_ours = is_temporary(path) || begins_with(path, PROBE_PREFIX);
        !is_ours && !known.iter().any(|name| path.ends_with(name))
    });
    Ok(foreign.map(|path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

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
            error
                .to_string()
                .ends_with("the directory is no vault and holds \"staging\""),
            "{error}"
        );
    }

    #[test]
    fn many_at_once_agree_on_one_identity() {
        let place = tempfile::tempdir().unwrap();
        let identities = std::thread::scope(|scope| {
            let open = || Vault::open_or_create(place.path()).unwrap().identity().to_owned();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<Vec<_>>()
        });
        assert!(
            identities.windows(2).all(|pair| pair[0] == pair[1]),
            "{identities:?}"
        );
    }

    #[test]
    fn a_damaged_marker_is_an_error_and_is_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        Vault::open_or_create(place.path()).unwrap();
        fs::write(place.path().join(MARKER), "").unwrap();
        assert_eq!(
            Vault::open_or_create(place.path()).unwrap_err().kind(),
            ErrorKind::Damaged
        );
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
}
