//! Calls that fail: each sync once with an input/output error, and every call that takes space from some point on, as
//! on a disk that is full or has become read-only.
//!
//! A failed command reports an error that names the file and what to do. Steps that existed are unharmed, no reader
//! sees a torn step, and the same command continues once the disk works again.

use nix::errno::Errno;
use stepvault_testkit::random::Random;

use crate::faults::calls::{syncs, takes_space};
use crate::faults::check::Harm;
use crate::faults::operations::Operation;
use crate::faults::settings::{Settings, settings};
use crate::faults::sweep::sweep_each;
use crate::faults::tally::Tally;
use crate::faults::tracer::{Fault, Plan, Scope, Traced, trace};

/// The calls that fail, and the expected error.
#[derive(Clone, Copy)]
struct Failure {
    what: &'static str,
    counts: fn(&str) -> bool,
    only_one: bool,
    error: Errno,
    says: &'static str,
    hint: &'static str,
}

const SYNC: Failure = Failure {
    what: "a sync fails with EIO",
    counts: syncs,
    only_one: true,
    error: Errno::EIO,
    says: "the disk reports an input/output error",
    hint: "check the kernel log",
};
const FULL: Failure = Failure {
    what: "ENOSPC from some call on",
    counts: takes_space,
    only_one: false,
    error: Errno::ENOSPC,
    says: "no space is left on its filesystem",
    hint: "free some space",
};
const READ_ONLY: Failure = Failure {
    what: "EROFS from some call on",
    counts: takes_space,
    only_one: false,
    error: Errno::EROFS,
    says: "its filesystem is read-only",
    hint: "mount it writable",
};

/// Checks that the command failed and reported the error, or succeeded without the failed call.
fn said(failure: Failure, traced: &Traced) -> Result<bool, Harm> {
    let ran = &traced.ran;
    if ran.stderr.contains("panicked at") || ran.signal.is_some() {
        return Err(Harm::Stuck(format!("it broke down: {ran:?}")));
    }
    if ran.code == 0 {
        return Ok(false);
    }
    let text = format!("{}\n{}", ran.stdout, ran.stderr);
    let path = text.lines().any(|line| line.contains(failure.says) && line.contains('/'));
    if path && text.contains(failure.hint) {
        return Ok(true);
    }
    Err(Harm::Stuck(format!(
        "{:?} with remedy {:?} is not said of a path: {ran:?}",
        failure.says, failure.hint
    )))
}

/// Checks that a failed sync is not retried on the same file, where its bytes were written only once.
fn not_tried_again(traced: &Traced, plan: &Plan) -> Result<(), Harm> {
    let failed = &traced.sites[plan.first - 1];
    let is_file = failed.about.contains("/.stepvault-tmp-") || failed.about.contains("/staging/");
    let again = traced.sites[plan.first..]
        .iter()
        .any(|site| site.about == failed.about && !std::path::Path::new(&failed.about).is_dir());
    if is_file && again {
        return Err(Harm::Torn(format!("the sync of {} was tried again", failed.about)));
    }
    Ok(())
}

fn sweep(operation: &Operation, failure: Failure, settings: Settings) -> Tally {
    let mut tally =
        Tally::new("Failing calls", &format!("{}, {}", operation.name, failure.what), settings.seed);
    let mut random = Random(settings.seed ^ operation.name.len() as u64);
    let reference = operation.reference();
    let mut plan = Plan {
        counts: Some(failure.counts),
        scope: Scope::Changing,
        first: usize::MAX,
        only_one: failure.only_one,
        fault: Fault::Fail(failure.error),
        syncs_nothing: false,
    };
    operation.world.bring_back(&reference.kept);
    let sites = trace(&operation.order, Some(plan)).sites.len();
    let mut done_all_the_same = Vec::new();
    for first in random.some_of(sites, settings.sites) {
        plan.first = first;
        operation.world.bring_back(&reference.kept);
        let failed = trace(&operation.order, Some(plan));
        tally.runs += 1;
        tally.faults += usize::from(failed.injected > 0);
        let at = format!("seed {}, {} at {}", settings.seed, failure.error, failed.site(&plan));
        let outcome = said(failure, &failed).and_then(|said| {
            if !said && failed.injected > 0 {
                done_all_the_same.push(failed.site(&plan));
            }
            if failure.only_one && failed.injected > 0 {
                not_tried_again(&failed, &plan)?;
            }
            operation.held(&reference, &failed.ran, &mut tally)?;
            operation.goes_on(&reference)
        });
        tally.record(&at, outcome);
    }
    tally.note = format!(
        "{} of {sites} sites; {} ended well all the same",
        settings.sites.min(sites),
        done_all_the_same.len()
    );
    if std::env::var_os("FAULTS_VERBOSE").is_some() {
        crate::faults::tally::say(&format!("{}: {done_all_the_same:#?}", operation.name));
    }
    tally
}

fn sweep_all(failure: Failure, names: &[&'static str]) {
    let Some(settings) = settings("tracing") else {
        return;
    };
    sweep_each(names, |operation| vec![sweep(operation, failure, settings)]);
}

const WRITERS: [&str; 10] = [
    "push to file://",
    "push to S3",
    "agent --once to file://",
    "restore from file://",
    "prune on file://",
    "commit",
    "copy to file://",
    "tier to file://",
    "follow from file://",
    "import on file://",
];

#[test]
fn a_sync_that_fails_is_an_error_and_acknowledges_nothing() {
    sweep_all(SYNC, &WRITERS);
}

#[test]
fn a_disk_that_fills_up_harms_nothing_and_is_gone_on_with() {
    sweep_all(FULL, &WRITERS);
}

#[test]
fn a_disk_that_becomes_read_only_harms_nothing_and_is_gone_on_with() {
    sweep_all(READ_ONLY, &["push to file://", "agent --once to file://", "restore from file://"]);
}
