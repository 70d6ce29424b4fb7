//! Ensures space for coming steps while there is still time to free it.

use std::path::{Path, PathBuf};

use stepvault_core::Result;
use stepvault_core::forecast::{Forecast, Taken, next_step};
use stepvault_core::ids::RunName;
use stepvault_core::room::Room;
use stepvault_local::seal_record::SealRecord;
use stepvault_local::space;
use stepvault_local::vault::Vault;

/// The expected space that the next step of a run needs on one filesystem.
#[derive(Debug, Clone)]
pub(super) struct Need {
    pub(super) run: RunName,
    /// The directory it is written to.
    pub(super) place: PathBuf,
    pub(super) forecast: Forecast,
    /// The data written there before it.
    pub(super) after: Taken,
    /// Whether evicting from the vault frees space there.
    pub(super) shares_vault: bool,
    /// Whether the trainer writes it; otherwise it is the copy in the vault.
    pub(super) is_trainers: bool,
}

/// Returns the space that the next step of a run needs: where the trainer writes it, and in the vault if it has to be
/// copied.
pub(super) fn needs(vault: &Vault, run: &RunName, watched: &Path) -> Result<Vec<Need>> {
    let steps = vault.steps(run)?.steps;
    let by = |of: fn(&SealRecord) -> Taken| {
        let taken: Vec<Taken> = steps.iter().map(|step| of(step.record())).collect();
        next_step(&taken)
    };
    let Some(forecast) = by(SealRecord::taken) else {
        return Ok(Vec::new());
    };
    let shares_vault = space::same_filesystem(watched, vault.root())?;
    // On one filesystem, files are mostly linked; if the last steps were copied, the next one will be.
    let (of_copy, after) = if shares_vault {
        (by(SealRecord::copied), forecast.taken)
    } else {
        (Some(forecast), Taken::default())
    };
    let trainers = Need {
        run: run.clone(),
        place: watched.to_path_buf(),
        forecast,
        after: Taken::default(),
        shares_vault,
        is_trainers: true,
    };
    let of_copy = of_copy.filter(|forecast| forecast.taken.bytes > 0);
    let copy = of_copy.map(|forecast| Need {
        place: vault.root().to_owned(),
        forecast,
        after,
        shares_vault: true,
        is_trainers: false,
        ..trainers.clone()
    });
    Ok(std::iter::once(trainers).chain(copy).collect())
}

/// Returns the free bytes that the vault's disk needs so that these needs fit; 0 when there are none.
pub(super) fn wanted_bytes(needs: &[Need], vault: Room) -> u64 {
    let here = || needs.iter().filter(|need| need.shares_vault);
    let bytes = here().fold(0_u64, |sum, need| sum.saturating_add(need.forecast.taken.bytes));
    let inodes = here().fold(0_u64, |sum, need| sum.saturating_add(need.forecast.taken.inodes()));
    if vault.lacks_inodes(inodes) {
        // Steps have bytes and inodes in proportion: evicting for a step's bytes also frees its inodes.
        return bytes.max(vault.free_bytes.saturating_add(bytes));
    }
    bytes
}

/// Returns the warning for a need that does not fit now; `None` if it fits.
pub(super) fn shortfall(need: &Need) -> Result<Option<String>> {
    let room = space::free(&need.place)?;
    let both = Forecast { taken: need.forecast.taken.and(&need.after), ..need.forecast };
    let Some(numbers) = both.shortfall(room) else {
        return Ok(None);
    };
    let (run, place) = (&need.run, need.place.display());
    let consequence = match (need.is_trainers, need.after.bytes) {
        (true, _) => "the trainer's next checkpoint is expected to fail",
        (false, 0) => "it is expected not to be sealed",
        (false, _) => "this includes its copy in the vault, without which it cannot be sealed",
    };
    let remedy = if need.shares_vault {
        "nothing more can be evicted: free some space, have the trainer keep fewer steps, or lower keep.local"
    } else {
        "the vault is on another disk, so eviction frees no space here: free some space, or have the trainer keep \
         fewer steps"
    };
    Ok(Some(format!("{run}: {numbers} at {place}: {consequence} ({remedy})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(bytes: u64, inodes: u64, shares_vault: bool) -> Need {
        Need {
            run: RunName::new("demo").unwrap(),
            place: PathBuf::from("/"),
            forecast: next_step(&[Taken { bytes, files: inodes, directories: 0 }]).unwrap(),
            after: Taken::default(),
            shares_vault,
            is_trainers: true,
        }
    }

    #[test]
    fn what_is_needed_on_the_vaults_disk_adds_up() {
        let room =
            Room { free_bytes: 1000, total_bytes: 10_000, free_inodes: Some(10), total_inodes: Some(100) };
        assert_eq!(wanted_bytes(&[], room), 0);
        let needs = [need(300, 3, true), need(400, 4, true), need(5000, 1, false)];
        assert_eq!(wanted_bytes(&needs, room), 700);
        assert_eq!(wanted_bytes(&[need(300, 11, true)], room), 1300, "room for its inodes");
    }

    #[test]
    fn a_need_that_is_not_met_says_what_will_happen() {
        assert_eq!(shortfall(&need(1, 1, true)).unwrap(), None);
        let text = shortfall(&need(u64::MAX, 1, true)).unwrap().unwrap();
        assert!(
            text.starts_with(
                "demo: the next step needs about 16.0 EiB (estimated from the last step), but only "
            ),
            "{text}"
        );
        assert!(
            text.contains(
                " are free at /: the trainer's next checkpoint is expected to fail (nothing more can be \
                 evicted: "
            ),
            "{text}"
        );
        let copy = Need {
            after: Taken { bytes: u64::MAX / 2, ..Taken::default() },
            is_trainers: false,
            ..need(1 + u64::MAX / 2, 1, true)
        };
        let text = shortfall(&copy).unwrap().unwrap();
        assert!(text.contains("needs about 16.0 EiB "), "{text}");
        assert!(
            text.contains(": this includes its copy in the vault, without which it cannot be sealed ("),
            "{text}"
        );
    }
}
