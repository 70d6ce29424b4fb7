//! How much of a step one directory holds.

use stepvault_core::nodes::Writer;

/// The part of a step that a directory holds, where several nodes write the step together.
///
/// If each node has its own disk, no directory holds all of a step. Rank 0 alone writes the files that prove it, a
/// marker or a pointer, when all ranks are done. So only the node of rank 0 has a proof. On every other node, the
/// files of its ranks are complete once they write no more. A save that was cut off is never proved on the first node
/// and cannot become durable without it.
///
/// Nothing is compared with earlier steps: on a node that a restore has filled, they hold the files of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extent {
    /// The whole step.
    #[default]
    Whole,
    /// The files written by the ranks of one node, including rank 0.
    LeadingPart,
    /// The files written by the ranks of another node.
    OtherPart,
}

impl Extent {
    /// Returns the part that the directory of a step's writer holds. Rank 0 is assumed to run on the first node by
    /// name, as with the names that launchers' ranks give.
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

    /// Returns whether the directory may lack files of the step that no rank of this node writes.
    pub fn is_part(self) -> bool {
        self != Self::Whole
    }
}
