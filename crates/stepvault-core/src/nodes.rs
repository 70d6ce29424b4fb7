//! The nodes that write a step together.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::launch::LaunchName;
use crate::words::first_of;
use crate::{Error, ErrorKind, NodeName, Result};

/// Maximum number of nodes in one step.
pub const MAX_NODES: usize = 65_536;
/// Maximum number of names that a message lists.
const LISTED: usize = 8;

/// The nodes that make a step complete: never empty, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<NodeName>", into = "Vec<NodeName>")]
pub struct NodeSet(BTreeSet<NodeName>);

impl NodeSet {
    /// Checks the names.
    pub fn new(names: impl IntoIterator<Item = NodeName>) -> Result<Self> {
        let fault = |why: String| Error::new(ErrorKind::Usage, "not a set of nodes").because(why);
        let mut nodes = BTreeSet::new();
        for name in names {
            if let Some(twice) = nodes.replace(name) {
                return Err(fault(format!("{twice} is listed twice")));
            }
        }
        if nodes.is_empty() || nodes.len() > MAX_NODES {
            return Err(fault("it must have 1 to 65536 nodes".to_owned()));
        }
        Ok(Self(nodes))
    }

    /// Returns the set of a single node, which writes its steps without others.
    pub fn single_node(node: NodeName) -> Self {
        Self(BTreeSet::from([node]))
    }

    /// Returns `node-0` to `node-{count - 1}`, the names that follow from launchers' ranks.
    pub fn counted(count: usize) -> Result<Self> {
        if !(1..=MAX_NODES).contains(&count) {
            return Err(Error::new(ErrorKind::Usage, "not a number of nodes")
                .on(count)
                .because("it must be 1 to 65536"));
        }
        Self::new((0..count).map(ranked).collect::<Result<Vec<_>>>()?)
    }

    /// Returns whether a node is one of them.
    pub fn contains(&self, node: &NodeName) -> bool {
        self.0.contains(node)
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns whether a step has more than one node.
    pub fn is_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Returns the nodes, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &NodeName> {
        self.0.iter()
    }

    /// Returns those that are not in `present`, sorted by name.
    pub fn missing(&self, present: &BTreeSet<NodeName>) -> Vec<NodeName> {
        self.0.difference(present).cloned().collect()
    }
}

/// Returns the name of the node with this rank.
pub fn ranked(rank: usize) -> Result<NodeName> {
    NodeName::new(format!("node-{rank}"))
}

/// Formats names for a message: the first few, and the number of the others.
pub fn listed(nodes: &[impl fmt::Display]) -> String {
    first_of(nodes, LISTED, 0)
}

impl fmt::Display for NodeSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&listed(&self.0.iter().cloned().collect::<Vec<_>>()))
    }
}

/// A number of nodes, or their names separated by commas.
impl FromStr for NodeSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let hint = "write their number (4) or their names (a,b,c)";
        // A number with spaces around it is not a node's name.
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let count = text.parse().unwrap_or(usize::MAX);
            return Self::counted(count).map_err(|error| error.hint(hint));
        }
        let names = text.split(',').map(|name| NodeName::new(name.trim()));
        names.collect::<Result<Vec<_>>>().and_then(Self::new).map_err(|error| error.hint(hint))
    }
}

impl TryFrom<Vec<NodeName>> for NodeSet {
    type Error = Error;

    fn try_from(names: Vec<NodeName>) -> Result<Self> {
        let sorted = names.windows(2).all(|pair| pair[0] < pair[1]);
        let nodes = Self::new(names)?;
        if sorted {
            return Ok(nodes);
        }
        Err(Error::new(ErrorKind::Damaged, "the nodes are not sorted by name"))
    }
}

impl From<NodeSet> for Vec<NodeName> {
    fn from(nodes: NodeSet) -> Self {
        nodes.0.into_iter().collect()
    }
}

/// This node and the nodes with which it writes a run's steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace {
    node: NodeName,
    nodes: NodeSet,
}

impl NodePlace {
    /// Returns a node and the nodes it belongs to.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when it is not one of them.
    pub fn new(node: NodeName, nodes: NodeSet) -> Result<Self> {
        if nodes.contains(&node) {
            return Ok(Self { node, nodes });
        }
        Err(Error::new(ErrorKind::Usage, "this node is not one of the declared nodes")
            .on(&node)
            .because(format!("the declared nodes are {nodes}"))
            .hint("set --node to one of them, or declare the nodes with --nodes"))
    }

    /// Returns a single node, which writes its steps without others.
    pub fn single_node(node: NodeName) -> Self {
        Self { nodes: NodeSet::single_node(node.clone()), node }
    }

    /// Returns this node.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> &NodeSet {
        &self.nodes
    }
}

/// The writer of a step: this node, the other nodes, and the launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// This node and the nodes that write the step with it.
    pub place: NodePlace,
    /// The launch; `None` without a launcher.
    pub launch: Option<LaunchName>,
    /// Whether the step is in one directory that all nodes see, and whose files they divide among them.
    pub shared: bool,
}

impl Writer {
    /// Returns a single node, which writes its steps without others.
    pub fn single_node(node: NodeName) -> Self {
        Self { place: NodePlace::single_node(node), launch: None, shared: false }
    }

    /// Returns whether the attempt of a step depends on launches, and not only on one node's files.
    pub fn goes_by_launch(&self) -> bool {
        self.launch.is_some() || self.place.nodes().is_several()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_names_make_a_set() {
        let counted: NodeSet = "3".parse().unwrap();
        assert_eq!(counted.to_string(), "node-0, node-1, node-2");
        assert_eq!(" 3 ".parse::<NodeSet>().unwrap(), counted);
        let named: NodeSet = "b, a".parse().unwrap();
        assert_eq!(named.to_string(), "a, b");
        for (bad, why) in [
            ("0", "it must be 1 to 65536"),
            ("99999999999999999999999", "it must be 1 to 65536"),
            ("a,a", "a is listed twice"),
            ("", "not a node name"),
            ("a,,b", "not a node name"),
        ] {
            let error = bad.parse::<NodeSet>().unwrap_err();
            assert!(error.to_string().contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn who_is_missing_is_named_and_a_long_list_is_cut() {
        let nodes = NodeSet::counted(12).unwrap();
        let present = BTreeSet::from([ranked(0).unwrap(), ranked(11).unwrap()]);
        let missing = nodes.missing(&present);
        assert_eq!(missing.len(), 10);
        assert_eq!(
            listed(&missing),
            "node-1, node-10, node-2, node-3, node-4, node-5, node-6, node-7 and 2 more"
        );
    }

    #[test]
    fn a_node_that_is_not_declared_is_told_so() {
        let error =
            NodePlace::new(NodeName::new("gpu-7").unwrap(), NodeSet::counted(2).unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this node is not one of the declared nodes: gpu-7: the declared nodes are node-0, node-1"
        );
    }
}
