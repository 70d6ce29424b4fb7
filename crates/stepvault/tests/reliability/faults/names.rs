//! Names that a killed run created and did not sync: a run that continues must sync them first.
//!
//! A new name is on disk only once its directory has been synced. ext4 and xfs write names in order, so a power cut
//! there rarely loses one; POSIX does not promise this, and other filesystems do not do it. So the test kills the
//! binary just before it syncs a directory, and watches the next run that succeeds: it must sync that directory as
//! well.

use std::path::Path;

use stepvault_testkit::random::Random;
use stepvault_testkit::tree::fast_directory;

use crate::faults::calls::{gives_name, syncs, takes_name};
use crate::faults::check::Harm;
use crate::faults::operations;
use crate::faults::settings::{of_environment, settings};
use crate::faults::tally::{Tally, say};
use crate::faults::tracer::{Fault, Plan, Scope, Site, trace};

/// Returns whether no run continues over these files: uploads that a killed run started, which gc deletes later, and
/// a node's local notes about a remote, which it fetches from the remote when they are lost.
fn is_given_up(directory: &str) -> bool {
    directory.contains("/.stepvault-uploads/")
        || directory.contains("/vault/") && directory.ends_with("/remotes")
}

fn counted(call: &str) -> bool {
    syncs(call) || gives_name(call) || takes_name(call)
}

/// Returns whether the call at `index` syncs a directory in which its thread has just created a name that no other
/// thread has synced since. A thread that only confirms an existing name has made another call before, or was too late
/// with a directory that another thread had created.
fn syncs_a_new_name(sites: &[Site], index: usize) -> bool {
    let Some(site) = sites.get(index) else {
        return false;
    };
    let own = |other: &Site| other.thread == site.thread;
    let Some(before) = sites[..index].iter().rposition(own) else {
        return false;
    };
    syncs(site.call)
        && Path::new(&site.about).is_dir()
        && !is_given_up(&site.about)
        && gives_name(sites[before].call)
        && !sites[..before].iter().any(|other| {
            other.call.starts_with("mkdir")
                && (other.call, &other.about) == (sites[before].call, &sites[before].about)
        })
        && !sites[before..index].iter().any(|other| other.about == site.about)
}

fn sweep_all(name: &'static str) {
    let Some(settings) = settings("tracing") else {
        return;
    };
    let place = fast_directory();
    let operation = operations::of(name, &place.path().join("world"));
    let reference = operation.reference();
    let mut tally = Tally::new("Names that a killed run did not sync", name, settings.seed);
    let mut random = Random(settings.seed ^ name.len() as u64);
    let mut plan = Plan {
        counts: Some(counted),
        scope: Scope::Changing,
        first: usize::MAX,
        only_one: true,
        fault: Fault::Kill,
        syncs_nothing: false,
    };
    operation.world.bring_back(&reference.kept);
    let sites = trace(&operation.order, Some(plan)).sites;
    let names: Vec<usize> = (0..sites.len()).filter(|index| syncs_a_new_name(&sites, *index)).collect();
    assert!(!names.is_empty(), "{name} gives no names");
    for chosen in random.some_of(names.len(), settings.sites.saturating_mul(3)) {
        plan.first = names[chosen - 1] + 1;
        operation.world.bring_back(&reference.kept);
        let killed = trace(&operation.order, Some(plan));
        // Threads do not interleave in the same way each time.
        if !syncs_a_new_name(&killed.sites, plan.first - 1) {
            continue;
        }
        let about = &killed.sites[plan.first - 1].about;
        tally.runs += 1;
        tally.faults += killed.injected;
        let next = trace(&operation.order, None);
        if next.ran.code != 0 {
            tally.harmed(&killed.site(&plan), Harm::Stuck(format!("{:?}", next.ran)));
            continue;
        }
        let mut synced = next.sites.iter().filter(|other| syncs(other.call));
        if Path::new(about).is_dir() && !synced.any(|other| other.about == *about) {
            let story = format!("{about} is never synced by the run that goes on");
            tally.harmed(&killed.site(&plan), Harm::Lost(story));
        }
    }
    tally.note = format!("{} of {} calls sync a new name", names.len(), sites.len());
    tally.report();
    tally.assert_no_harm();
}

#[test]
fn a_push_syncs_the_names_that_the_one_before_left() {
    sweep_all("push to file://");
}

/// Runs only in the full tier: the agent seals, uploads and prunes concurrently, so two runs are seldom alike, and a
/// sample of few kills proves little.
#[test]
fn an_agent_syncs_the_names_that_the_one_before_left() {
    if of_environment().full {
        sweep_all("agent --once to file://");
    } else {
        say("NOT RUN: the names that a killed agent left, which are in the full tier");
    }
}

#[test]
fn a_restore_syncs_the_names_that_the_one_before_left() {
    sweep_all("restore from file://");
}

#[test]
fn a_stage_syncs_the_names_that_the_one_before_left() {
    sweep_all("stage");
}

#[test]
fn a_commit_syncs_the_names_that_the_one_before_left() {
    sweep_all("commit");
}

/// With `restore.sync = "none"` nothing of the step is synced; with the default every file of it, and its name, is.
#[test]
fn a_restore_syncs_its_files_unless_told_otherwise() {
    if settings("tracing").is_none() {
        return;
    }
    let synced = |word: &str| {
        let place = fast_directory();
        let mut operation = operations::of("restore from file://", &place.path().join("world"));
        operation.order.env("STEPVAULT_RESTORE_SYNC", word);
        let traced = trace(&operation.order, None);
        assert_eq!(traced.ran.code, 0, "{:?}", traced.ran);
        (operation.at_the_end)(&operation.world).unwrap();
        let synced: Vec<_> = traced.sites.iter().filter(|site| syncs(site.call)).collect();
        let is_synced = |file: &Path| synced.iter().any(|site| Path::new(&site.about).ends_with(file));
        operation.world.step(3).into_keys().map(|file| is_synced(&file)).collect::<Vec<_>>()
    };
    assert_eq!((synced("full"), synced("none")), (vec![true; 3], vec![false; 3]));
}
