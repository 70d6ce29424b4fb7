//! Files that are written once per process.

use std::collections::BTreeSet;

use serde::de::IgnoredAny;

use super::MAX_METADATA_BYTES;
use crate::soundness::Fault;
use crate::structure::place::{joined, json};
use crate::tree::{OpenFile, Tree};

/// Checks `iter/process_{i}-of-{n}.json`, in which `MaxText` keeps each process's position in its data: one file for
/// each of n.
pub(super) fn check_iterators(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    let iterators = joined(directory, "iter");
    let mut seen = BTreeSet::new();
    let mut declared = None;
    for (name, _) in tree.children(&iterators) {
        let Some(rest) = name
            .strip_prefix("process_")
            .and_then(|rest| rest.strip_suffix(".json"))
        else {
            continue;
        };
        let path = joined(&iterators, name);
        json::<IgnoredAny>(tree, &path, files, MAX_METADATA_BYTES)?;
        let Some((index, count)) = rest.split_once("-of-") else {
            continue;
        };
        let (Ok(index), Ok(count)) = (index.parse::<u64>(), count.parse::<u64>()) else {
            continue;
        };
        if *declared.get_or_insert(count) != count {
            return Err(Fault::broken(format!(
                "{path} gives {count} processes, but another file in its directory gives a different number: two \
                 saves are mixed"
            )));
        }
        seen.insert(index);
    }
    let Some(count) = declared else { return Ok(()) };
    match first_gap(&seen) {
        missing if missing < count => Err(Fault::broken(format!(
            "{iterators} has no file of process {missing} of {count}: part of the save is missing"
        ))),
        _ => Ok(()),
    }
}

/// Checks `array_metadatas/process_{i}`: a file of each process that wrote. Arrays can be restored without them, and
/// processes that hold only copies write none, so a gap proves nothing.
pub(super) fn check_array_metadatas(tree: &Tree, item: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    let directory = joined(item, "array_metadatas");
    let mut seen = BTreeSet::new();
    for (name, _) in tree.children(&directory) {
        let Some(Ok(index)) = name.strip_prefix("process_").map(str::parse::<u64>) else {
            continue;
        };
        json::<IgnoredAny>(tree, &joined(&directory, name), files, MAX_METADATA_BYTES)?;
        seen.insert(index);
    }
    let missing = first_gap(&seen);
    match seen.last() {
        Some(last) if missing < *last => Err(Fault::Unknown(format!(
            "{directory} has a file of process {last} but none of process {missing}: it was lost, or that process \
             had nothing to write"
        ))),
        _ => Ok(()),
    }
}

/// Returns the smallest missing number.
fn first_gap(seen: &BTreeSet<u64>) -> u64 {
    (0..)
        .zip(seen)
        .take_while(|(expected, index)| expected == *index)
        .count() as u64
}
