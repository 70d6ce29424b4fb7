//! The options of every command.

#![expect(clippy::doc_markdown, reason = "the comments are the help texts")]

use std::path::PathBuf;

use clap::{ArgAction, Args};
use stepvault_core::config::ServiceUrl;
use stepvault_core::{NodeName, NodeSet, RunName};

use super::values;

/// Options that every command takes. Flags override environment variables, which override the file.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArguments {
    /// Configuration file [env: STEPVAULT_CONFIG]
    ///
    /// By default the first of ./stepvault.toml, ~/.config/stepvault/stepvault.toml and /etc/stepvault/stepvault.toml
    /// that exists. No file is needed when --remote and --run are given.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Name of the run, as in [run."NAME"] [env: STEPVAULT_RUN]
    ///
    /// Optional when exactly one run is configured.
    #[arg(long, global = true, value_name = "NAME", value_parser = values::checked::<RunName>)]
    pub(crate) run: Option<RunName>,
    /// Remote: a URL, NAME=URL, or the name of a configured remote; repeatable [env: STEPVAULT_REMOTE]
    ///
    /// Only the given remotes are used then. Options go in the URL's query:
    /// s3://bucket/prefix?region=eu-west-1&endpoint=http://127.0.0.1:9000. In the variable, separate several remotes
    /// with spaces.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) remote: Vec<String>,
    /// Directory of the local vault [env: STEPVAULT_LOCAL]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) local: Option<PathBuf>,
    /// Name of this node; by default derived from its rank (node-0), else the host name [env: STEPVAULT_NODE]
    #[arg(long, global = true, value_name = "NAME", value_parser = values::checked::<NodeName>)]
    pub(crate) node: Option<NodeName>,
    /// Nodes that write each step together: their number, or their names [env: STEPVAULT_NODES]
    ///
    /// A step is durable once each of them has uploaded its part. With a number, the nodes are named node-0, node-1,
    /// and so on. By default the nodes that torchrun or Slurm sets in the environment, else this node alone.
    #[arg(long, global = true, value_name = "N|NAMES", value_parser = values::checked::<NodeSet>)]
    pub(crate) nodes: Option<NodeSet>,
    /// Print one JSON document on stdout and nothing else
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write what the command did to a file, for node_exporter's textfile collector
    ///
    /// The file is replaced when the command ends, and says with which exit code. The agent has a key for its own
    /// metrics: agent.metrics-file.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) metrics_file: Option<PathBuf>,
    /// Push what the command did to a Prometheus Pushgateway when it ends
    ///
    /// The URL ends where /metrics/job begins. The group has the labels command, run and node, and is replaced. A failure
    /// is a warning. The agent has a key for its own metrics: agent.metrics-push.
    #[arg(long, global = true, value_name = "URL", value_parser = values::checked::<ServiceUrl>)]
    pub(crate) metrics_push: Option<ServiceUrl>,
    /// Log more to stderr: -v for info, -vv for debug, -vvv for trace [env: STEPVAULT_LOG]
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print only the result and errors, no progress and no warnings; agent and run print their warnings
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}
