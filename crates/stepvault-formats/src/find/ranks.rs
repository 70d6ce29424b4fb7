//! Checks that the files written once per rank exist for every rank.

use std::collections::{BTreeMap, BTreeSet};

use super::Extent;
use super::unit::Unit;
use crate::profile::RankSet;

/// The ranks that wrote a step, and the missing ones.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// The number of ranks, if known.
    pub(super) count: Option<u32>,
    /// The missing ranks and files, as text.
    pub(super) faults: Vec<String>,
}

/// Counts the ranks of a step and looks for gaps. In a part of a step, ranks of other nodes are not counted as
/// missing.
pub(super) fn ranks_of(unit: &Unit<'_>, extent: Extent) -> Ranks {
    let mut ranks = Ranks::default();
    for set in &unit.series.complete.ranks {
        set_ranks(set, unit, extent, &mut ranks);
    }
    if unit.series.path.has_group("rank") {
        let present: BTreeSet<_> = unit.members.iter().filter_map(|member| member.parts.rank).collect();
        if let Some(missing) = first_gap(&present).filter(|_| !extent.is_part()) {
            ranks.faults.push(format!("the path of rank {missing} does not exist yet"));
        }
        ranks.count = ranks.count.or((!present.is_empty()).then(|| length(&present)));
    }
    ranks
}

/// The contents of one set: the ranks of each group, and the count that the names give.
#[derive(Default)]
struct Seen {
    groups: BTreeMap<String, BTreeSet<u32>>,
    worlds: BTreeSet<u32>,
}

fn set_ranks(set: &RankSet, unit: &Unit<'_>, extent: Extent, ranks: &mut Ranks) {
    let mut sets: BTreeMap<String, Seen> = BTreeMap::new();
    for file in &unit.files {
        let Some(parts) = set.files.parts(&file.inside) else {
            continue;
        };
        let Some(rank) = parts.rank else { continue };
        if file.size_bytes == 0 {
            ranks.faults.push(format!("{} is empty (0 bytes)", file.inside));
        }
        let seen = sets.entry(parts.without_rank).or_default();
        seen.groups.entry(parts.group.unwrap_or_default()).or_default().insert(rank);
        seen.worlds.extend(parts.world);
    }
    for (name, seen) in sets {
        if seen.worlds.len() > 1 {
            ranks.faults.push(format!("the names of {} give different numbers of ranks", set.what));
        }
        let highest = seen.groups.values().filter_map(BTreeSet::last).max();
        let wanted = highest
            .map_or(0, |rank| rank.saturating_add(1))
            .max(seen.worlds.last().copied().unwrap_or(0))
            .max(set.at_least);
        for present in seen.groups.values().filter(|_| !extent.is_part()) {
            let missing = first_gap(present).or_else(|| (length(present) < wanted).then(|| length(present)));
            if let Some(missing) = missing {
                ranks.faults.push(format!(
                    "the {} ({name}) of rank {missing} are missing: {} of {wanted} exist",
                    set.what,
                    present.len()
                ));
            }
        }
        if set.counts_world {
            let all = seen.groups.values().map(length).fold(0, u32::saturating_add);
            ranks.count = ranks.count.max(Some(all));
        }
    }
}

fn length(ranks: &BTreeSet<u32>) -> u32 {
    u32::try_from(ranks.len()).unwrap_or(u32::MAX)
}

/// Returns the lowest missing rank below the highest that exists.
fn first_gap(present: &BTreeSet<u32>) -> Option<u32> {
    (0..).zip(present).find(|(wanted, rank)| wanted != *rank).map(|(wanted, _)| wanted)
}
