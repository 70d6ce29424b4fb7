//! Where a vault is, and the rule that detects a copy: made with a machine's image, a snapshot of a volume
//! or `cp -a`. Two vaults of one identity would take each other's leases and uploads for their own.
//!
//! Blind spots: a machine that was cloned with its machine-id, and a vault that went back in time on its machine, look
//! like a machine that was started again; for them, [`VaultPlace::holder`] is another one after each boot. A virtual
//! machine that continues from a snapshot of its memory is not noticed.

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::digest::Sha256Digest;

/// Where a vault was when a process opened it to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VaultPlace {
    /// Format version.
    pub format: u32,
    /// The identity that the vault had there, 32 hexadecimal digits.
    pub vault: String,
    /// The inode of the vault's directory.
    pub inode: u64,
    /// The machine; `None` on a filesystem that several machines share: there the directory is the same on each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

/// The machine and the device of a vault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The digest of the machine's `machine-id`, whose text is confidential; `None` if it has no such file, as many
    /// containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Sha256Digest>,
    /// The kernel's identity of the boot.
    pub boot: String,
    /// The number of the device, which may be another one after a boot.
    pub device: u64,
}

impl Record for VaultPlace {
    const WHAT: &'static str = "place of a vault";
}

impl VaultPlace {
    /// Returns the place of a vault with this identity.
    pub fn new(vault: &str, inode: u64, machine: Option<Machine>) -> Self {
        Self { format: FORMAT, vault: vault.to_owned(), inode, machine }
    }

    /// Returns what shows that a vault which was here before and is at `now` was copied; `None` if it is the same one.
    pub fn copied_to(&self, now: &Self) -> Option<&'static str> {
        if let (Some(before), Some(now)) = (&self.machine, &now.machine) {
            if before.id.zip(now.id).is_some_and(|(before, now)| before != now) {
                return Some("it is on another machine");
            }
            if before.boot == now.boot && before.device != now.device {
                return Some("it is on another device");
            }
        }
        (self.inode != now.inode).then_some("its directory is another one")
    }

    /// Returns the identity under which the vault holds leases, 32 hexadecimal digits: a copy that cannot be told from a
    /// machine that was started again has another one.
    pub fn holder(&self) -> String {
        let Some(machine) = &self.machine else {
            return self.vault.clone();
        };
        let text = format!("{} {} {}", self.vault, machine.boot, machine.device);
        let mut digits = Sha256Digest::of(text.as_bytes()).to_string();
        digits.truncate(self.vault.len());
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(inode: u64, id: Option<&str>, boot: &str, device: u64) -> VaultPlace {
        let machine =
            Machine { id: id.map(|id| Sha256Digest::of(id.as_bytes())), boot: boot.to_owned(), device };
        VaultPlace::new(&"0a".repeat(16), inode, Some(machine))
    }

    #[test]
    fn a_copy_is_told_from_a_vault_that_stayed() {
        let before = place(7, Some("m"), "b", 3);
        for (now, copied) in [
            (before.clone(), false),
            // The machine was started again: devices get other numbers.
            (place(7, Some("m"), "c", 4), false),
            // No machine-id, as in containers.
            (place(7, None, "b", 3), false),
            (place(7, None, "c", 3), false),
            (place(8, Some("m"), "b", 3), true),
            (place(8, Some("m"), "c", 3), true),
            (place(7, Some("n"), "b", 3), true),
            (place(7, Some("n"), "c", 3), true),
            (place(7, Some("m"), "b", 4), true),
            // A filesystem that several machines share.
            (VaultPlace::new(&before.vault, 7, None), false),
            (VaultPlace::new(&before.vault, 8, None), true),
        ] {
            assert_eq!(before.copied_to(&now).is_some(), copied, "{now:?}");
            assert_eq!(now.copied_to(&before).is_some(), copied, "{now:?}");
        }
    }

    #[test]
    fn a_clone_that_looks_like_a_reboot_holds_its_leases_under_another_identity() {
        let (before, clone) = (place(7, Some("m"), "b", 3), place(7, Some("m"), "c", 3));
        assert_ne!(before.holder(), clone.holder());
        assert_eq!(before.holder(), before.clone().holder());
        assert_eq!(before.holder().len(), 32);
        let shared = VaultPlace::new(&before.vault, 7, None);
        assert_eq!(shared.holder(), shared.vault);
    }
}
