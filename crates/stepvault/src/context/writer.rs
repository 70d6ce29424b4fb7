//! Determines this node, the declared nodes and the launch, from the configuration or the job's launcher.

use stepvault_core::ids::{Attempt, NodeName};
use stepvault_core::launch::LaunchName;
use stepvault_core::launcher::Launcher;
use stepvault_core::nodes::{NodePlace, NodeSet, Writer};
use stepvault_core::{Error, ErrorKind, Result};

use super::remote_choice::with_name_letters;
use super::settings::Settings;
use super::sources::variable;

impl Settings {
    /// Returns the identity under which this node writes steps.
    ///
    /// # Errors
    /// If the launcher's variables are invalid, or this node is not one of the declared nodes.
    pub(crate) fn writer(&self) -> Result<Writer> {
        if let Some((writer, _)) = &self.last {
            return Ok(writer.clone());
        }
        let launcher = Launcher::read(&|name| std::env::var(name).ok().filter(|text| !text.is_empty()))?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let launch = match variable("STEPVAULT_LAUNCH")? {
            Some(name) => {
                Some(LaunchName::new(name).map_err(|error| error.hint("correct STEPVAULT_LAUNCH"))?)
            }
            None => launcher.launch.clone(),
        };
        Ok(Writer {
            place: place(self.config.node.clone(), self.config.nodes.clone(), launcher, &host)?,
            launch,
            shared: false,
        })
    }
}

/// Returns the attempt from the flag, else from `STEPVAULT_ATTEMPT`.
pub(crate) fn attempt(flag: Option<Attempt>) -> Result<Option<Attempt>> {
    match (flag, variable("STEPVAULT_ATTEMPT")?) {
        (None, Some(text)) => {
            text.parse().map(Some).map_err(|error: Error| error.hint("correct STEPVAULT_ATTEMPT"))
        }
        (flag, _) => Ok(flag),
    }
}

/// Determines this node and its nodes. The configuration overrides the launcher; the host name is the last resort.
fn place(
    node: Option<NodeName>,
    nodes: Option<NodeSet>,
    launcher: Launcher,
    host: &str,
) -> Result<NodePlace> {
    let host = node_name_of(host)?;
    if launcher.is_heterogeneous && nodes.is_none() {
        return Err(Error::new(ErrorKind::Usage, "cannot number the nodes of a heterogeneous Slurm job")
            .because("SLURM_NODEID and SLURM_JOB_NUM_NODES are those of one of its components")
            .hint(
                "give each node its name with --node, all of them with --nodes, and the same STEPVAULT_LAUNCH to all; or \
                 save with the nodes of one component, and run stepvault there alone with --nodes",
            ));
    }
    let declared = nodes.or(launcher.nodes);
    let Some(nodes) = declared.filter(NodeSet::is_several) else {
        return Ok(NodePlace::single_node(node.or(launcher.node).unwrap_or(host)));
    };
    let among = |name: Option<NodeName>| name.filter(|name| nodes.contains(name));
    let own = match node {
        Some(node) => node,
        None => among(launcher.node.clone()).or(among(Some(host.clone()))).or(launcher.node).unwrap_or(host),
    };
    NodePlace::new(own, nodes)
}

/// Returns the host name, with characters that a node name may not contain replaced.
fn node_name_of(host: &str) -> Result<NodeName> {
    let name: String = with_name_letters(host.trim_start_matches('.')).take(63).collect();
    NodeName::new(if name.is_empty() { "node".to_owned() } else { name })
        .map_err(|error| error.hint("give this node's name with --node NAME"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_host_name_makes_a_node_name() {
        for (host, node) in
            [("gpu-7.example", "gpu-7.example"), ("", "node"), (".x", "x"), ("a b/\u{fc}", "a-b--")]
        {
            assert_eq!(node_name_of(host).unwrap().as_str(), node);
        }
        assert_eq!(node_name_of(&"h".repeat(80)).unwrap().as_str().len(), 63);
    }

    #[test]
    fn what_is_configured_wins_over_the_launcher_and_that_over_the_host() {
        let launcher = |rank: &str, count: &str| {
            let (rank, count) = (rank.to_owned(), count.to_owned());
            Launcher::read(&move |name| match name {
                "SLURM_NODEID" => Some(rank.clone()),
                "SLURM_NNODES" => Some(count.clone()),
                _ => None,
            })
            .unwrap()
        };
        let nodes = |text: &str| Some(text.parse::<NodeSet>().unwrap());
        let name = |text: &str| Some(NodeName::new(text).unwrap());
        let told = |node, nodes, launcher, host| {
            let place = place(node, nodes, launcher, host)?;
            Ok::<_, Error>(format!("{} of {}", place.node(), place.nodes()))
        };
        let none = Launcher::default;
        assert_eq!(told(None, None, none(), "gpu-7").unwrap(), "gpu-7 of gpu-7");
        assert_eq!(told(None, None, launcher("1", "2"), "gpu-7").unwrap(), "node-1 of node-0, node-1");
        assert_eq!(told(None, nodes("1"), launcher("1", "2"), "gpu-7").unwrap(), "node-1 of node-1");
        assert_eq!(
            told(None, nodes("gpu-6,gpu-7"), launcher("1", "2"), "gpu-7").unwrap(),
            "gpu-7 of gpu-6, gpu-7"
        );
        assert_eq!(told(name("b"), nodes("a,b"), none(), "gpu-7").unwrap(), "b of a, b");
        assert_eq!(
            told(None, nodes("2"), none(), "gpu-7").unwrap_err().to_string(),
            "this node is not one of the declared nodes: gpu-7: the declared nodes are node-0, node-1"
        );
    }
}
