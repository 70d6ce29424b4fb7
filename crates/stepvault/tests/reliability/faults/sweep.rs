//! An operation with a fault in it: checks the state right after the fault, and that the operation ends where an
//! undisturbed one ends.

use std::collections::BTreeSet;

use stepvault_testkit::process::Outcome;
use stepvault_testkit::tree::fast_directory;

use crate::faults::check::{Harm, holds, look, restores};
use crate::faults::operations::{self, Operation};
use crate::faults::tally::Tally;
use crate::faults::tracer::{Traced, trace};
use crate::faults::world::{Kept, acknowledged_steps};

/// The results of an undisturbed command in its world.
pub(crate) struct Reference {
    pub(crate) kept: Kept,
    /// The steps on the remote and in the vault, before and after.
    before: [BTreeSet<u64>; 2],
    after: [BTreeSet<u64>; 2],
    /// The undisturbed run.
    pub(crate) watched: Traced,
}

/// Sweeps operations one after the other, each in a directory of its own, and reports every row; fails if anything
/// went wrong.
pub(crate) fn sweep_each(names: &[&'static str], sweep: impl Fn(&Operation) -> Vec<Tally>) {
    let place = fast_directory();
    let sweep_in = |name: &&'static str| {
        let root = place.path().join(name.replace(['/', ' ', ':'], "-"));
        let tallies = sweep(&operations::of(name, &root));
        tallies.iter().for_each(Tally::report);
        tallies
    };
    let tallies: Vec<Tally> = names.iter().flat_map(sweep_in).collect();
    tallies.iter().for_each(Tally::assert_no_harm);
}

const TIERS: [&str; 2] = ["store", "local"];

impl Operation {
    fn sound(&self) -> [BTreeSet<u64>; 2] {
        TIERS.map(
            |tier| {
                if self.has_tiers { look(&self.world, tier).unwrap().sound() } else { BTreeSet::new() }
            },
        )
    }

    /// Runs it undisturbed.
    pub(crate) fn reference(&self) -> Reference {
        let kept = self.world.keep();
        let before = self.sound();
        self.world.bring_back(&kept);
        let watched = trace(&self.order, None);
        assert_eq!(watched.ran.code, 0, "{}: {:?}", self.name, watched.ran);
        for _ in 1..self.times {
            assert_eq!(self.order.run().code, 0);
        }
        let after = self.sound();
        (self.at_the_end)(&self.world).unwrap();
        Reference { kept, before, after, watched }
    }

    /// Checks that everything that must still exist does.
    pub(crate) fn held(&self, reference: &Reference, ran: &Outcome, tally: &mut Tally) -> Result<(), Harm> {
        (self.always)(&self.world)?;
        for (index, tier) in TIERS.into_iter().enumerate().filter(|_| self.has_tiers) {
            let mut needed = reference.before[index].clone();
            if self.removes {
                needed = needed.intersection(&reference.after[index]).copied().collect();
            }
            let acknowledged = acknowledged_steps(ran, tier).into_iter();
            needed.extend(acknowledged.filter(|step| reference.after[index].contains(step)));
            tally.acknowledged += needed.len();
            holds(&self.world, tier, &needed)?;
        }
        Ok(())
    }

    /// Starts it again, and lets it end; returns whether it had to wait for a lease.
    pub(crate) fn goes_on(&self, reference: &Reference) -> Result<bool, Harm> {
        let mut waited = false;
        for _ in 0..self.times {
            let mut ran = self.order.run();
            // Alone, or besides another tier that it could process.
            let is_held =
                ran.code == 13 || ran.stderr.contains("another prune or gc of the run is under way");
            if is_held {
                waited = true;
                self.world.let_leases_run_out();
                ran = self.order.run();
            }
            if !self.ends_with.contains(&ran.code) {
                return Err(Harm::Stuck(format!("{ran:?}")));
            }
        }
        // An agent leaves to its next cycle what another one seems to be pruning.
        if self.removes && look(&self.world, "store").map_err(Harm::Stuck)?.sound() != reference.after[0] {
            waited = true;
            self.world.let_leases_run_out();
            self.order.run();
        }
        (self.always)(&self.world)?;
        (self.at_the_end)(&self.world)?;
        for (index, tier) in TIERS.into_iter().enumerate().filter(|_| self.has_tiers) {
            let found = look(&self.world, tier).map_err(Harm::Stuck)?;
            if !found.torn().is_empty() {
                return Err(Harm::Torn(format!("{tier}, at the end: {}", found.said)));
            }
            if found.sound() != reference.after[index] {
                return Err(Harm::Stuck(format!(
                    "{tier} ends with {:?}, and {:?} undisturbed",
                    found.sound(),
                    reference.after[index]
                )));
            }
            if let (Some(newest), "store") = (found.sound().last(), tier) {
                restores(&self.world, *newest, tier).map_err(Harm::Torn)?;
            }
        }
        Ok(waited)
    }
}
