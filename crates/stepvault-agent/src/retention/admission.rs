//! Room for the steps to come, while there is still time to make it.

use std::path::{Path, PathBuf};

use stepvault_core::Result;
use stepvault_core::forecast::{Forecast, Taken, next_step};
use stepvault_core::ids::RunName;
use stepvault_core::room::Room;
use stepvault_local::seal_record::SealRecord;
use stepvault_local::space;
use stepvault_local::vault::Vault;

/// What the next step of a run is expected to take at one place.
#[derive(Debug, Clone)]
pub(super) struct Need {
    pub(super) run: RunName,
    /// Where it is written.
    pub(super) place: PathBuf,
    pub(super) forecast: Forecast,
    /// What is written there before it.
    pub(super) after: Taken,
    /// Whether evicting from the vault makes room there.
    pub(super) shares_vault: bool,
    /// Whether it is the trainer that writes there, or the copy into the vault.
    pub(super) is_trainers: bool,
}

/// What the next step of a run takes: where the trainer writes it, and in the vault where it has to be copied there.
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
    // On one filesystem files are mostly linked; where the last steps were copied, the next one is.
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

/// The free bytes that the vault's disk has to have, so that what is needed there fits; 0 when nothing is.
pub(super) fn wanted_bytes(needs: &[Need], vault: Room) -> u64 {
    let here = || needs.iter().filter(|need| need.shares_vault);
    let bytes = here().fold(0_u64, |sum, need| sum.saturating_add(need.forecast.taken.bytes));
    let inodes = here().fold(0_u64, |sum, need| {
        sum.saturating_add(need.forecast.taken.inodes())
    });
    if vault.lacks_inodes(inodes) {
        // Steps are as large as they have files: what gives back a step's bytes gives back its inodes.
        return bytes.max(vault.free_bytes.saturating_add(bytes));
    }
    bytes
}

/// What to tell of a need that is not met by now; `None` for one that is.
pub(super) fn shortfall(need: &Need) -> Result<Option<String>> {
    let room = space::free(&need.place)?;
    let both = Forecast {
        taken: need.forecast.taken.and(&need.after),
        ..need.forecast
    };
    let Some(numbers) = both.shortfall(room) else {
        return Ok(None);
    };
    let (run, place) = (&need.run, need.place.display());
    let consequence = match (need.is_trainers, need.after.bytes) {
        (true, _) => "the trainer's next save is expected to fail there",
        (false, 0) => "it is expected not to be taken over",
        (false, _) => "with its copy in the vault, without which it is not taken over",
    };
    let remedy = if need.shares_vault {
        "nothing more can be evicted: free some space, have the trainer keep fewer steps, or lower keep.local"
    } else {
        "the vault is on another disk, so that eviction makes no room here: free some space, or have the trainer keep \
         fewer steps"
    };
    Ok(Some(format!(
        "{run}: {numbers} at {place}: {consequence} ({remedy})"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(bytes: u64, inodes: u64, shares_vault: bool) -> Need {
        Need {
            run: RunName::new("demo").unwrap(),
            place: PathBuf::from("/"),
            forecast: next_step(&[Taken {
                bytes,
                files: inodes,
                directories: 0,
            }])
            .unwrap(),
            after: Taken::default(),
            shares_vault,
            is_trainers: true,
        }
    }

    #[test]
    fn what_is_needed_on_the_vaults_disk_adds_up() {
        let room = Room {
            free_bytes: 1000,
            total_bytes: 10_000,
            free_inodes: Some(10),
            total_inodes: Some(100),
        };
        assert_eq!(wanted_bytes(&[], room), 0);
        let needs = [need(300, 3, true), need(400, 4, true), need(5000, 1, false)];
        assert_eq!(wanted_bytes(&needs, room), 700);
        assert_eq!(
            wanted_bytes(&[need(300, 11, true)], room),
            1300,
            "room for its inodes"
        );
    }

    #[test]
    fn a_need_that_is_not_met_says_what_will_happen() {
        assert_eq!(shortfall(&need(1, 1, true)).unwrap(), None);
        let text = shortfall(&need(u64::MAX, 1, true)).unwrap().unwrap();
        assert!(
            text.starts_with("demo: the next step takes about 16.0 EiB by the last step, and "),
            "{text}"
        );
        assert!(text.contains(" are free at /: the trainer's next save is expected to fail there (nothing more can be evicted: "), "{text}");
        let copy = Need {
            after: Taken {
                bytes: u64::MAX / 2,
                ..Taken::default()
            },
            is_trainers: false,
            ..need(1 + u64::MAX / 2, 1, true)
        };
        let text = shortfall(&copy).unwrap().unwrap();
        assert!(text.contains("takes about 16.0 EiB "), "{text}");
        assert!(
            text.contains(": with its copy in the vault, without which it is not taken over ("),
            "{text}"
        );
    }
}
