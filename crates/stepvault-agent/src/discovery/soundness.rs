//! The last check before a step is sealed: whether the content of its files is sound.

use stepvault_formats::check::check_extent;
use stepvault_formats::find::{Extent, FoundStep};
use stepvault_formats::tree::{OpenFile, Tree};

/// Returns the damage in a complete step, as text; empty if there is none. A damaged step is not sealed until it
/// changes. Called once for each state of a step: it reads headers, and checksums if a format has some.
pub(super) fn broken(extent: Extent, step: &FoundStep, tree: &Tree, files: &dyn OpenFile) -> Vec<String> {
    let check = check_extent(extent, step, tree, files);
    check
        .broken()
        .map(|(path, why)| format!("{path}: {why}"))
        .collect()
}
