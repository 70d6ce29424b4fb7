//! Computes the maximum size of the local tier, which it reaches while a step is saved.

use schemars::JsonSchema;
use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

use super::amount::{Named, plus, times, total};
use stepvault_core::error::Result;
use stepvault_core::forecast::Taken;

/// How files get into the vault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum VaultCopy {
    /// There is no vault on this disk.
    None,
    /// Hard links: no bytes, and no inodes for files.
    HardLink,
    /// Reflinks: no bytes, and an inode for each file.
    Reflink,
    /// By a copy.
    Copy,
}

impl Named for VaultCopy {
    const WHAT: &'static str = "a way to seal a step";
}

/// Returns the size of this many steps.
///
/// # Errors
/// [`ErrorKind::Usage`](stepvault_core::ErrorKind::Usage) if a number is too large.
pub fn of_steps(step: Taken, steps: u64) -> Result<Taken> {
    Ok(Taken {
        bytes: times(step.bytes, steps)?,
        files: times(step.files, steps)?,
        directories: times(step.directories, steps)?,
    })
}

/// Returns the inodes of a step's copy in the vault.
fn vault_inodes(step: Taken, copy: VaultCopy, remotes: u64) -> Result<u64> {
    let files = match copy {
        VaultCopy::None => return Ok(0),
        VaultCopy::HardLink => 0,
        VaultCopy::Reflink | VaultCopy::Copy => step.files,
    };
    // A step that is a file is in a directory of the vault, too.
    total([files, step.directories.max(1), VAULT_INODES, remotes])
}

/// Inodes of each step in the vault other than its data: the step's directory, the directory of its remotes, the
/// manifest and the seal. Each remote adds one.
const VAULT_INODES: u64 = 4;

/// The local tier while a step is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Saving {
    /// Older steps in the trainer's own directory.
    pub trainer_steps: u64,
    /// Older steps in the vault, before retention removes any.
    pub vault_steps: u64,
    /// Older steps that are in both.
    pub steps_in_both: u64,
    /// Bytes of the older steps; steps in both count once if they are linked.
    pub old_bytes: u64,
    /// Bytes of the new step.
    pub new_bytes: u64,
    /// Bytes of its copy in the vault; 0 if it is linked.
    pub vault_copy_bytes: u64,
    /// Bytes in TMPDIR, for frameworks that write there first.
    pub temporary_bytes: u64,
    /// The sum of these bytes.
    pub peak_bytes: u64,
    /// Inodes at the peak, including the vault's records.
    pub peak_inodes: u64,
}

/// Returns the maximum. `vault_positions` are the positions of the older steps in the vault among `saves_before` older
/// ones, of which the trainer has the newest `trainer_steps`. The vault evicts old steps only after the new one is
/// sealed.
///
/// # Errors
/// [`ErrorKind::Usage`](stepvault_core::ErrorKind::Usage) if a number is too large.
pub fn saving(
    step: Taken,
    saves_before: u64,
    vault_positions: &[u64],
    trainer_steps: u64,
    copy: VaultCopy,
    remotes: u64,
    through_temporary: bool,
) -> Result<Saving> {
    let trainer_steps = trainer_steps.min(saves_before);
    let vault_positions = if copy == VaultCopy::None { &[] } else { vault_positions };
    let vault_steps = vault_positions.len() as u64;
    let first_of_trainer = saves_before.saturating_sub(trainer_steps);
    let is_in_both = |position: &&u64| **position >= first_of_trainer;
    let steps_in_both = vault_positions.iter().filter(is_in_both).count() as u64;
    let alone_in_vault = vault_steps.saturating_sub(steps_in_both);
    // The bytes of a link belong to the vault alone once the trainer's file is removed.
    let (copies_in_vault, new_copies) = match copy {
        VaultCopy::Copy => (vault_steps, 1),
        VaultCopy::None | VaultCopy::HardLink | VaultCopy::Reflink => (alone_in_vault, 0),
    };
    let old_bytes = times(step.bytes, plus(trainer_steps, copies_in_vault)?)?;
    let vault_copy_bytes = times(step.bytes, new_copies)?;
    let temporary_bytes = if through_temporary { step.bytes } else { 0 };
    let peak_bytes = total([old_bytes, step.bytes, vault_copy_bytes, temporary_bytes])?;
    let in_trainer = times(step.inodes(), plus(trainer_steps, 1)?)?;
    let in_vault =
        times(vault_inodes(step, copy, remotes)?, plus(vault_steps, u64::from(copy != VaultCopy::None))?)?;
    let outlived = match copy {
        VaultCopy::HardLink => times(step.files, alone_in_vault)?,
        VaultCopy::None | VaultCopy::Reflink | VaultCopy::Copy => 0,
    };
    let temporary_inodes = if through_temporary { step.files } else { 0 };
    Ok(Saving {
        trainer_steps,
        vault_steps,
        steps_in_both,
        old_bytes,
        new_bytes: step.bytes,
        vault_copy_bytes,
        temporary_bytes,
        peak_bytes,
        peak_inodes: total([in_trainer, in_vault, outlived, temporary_inodes])?,
    })
}

#[cfg(test)]
mod tests {
    use stepvault_core::error::ErrorKind;

    use super::*;

    const STEP: Taken = Taken { bytes: 100, files: 8, directories: 2 };

    fn peak(vault: &[u64], trainer: u64, copy: VaultCopy, through_temporary: bool) -> (u64, u64) {
        let saving = saving(STEP, 10, vault, trainer, copy, 1, through_temporary).unwrap();
        (saving.peak_bytes, saving.peak_inodes)
    }

    #[test]
    fn links_take_no_second_copy_and_copies_do() {
        // The trainer keeps the newest two, the vault those and two older ones.
        let vault = [3, 7, 8, 9];
        // A step in the vault: two directories, four inodes of its own, one remote.
        let sealed = 7;
        assert_eq!(peak(&vault, 2, VaultCopy::None, false), (300, 30));
        assert_eq!(peak(&vault, 2, VaultCopy::HardLink, false), (500, 30 + 5 * sealed + 2 * 8));
        assert_eq!(peak(&vault, 2, VaultCopy::Reflink, false), (500, 30 + 5 * (sealed + 8)));
        assert_eq!(peak(&vault, 2, VaultCopy::Copy, false), (800, 30 + 5 * (sealed + 8)));
        assert_eq!(peak(&vault, 2, VaultCopy::Copy, true), (900, 38 + 5 * (sealed + 8)));
    }

    #[test]
    fn a_first_save_has_no_older_step() {
        let saving = saving(STEP, 0, &[], 3, VaultCopy::HardLink, 0, false).unwrap();
        assert_eq!((saving.trainer_steps, saving.old_bytes, saving.peak_bytes), (0, 0, 100));
    }

    #[test]
    fn a_step_that_is_a_file_lies_in_a_directory_of_the_vault() {
        let step = Taken { bytes: 5, files: 1, directories: 0 };
        let saving = saving(step, 0, &[], 0, VaultCopy::HardLink, 0, false).unwrap();
        assert_eq!(saving.peak_inodes, 1 + 1 + 4);
    }

    #[test]
    fn too_much_is_wrong_use() {
        let step = Taken { bytes: u64::MAX, ..STEP };
        let error = saving(step, 1, &[0], 1, VaultCopy::Copy, 0, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
