//! Gives a vault that was copied an identity of its own.

use std::os::unix::fs::MetadataExt as _;

use stepvault_core::codec::{decode, encode};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::disk_facts::{MountFacts, Nature};
use stepvault_core::vault_place::{Machine, VaultPlace};
use stepvault_core::{ErrorKind, Result};

use crate::durable;
use crate::errors::IoAt as _;
use crate::lock;
use crate::probe::mounts::Mounts;
use crate::process;
use crate::remove;
use crate::vault::Vault;

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
        let Some(mut vault) = Self::open_below(self.root(), self.parents())? else {
            return Ok(self);
        };
        let now = vault.present_place()?;
        if let Some(reason) = copied(vault.recorded_place()?.as_ref(), &now) {
            for run in vault.runs()? {
                remove::tree(&vault.run_directory(&run).join("journal"))?;
            }
            vault.replace_identity()?;
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
#[allow(clippy::disallowed_methods, reason = "a test copies what it wrote")]
mod tests {
    use stepvault_core::ids::RunName;

    use super::*;

    #[test]
    fn a_copied_vault_gets_an_identity_of_its_own_once_and_none_of_the_uploads() {
        let place = tempfile::tempdir().unwrap();
        let original = Vault::open_or_create(&place.path().join("a")).unwrap();
        let run = RunName::new("r").unwrap();
        let journal = original.run_directory(&run).join("journal/0001");
        std::fs::create_dir_all(&journal).unwrap();
        std::fs::write(journal.join("bucket.jsonl"), "x").unwrap();
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
        std::fs::rename(copy.root(), &moved).unwrap();
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
            std::fs::write(&path, content).unwrap();
            let again = Vault::open_or_create(place.path()).unwrap();
            assert_eq!(again.identity(), vault.identity());
            assert_eq!(again.recorded_place().unwrap(), Some(again.present_place().unwrap()));
        }
    }
}
