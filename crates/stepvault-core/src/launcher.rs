//! Reads what a job's launcher sets in environment variables about its nodes and restarts.
//!
//! torchrun sets `GROUP_RANK`, `GROUP_WORLD_SIZE` and `TORCHELASTIC_RUN_ID` for its workers
//! (`torch/distributed/elastic/agent/server/local_elastic_agent.py`), Slurm `SLURM_NODEID`, `SLURM_JOB_NUM_NODES`,
//! `SLURM_JOB_ID` and `SLURM_RESTART_COUNT` (the manuals of srun and sbatch), Kubernetes `JOB_COMPLETION_INDEX` in an
//! indexed job.

use crate::launch::LaunchName;
use crate::nodes::ranked;
use crate::{Error, ErrorKind, NodeName, NodeSet, Result};

/// The launcher's settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Launcher {
    /// This node's name, from its rank among the nodes.
    pub node: Option<NodeName>,
    /// The nodes, named by rank.
    pub nodes: Option<NodeSet>,
    /// The variable that sets the number of nodes.
    pub nodes_from: Option<&'static str>,
    /// This start of the job.
    pub launch: Option<LaunchName>,
    /// Whether the rank and the number of nodes are those of one component of a heterogeneous Slurm job (`SLURM_HET_SIZE`),
    /// which has several.
    pub is_heterogeneous: bool,
}

/// The variables of a launcher for a node's rank and the number of nodes.
struct Ranks {
    rank: &'static str,
    counts: &'static [&'static str],
}

/// The first launcher that sets a rank is used: torchrun runs inside the other two.
const RANKS: [Ranks; 3] = [
    Ranks { rank: "GROUP_RANK", counts: &["GROUP_WORLD_SIZE"] },
    Ranks { rank: SLURM_RANK, counts: &["SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"] },
    Ranks { rank: "JOB_COMPLETION_INDEX", counts: &[] },
];

const SLURM_RANK: &str = "SLURM_NODEID";
/// torchrun's run id if none is given.
const NO_RUN_ID: &str = "none";

impl Launcher {
    /// Reads the environment with `variable`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when a variable is set but is not a number, or the rank is not below the number of nodes.
    pub fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let mut found = Self { launch: launch(variable)?, ..Self::default() };
        let Some(ranks) = RANKS.iter().find(|ranks| variable(ranks.rank).is_some()) else {
            return Ok(found);
        };
        let Some(rank) = number(variable, ranks.rank)? else {
            return Ok(found);
        };
        found.node = Some(ranked(rank)?);
        found.is_heterogeneous = ranks.rank == SLURM_RANK && number(variable, "SLURM_HET_SIZE")? > Some(1);
        for name in ranks.counts {
            let Some(count) = number(variable, name)? else {
                continue;
            };
            if rank >= count {
                return Err(Error::new(ErrorKind::Usage, "the launcher's variables contradict each other")
                    .on(format!("{}={rank}, {name}={count}", ranks.rank))
                    .because("the rank is not below the number of nodes")
                    .hint("give --node and --nodes"));
            }
            found.nodes = Some(NodeSet::counted(count)?);
            found.nodes_from = Some(name);
            break;
        }
        Ok(found)
    }
}

