//! Every command that changes something, killed at each of its changing calls, and started again without help.
//!
//! After each kill, before anything else runs, a reader on another node sees only whole steps, including all that
//! were acknowledged; the vault holds all that was reported as sealed. The same command then continues by itself and
//! ends where an undisturbed one ends. Leases of killed processes expire by the store's clock; the test makes them
//! look older.

use stepvault_testkit::random::Random;

use crate::faults::operations::Operation;
use crate::faults::settings::{Settings, settings};
use crate::faults::sweep::sweep_each;
use crate::faults::tally::Tally;
use crate::faults::tracer::{Fault, Plan, Scope, trace};

fn kill(first: usize, any_call: bool) -> Plan {
    Plan {
        counts: if any_call { None } else { Some(|_| true) },
        scope: Scope::Changing,
        first,
        only_one: true,
        fault: Fault::Kill,
        syncs_nothing: false,
    }
}

/// Kills one operation at the calls of its sweep, then at random calls of any kind.
fn sweep(operation: &Operation, settings: Settings) -> Tally {
    let mut tally = Tally::new("Kill sweep", operation.name, settings.seed);
    let mut random = Random(settings.seed ^ operation.name.len() as u64);
    let reference = operation.reference();
    let calls = reference.watched.sites.len();
    let mut plans: Vec<Plan> =
        random.some_of(calls, settings.sites).into_iter().map(|at| kill(at, false)).collect();
    let of_any_kind = {
        operation.world.bring_back(&reference.kept);
        trace(&operation.order, Some(kill(usize::MAX, true))).sites.len()
    };
    plans.extend((0..settings.random_kills).map(|_| kill(1 + random.index(of_any_kind), true)));
    let (mut waited, mut twice) = (0, 0);
    for plan in plans {
        operation.world.bring_back(&reference.kept);
        let killed = trace(&operation.order, Some(plan));
        tally.runs += 1;
        tally.faults += killed.injected;
        let at = format!("seed {}, kill at {}", settings.seed, killed.site(&plan));
        let mut outcome = operation.held(&reference, &killed.ran, &mut tally);
        // The continuing run may be killed as well.
        if outcome.is_ok() && plan.counts.is_none() && random.index(3) == 0 {
            let again = trace(&operation.order, Some(kill(1 + random.index(of_any_kind), true)));
            twice += again.injected;
            tally.faults += again.injected;
            outcome = operation.held(&reference, &again.ran, &mut tally);
        }
        let outcome = outcome.and_then(|()| operation.goes_on(&reference));
        waited += usize::from(tally.record(&at, outcome).unwrap_or_default());
    }
    tally.note = format!(
        "{} of {calls} changing calls, {} random calls of {of_any_kind}, {twice} killed again while they went on; a count for \
         each thread would reach {}; {waited} waited for a lease to run out",
        settings.sites.min(calls),
        settings.random_kills,
        reference.watched.most_of_a_thread(),
    );
    tally
}

fn sweep_all(names: &[&'static str]) {
    let Some(settings) = settings("tracing") else {
        return;
    };
    sweep_each(names, |operation| vec![sweep(operation, settings)]);
}

#[test]
fn a_push_killed_anywhere_is_finished_by_the_next() {
    sweep_all(&["push to file://", "push to S3"]);
}

#[test]
fn a_copy_killed_anywhere_is_finished_by_the_next() {
    sweep_all(&["copy to file://", "copy to S3", "tier to file://"]);
}

#[test]
fn a_follower_killed_anywhere_leaves_whole_steps_and_the_next_goes_on() {
    sweep_all(&["follow from file://", "follow from S3"]);
}

#[test]
fn an_import_killed_anywhere_is_finished_by_the_next() {
    sweep_all(&["import on file://"]);
}

#[test]
fn an_agent_killed_anywhere_is_followed_by_one_that_goes_on() {
    sweep_all(&["agent --once to file://"]);
}

#[test]
fn a_restore_killed_anywhere_leaves_all_or_nothing_and_is_finished_by_the_next() {
    sweep_all(&["restore from file://", "restore from S3", "restore --replace", "restore from the vault"]);
}

#[test]
fn a_removal_killed_anywhere_removes_what_it_should_and_nothing_else() {
    sweep_all(&["prune on file://", "prune on S3", "gc on file://"]);
}

#[test]
fn a_save_killed_anywhere_is_there_whole_or_not_at_all() {
    sweep_all(&["stage", "commit"]);
}
