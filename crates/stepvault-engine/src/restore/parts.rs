//! Whose files of a step of several nodes are wanted.

use std::fmt;

use globset::{Glob, GlobSet, GlobSetBuilder};
use stepvault_core::ids::NodeName;
use stepvault_core::manifest::PartManifest;
use stepvault_core::nodes::listed;
use stepvault_core::{Error, ErrorKind, Result};

/// A choice among the parts of a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Parts {
    /// The whole step: what is right whenever the number of nodes has changed.
    #[default]
    All,
    /// What this node wrote.
    Of(NodeName),
    /// What the nodes wrote whose names match one of these patterns.
    Matching(Vec<String>),
    /// What this node has sealed of a step that is not durable: the nodes of a launch may agree on one.
    OwnSealed,
}

impl Parts {
    /// The manifests of the parts that are wanted. The files of a directory that all nodes share belong to all of them.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when no part is wanted, naming those there are; for a wrong pattern.
    pub(super) fn choose(&self, manifests: &[PartManifest]) -> Result<Vec<PartManifest>> {
        let shared = manifests
            .iter()
            .any(|manifest| manifest.shared_tree_sha256.is_some());
        let patterns = match self {
            Self::Matching(patterns) => Some(compiled(patterns)?),
            Self::All | Self::Of(_) | Self::OwnSealed => None,
        };
        let wanted = |manifest: &&PartManifest| match (self, &patterns) {
            (Self::Of(node), _) => shared || manifest.node == *node,
            (Self::Matching(_), Some(patterns)) => shared || patterns.is_match(manifest.node.as_str()),
            _ => true,
        };
        let chosen: Vec<PartManifest> = manifests.iter().filter(wanted).cloned().collect();
        if !chosen.is_empty() {
            return Ok(chosen);
        }
        let nodes: Vec<NodeName> = manifests.iter().map(|manifest| manifest.node.clone()).collect();
        Err(Error::new(ErrorKind::Usage, "no part of the step is wanted")
            .because(format!(
                "{self} is asked for, and the step has parts of {}",
                listed(&nodes)
            ))
            .hint("take the whole step with --parts all; the trainer may have to reshard it"))
    }
}

fn compiled(patterns: &[String]) -> Result<GlobSet> {
    let fault = |error| Error::new(ErrorKind::Usage, "not a pattern of nodes").caused_by(error);
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern).map_err(fault)?);
    }
    set.build().map_err(fault)
}

impl fmt::Display for Parts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => out.write_str("all parts"),
            Self::Of(node) => write!(out, "the part of {node}"),
            Self::OwnSealed => out.write_str("the part that is sealed here"),
            Self::Matching(patterns) => write!(out, "parts of {}", patterns.join(", ")),
        }
    }
}