/// Returns the name of everything that is the same on all nodes, outermost first: a Slurm job may start torchrun
/// repeatedly. torchrun's restart count is not part of it: each agent of torchrun counts for itself, and not the restarts
/// that follow a change of membership. Restarts within a launch are told apart when the nodes restore.
fn launch(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<LaunchName>> {
    let mut words = Vec::new();
    if let Some(job) = variable("SLURM_JOB_ID") {
        let restarts = number(variable, "SLURM_RESTART_COUNT")?.unwrap_or(0);
        words.push(format!("slurm:{job}:{restarts}"));
    }
    if let Some(run) = variable("TORCHELASTIC_RUN_ID").filter(|run| run != NO_RUN_ID) {
        words.push(format!("torchelastic:{run}"));
    }
    if words.is_empty() {
        return Ok(None);
    }
    LaunchName::new(words.join(" ")).map(Some)
}

fn number(variable: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<usize>> {
    let Some(text) = variable(name) else {
        return Ok(None);
    };
    text.trim().parse().map(Some).map_err(|_| {
        Error::new(ErrorKind::Usage, "cannot use the launcher's variable")
            .on(format!("{name}={text:?}"))
            .because("it is not a whole number")
            .hint("unset it, or give --node and --nodes")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Launcher> {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Launcher::read(&move |wanted| {
            let found = pairs.iter().find(|(name, _)| name == wanted)?;
            Some(found.1.clone())
        })
    }

    fn told(pairs: &[(&str, &str)]) -> (String, String, String) {
        let found = read(pairs).unwrap();
        let text = |value: Option<String>| value.unwrap_or_default();
        (
            text(found.node.map(|node| node.to_string())),
            text(found.nodes.map(|nodes| nodes.to_string())),
            text(found.launch.map(|launch| launch.to_string())),
        )
    }

    fn is(node: &str, nodes: &str, launch: &str) -> (String, String, String) {
        (node.to_owned(), nodes.to_owned(), launch.to_owned())
    }

    #[test]
    fn a_component_of_a_heterogeneous_job_is_told_from_a_job() {
        let slurm = [("SLURM_NODEID", "0"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_HET_SIZE", "2")];
        assert!(read(&slurm).unwrap().is_heterogeneous);
        assert!(!read(&slurm[..2]).unwrap().is_heterogeneous);
        // torchrun numbers the nodes of all components.
        let torchrun = [&slurm[..], &[("GROUP_RANK", "0"), ("GROUP_WORLD_SIZE", "4")]].concat();
        assert!(!read(&torchrun).unwrap().is_heterogeneous);
    }

    #[test]
    fn each_launcher_is_understood() {
        assert_eq!(told(&[]), is("", "", ""));
        assert_eq!(
            told(&[
                ("GROUP_RANK", "1"),
                ("GROUP_WORLD_SIZE", "2"),
                ("TORCHELASTIC_RUN_ID", "abc"),
                ("TORCHELASTIC_RESTART_COUNT", "3"),
            ]),
            is("node-1", "node-0, node-1", "torchelastic:abc")
        );
        assert_eq!(
            told(&[("SLURM_NODEID", "0"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_JOB_ID", "77"),]),
            is("node-0", "node-0, node-1", "slurm:77:0")
        );
        assert_eq!(told(&[("JOB_COMPLETION_INDEX", "4")]), is("node-4", "", ""));
    }

    #[test]
    fn torchrun_inside_slurm_restarts_with_slurm() {
        let both = [
            ("SLURM_NODEID", "5"),
            ("SLURM_JOB_NUM_NODES", "9"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_RESTART_COUNT", "2"),
            ("GROUP_RANK", "1"),
            ("GROUP_WORLD_SIZE", "2"),
            ("TORCHELASTIC_RUN_ID", "77"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
        ];
        assert_eq!(told(&both), is("node-1", "node-0, node-1", "slurm:77:2 torchelastic:77"));
    }

    #[test]
    fn a_run_id_that_nobody_gave_names_no_launch() {
        assert_eq!(
            told(&[("TORCHELASTIC_RUN_ID", "none"), ("TORCHELASTIC_RESTART_COUNT", "0")]),
            is("", "", "")
        );
    }

    #[test]
    fn what_makes_no_sense_is_told_by_its_variable() {
        for (pairs, text) in [
            (
                [("GROUP_RANK", "x"), ("GROUP_WORLD_SIZE", "2")],
                "cannot use the launcher's variable: GROUP_RANK=\"x\": it is not a whole number",
            ),
            (
                [("SLURM_NODEID", "2"), ("SLURM_NNODES", "2")],
                "the launcher's variables contradict each other: SLURM_NODEID=2, SLURM_NNODES=2: the rank is not \
                 below the number of nodes",
            ),
        ] {
            assert_eq!(read(&pairs).unwrap_err().to_string(), text);
        }
    }
}
