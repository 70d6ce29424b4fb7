//! How many processes write a step, and what each writes.

use strum::{IntoStaticStr, VariantArray};

use super::amount::{Named, times};
use stepvault_core::error::{Error, ErrorKind, Result};

/// What each rank writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Sharding {
    /// Every rank writes its own share: FSDP, ZeRO, tensor parallelism.
    Sharded,
    /// Every node writes the whole step to its own disk.
    Replicated,
    /// The first of all ranks writes the whole step.
    RankZero,
}

impl Named for Sharding {
    const WHAT: &'static str = "a sharding";
}

/// The processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    nodes: u64,
    of_each_node: u64,
}

impl Ranks {
    /// Returns this many nodes with this many ranks each.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if there is no node or no rank, or a number is too large.
    pub fn new(nodes: u64, of_each_node: u64) -> Result<Self> {
        if nodes == 0 || of_each_node == 0 {
            return Err(Error::new(ErrorKind::Usage, "at least one rank must write a step")
                .because(format!("{nodes} nodes of {of_each_node} ranks were given"))
                .hint("set --nodes and --ranks-per-node to at least 1"));
        }
        times(nodes, of_each_node)?;
        Ok(Self { nodes, of_each_node })
    }

    /// Returns the number of nodes; at least 1.
    pub const fn nodes(self) -> u64 {
        self.nodes
    }

    /// Returns the number of ranks on all nodes; at least 1.
    pub const fn count(self) -> u64 {
        self.nodes.saturating_mul(self.of_each_node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_a_rank() {
        let ranks = Ranks::new(4, 8).unwrap();
        assert_eq!((ranks.nodes(), ranks.count()), (4, 32));
        for (nodes, of_each_node) in [(0, 8), (4, 0), (u64::MAX, 2)] {
            let error = Ranks::new(nodes, of_each_node).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        }
    }
}
