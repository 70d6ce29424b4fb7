//! Checks that the remotes hold a step, right before its local copy is removed.

use std::collections::BTreeMap;

use stepvault_core::codec::decode;
use stepvault_core::commit::Commit;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::RemoteName;
use stepvault_core::retention::Unproven;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::SealedStep;

use super::local::LocalPrune;
use crate::outage::is_outage;
use crate::tier::removed::removal_record;
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::durable_commit;
use crate::verify::{CommittedParts, Depth, StepHealth};

/// Maximum number of a step's faults that are reported.
const MAX_FAULTS: usize = 3;

/// What one remote holds of a step.
enum Held {
    /// The commit and all that this node sealed of the step.
    Yes,
    /// Nothing: retention removed the step from it, on purpose.
    Retired,
    /// The step was never durable on it.
    Never,
    /// Less than it acknowledged: this is missing or damaged.
    Lost(String),
}

/// Remotes that did not answer: they are not queried again for other steps of the same round.
pub(super) type Unanswered = BTreeMap<RemoteName, String>;

/// Proves that the copies on which the step's eviction relies exist: on every remote that has acknowledged the step,
/// reads the commit and checks that the files sealed by this node are listed with their sizes and have the store's
/// checksums, if it keeps any. This takes one LIST and a HEAD for each file; no data is read back.
///
/// # Invariants
/// S4 and S6: the last local copy is removed only if its data is on the remotes, not only a commit.
pub(super) async fn prove_elsewhere(
    prune: &LocalPrune,
    step: &SealedStep,
    unanswered: &mut Unanswered,
) -> std::result::Result<(), Unproven> {
    let mut is_held = false;
    for remote in &prune.remotes {
        let may_be_away = !remote.settings.required;
        let cannot_be_asked = |why: &str| format!("{} is unreachable: {why}", remote.name());
        if let Some(why) = unanswered.get(remote.name()) {
            if may_be_away {
                continue;
            }
            return Err(Unproven::Unanswered(cannot_be_asked(why)));
        }
        match held_on(prune, step, remote).await {
            Ok(Held::Yes | Held::Retired) => is_held = true,
            Ok(Held::Never) => {}
            Ok(Held::Lost(why)) => return Err(Unproven::Lost(why)),
            Err(error) => {
                if error.kind() == ErrorKind::Unreachable {
                    unanswered.insert(remote.name().clone(), error.to_string());
                    if may_be_away {
                        continue;
                    }
                }
                return Err(Unproven::Unanswered(cannot_be_asked(&error.to_string())));
            }
        }
    }
    if is_held {
        return Ok(());
    }
    Err(Unproven::Unanswered("no remote confirms that it holds the step".to_owned()))
}

/// Returns what a remote holds of a step.
///
/// # Errors
/// When the remote is unreachable.
async fn held_on(prune: &LocalPrune, step: &SealedStep, remote: &RunRemote) -> Result<Held> {
    let name = remote.name();
    let known = match durable_commit(step, remote) {
        Ok(Some(known)) => known,
        Ok(None) => return Ok(Held::Never),
        Err(error) => return Ok(Held::Lost(error.to_string())),
    };
    let key = remote.keys.commit(step.id());
    let Some(bytes) = remote.read_small(&key).await? else {
        // Retention removes a step on purpose.
        return Ok(match removal_record(remote, step.id()).await? {
            Some(_) => Held::Retired,
            None => Held::Lost(format!("its commit is missing on {name}")),
        });
    };
    if Sha256Digest::of(&bytes) != known {
        return Ok(Held::Lost(format!("its commit on {name} is not the one that was acknowledged")));
    }
    let health = match part_health(prune, step, remote, &bytes).await {
        Ok(health) => health,
        Err(error) if is_outage(&error) => return Err(error),
        Err(error) => {
            return Ok(Held::Lost(format!("its data on {name} cannot be checked: {error}")));
        }
    };
    if health.is_sound() {
        return Ok(Held::Yes);
    }
    let mut faults = health.faults;
    let more = faults.len().saturating_sub(MAX_FAULTS);
    faults.truncate(MAX_FAULTS);
    let more = match more {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Ok(Held::Lost(format!("its data on {name} is not what was uploaded: {}{more}", faults.join("; "))))
}

async fn part_health(
    prune: &LocalPrune,
    step: &SealedStep,
    remote: &RunRemote,
    commit: &[u8],
) -> Result<StepHealth> {
    let key = remote.keys.commit(step.id());
    let commit: Commit = decode(commit, &remote.describe(&key))?;
    // Each node answers for its own part, and only that part is evicted here.
    let node = &step.record().node;
    let part = commit.parts.iter().find(|part| part.node == *node).ok_or_else(|| {
        Error::new(ErrorKind::Damaged, "the commit lacks this node's part").on(remote.describe(&key))
    })?;
    let part = CommittedParts::all(remote, &commit, &prune.observer).only(part);
    part.check(Depth::Checksums).await
}
