//! Selects parts of a multi-node step.

use std::fmt;

use globset::{Glob, GlobSet, GlobSetBuilder};
use stepvault_core::ids::NodeName;
use stepvault_core::manifest::PartManifest;
use stepvault_core::nodes::listed;
use stepvault_core::{Error, ErrorKind, Result};

/// A selection among the parts of a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Parts {
    /// The whole step: always correct when the number of nodes has changed.
    #[default]
    All,
    /// The part that this node wrote.
    Of(NodeName),
    /// The parts of the nodes whose names match one of these patterns.
    Matching(Vec<String>),
    /// The part that this node has sealed of a step that is not durable: the nodes of a launch may agree on such a
    /// step.
    OwnSealed,
}

impl Parts {
    /// Returns the manifests of the selected parts. The files of a directory that all nodes share belong to all of
    /// them.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when no part is selected, naming the existing ones; and for an invalid pattern.
    pub(super) fn choose<'a>(&self, manifests: &'a [PartManifest]) -> Result<Vec<&'a PartManifest>> {
        let shared = manifests.iter().any(|manifest| manifest.shared_tree_sha256.is_some());
        let patterns = match self {
            Self::Matching(patterns) => Some(compiled(patterns)?),
            Self::All | Self::Of(_) | Self::OwnSealed => None,
        };
        let wanted = |manifest: &&PartManifest| match (self, &patterns) {
            (Self::Of(node), _) => shared || manifest.node == *node,
            (Self::Matching(_), Some(patterns)) => shared || patterns.is_match(manifest.node.as_str()),
            _ => true,
        };
        let chosen: Vec<&PartManifest> = manifests.iter().filter(wanted).collect();
        if !chosen.is_empty() {
            return Ok(chosen);
        }
        let nodes: Vec<NodeName> = manifests.iter().map(|manifest| manifest.node.clone()).collect();
        Err(Error::new(ErrorKind::Usage, "no part of the step is selected")
            .because(format!("{self} was requested, and the step has parts of {}", listed(&nodes)))
            .hint("restore the whole step with --parts all; the trainer may have to reshard it"))
    }
}

fn compiled(patterns: &[String]) -> Result<GlobSet> {
    let fault = |error| Error::new(ErrorKind::Usage, "invalid node pattern").caused_by(error);
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
