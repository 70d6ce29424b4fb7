//! How much of a step one directory holds.

use stepvault_core::nodes::Writer;

/// What of a step a directory holds, where several nodes write it together.
///
/// Where each node has a disk of its own, no directory holds all of a step. The files that prove it, a marker or a
/// pointer, are written by rank 0 alone, when all ranks are done. So the node of rank 0 has proof, and every other one
/// has nothing but silence: what its ranks have written is all there once they write no more. A save that was cut off
/// is never proved on the first, and cannot become durable without it.
///
/// Nothing is compared with the steps before: on a node that a restore has filled, they hold the files of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extent {
    /// All of it.
    #[default]
    Whole,
    /// What the ranks of one node wrote, rank 0 among them.
    LeadingPart,
    /// What the ranks of another node wrote.
    OtherPart,
}

impl Extent {
    /// What the directory of a step's writer holds of it. Rank 0 is taken to run on the first node by name, as it does by
    /// the names that launchers' ranks give.
    pub fn of(writer: &Writer) -> Self {
        let (node, nodes) = (writer.place.node(), writer.place.nodes());
        if writer.shared || !nodes.is_several() {
            Self::Whole
        } else if nodes.iter().next() == Some(node) {
            Self::LeadingPart
        } else {
            Self::OtherPart
        }
    }

    /// Whether files of the step may be missing that no rank of this node writes.
    pub fn is_part(self) -> bool {
        self != Self::Whole
    }
}
