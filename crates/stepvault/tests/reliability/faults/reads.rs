//! Reads that fail: each file call of the commands that read or delete, once, with the errors of a network
//! filesystem, a disk and missing permissions.
//!
//! Data that could not be read is not damaged: no older step is used silently, nothing is quarantined, no copy is
//! reported as damaged, and nothing is deleted that retention would not have deleted.

use nix::errno::Errno;
use stepvault_testkit::random::Random;
use stepvault_testkit::tree::files_below;

use crate::faults::check::Harm;
use crate::faults::operations::Operation;
use crate::faults::settings::{Settings, settings};
use crate::faults::sweep::{Reference, sweep_each};
use crate::faults::tally::Tally;
use crate::faults::tracer::{Fault, Plan, Scope, Traced, trace};

const ERRORS: [Errno; 5] = [Errno::ESTALE, Errno::EIO, Errno::ETIMEDOUT, Errno::ENOTCONN, Errno::EACCES];

const READERS: [&str; 8] = [
    "restore from file://",
    "restore from the vault",
    "verify on file://",
    "prune on file://",
    "gc on file://",
    "prune of the vault",
    "copy to file://",
    "follow from file://",
];

/// Checks that a command did not treat a failed read as damage.
fn judged(operation: &Operation, failed: &Traced) -> Result<(), Harm> {
    let ran = &failed.ran;
    if ran.stderr.contains("panicked at") || ran.signal.is_some() {
        return Err(Harm::Stuck(format!("it broke down: {ran:?}")));
    }
    let quarantined: Vec<_> = [&operation.world.vault, &operation.world.root.join("new-vault")]
        .into_iter()
        .flat_map(|vault| files_below(vault))
        .filter(|path| path.to_string_lossy().contains("/quarantine/"))
        .collect();
    if !quarantined.is_empty() {
        return Err(Harm::Lost(format!("in quarantine: {quarantined:?}: {ran:?}")));
    }
    let is_restore = operation.name.starts_with("restore");
    if is_restore && ran.code == 11 {
        return Err(Harm::Lost(format!("no step is valid: {ran:?}")));
    }
    if is_restore && ran.code == 0 && operation.world.read_restored(3) != operation.world.step(3) {
        return Err(Harm::Lost(format!("an older step was taken in silence: {ran:?}")));
    }
    if operation.name.starts_with("follow") && ran.stderr.contains("is skipped") {
        return Err(Harm::Lost(format!("a sound step is not followed any more: {ran:?}")));
    }
    if operation.name.starts_with("verify") && ran.stdout.contains("\"sound\": false") {
        return Err(Harm::Lost(format!("a sound copy is called damaged: {ran:?}")));
    }
    Ok(())
}

fn sweep(operation: &Operation, reference: &Reference, error: Errno, settings: Settings) -> Tally {
    let mut tally = Tally::new(
        "Failing reads",
        &format!("{}, a file call fails with {error:?}", operation.name),
        settings.seed,
    );
    let mut random = Random(settings.seed ^ operation.name.len() as u64 ^ error as u64);
    let mut plan = Plan {
        counts: Some(|_| true),
        scope: Scope::FilesBelow,
        first: usize::MAX,
        only_one: true,
        fault: Fault::Fail(error),
        syncs_nothing: false,
    };
    operation.world.bring_back(&reference.kept);
    let sites = trace(&operation.order, Some(plan)).sites.len();
    let mut ended_well = 0;
    for first in random.some_of(sites, settings.sites) {
        plan.first = first;
        operation.world.bring_back(&reference.kept);
        let failed = trace(&operation.order, Some(plan));
        tally.runs += 1;
        tally.faults += usize::from(failed.injected > 0);
        ended_well += usize::from(failed.ran.code == 0);
        let at = format!("seed {}, {error} at {}", settings.seed, failed.site(&plan));
        let outcome = judged(operation, &failed)
            .and_then(|()| operation.held(reference, &failed.ran, &mut tally))
            .and_then(|()| operation.goes_on(reference));
        tally.record(&at, outcome);
    }
    tally.note =
        format!("{} of {sites} sites; {ended_well} ended well all the same", settings.sites.min(sites));
    tally
}

#[test]
fn what_cannot_be_read_is_not_damaged() {
    let Some(settings) = settings("tracing") else {
        return;
    };
    sweep_each(&READERS, |operation| {
        let reference = operation.reference();
        let sweeps = ERRORS.map(|error| sweep(operation, &reference, error, settings));
        sweeps.into()
    });
}
