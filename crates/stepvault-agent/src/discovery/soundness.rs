//! The last look before a step is sealed: whether its files are what they should be inside.

use stepvault_formats::check::check_extent;
use stepvault_formats::find::{Extent, FoundStep};
use stepvault_formats::tree::{OpenFile, Tree};

/// What is broken in a complete step, in words; empty when nothing is. What it names keeps the step from being sealed
/// until it changes. Asked once for each state of a step: it reads headers, and checksums where a format has some.
pub(super) fn broken(extent: Extent, step: &FoundStep, tree: &Tree, files: &dyn OpenFile) -> Vec<String> {
    let check = check_extent(extent, step, tree, files);
    check
        .broken()
        .map(|(path, why)| format!("{path}: {why}"))
        .collect()
}
