//! The command line: the global options and the commands.

#![expect(clippy::doc_markdown, reason = "the comments are the help texts")]

pub(crate) mod values;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use stepvault_core::ids::{NodeName, RunName};
use stepvault_core::nodes::NodeSet;

use crate::commands;
use crate::exit_code::ExitCode;

/// Checkpoint storage tiering for training on ephemeral nodes.
///
/// Seal steps into a local vault without copying, upload them to every remote with each byte verified, apply
/// retention rules on each tier, and restore from any tier that has a complete copy.
#[derive(Debug, Parser)]
#[command(
    name = "stepvault",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = exit_status_help(),
)]
pub(crate) struct Arguments {
    /// The global options.
    #[command(flatten)]
    pub(crate) global: GlobalArguments,
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command takes. Flags override environment variables, which override the file.
#[derive(Debug, Args)]
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
    /// Log more to stderr: -v for info, -vv for debug, -vvv for trace [env: STEPVAULT_LOG]
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print only the result and errors, no progress and no warnings; agent and run print their warnings
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// A command with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(commands::demo::DemoArguments),
    Init(commands::init::InitArguments),
    Doctor(commands::doctor::DoctorArguments),
    Agent(commands::agent::AgentArguments),
    Announce(commands::announce::AnnounceArguments),
    Wait(commands::wait::WaitArguments),
    Drain(commands::drain::DrainArguments),
    Push(commands::push::PushArguments),
    Restore(commands::restore::RestoreArguments),
    Run(commands::run::RunArguments),
    Stage(commands::save::StageArguments),
    Commit(commands::save::CommitArguments),
    List(commands::list::ListArguments),
    Show(commands::show::ShowArguments),
    Status(commands::status::StatusArguments),
    Inspect(commands::inspect::InspectArguments),
    Estimate(Box<commands::estimate::EstimateArguments>),
    Explain(commands::explain::ExplainArguments),
    Verify(commands::verify::VerifyArguments),
    Prune(commands::prune::PruneArguments),
    Pin(commands::pin::PinArguments),
    Unpin(commands::pin::UnpinArguments),
    Gc(commands::gc::GcArguments),
    Remote(commands::remote::RemoteArguments),
    Config(commands::config::ConfigArguments),
    Completions(commands::completions::CompletionsArguments),
    Man(commands::man::ManArguments),
}

impl Command {
    /// Returns whether the command shuts down by itself after a signal, instead of being cancelled.
    pub(crate) fn ends_by_itself_when_interrupted(&self) -> bool {
        matches!(self, Self::Agent(_) | Self::Run(_))
    }

    /// Returns whether the command works beside a trainer for as long as that runs.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self, Self::Agent(_) | Self::Run(_))
    }

    /// Returns whether the command handles every signal itself.
    pub(crate) fn handles_signals(&self) -> bool {
        matches!(self, Self::Run(_))
    }

    /// Returns the hint for a user who interrupted the command.
    pub(crate) fn after_interruption(&self) -> &'static str {
        match self {
            Self::Push(_) => "sealed and uploaded parts are kept; run the same command again to continue",
            Self::Restore(_) => {
                "the target is complete or absent, and fetched bytes are kept; run the same command again to continue"
            }
            Self::Prune(_) | Self::Gc(_) => {
                "the next prune completes deletions under way; a lease that is still held expires"
            }
            Self::Wait(_) | Self::Drain(_) | Self::Announce(_) => "the agent is not affected",
            Self::Agent(_) => {
                "sealed and uploaded parts are kept; the agent continues from there when it is started again"
            }
            _ => "run the same command again",
        }
    }
}

/// Returns the list of exit codes that follows the help.
fn exit_status_help() -> String {
    let lines = ExitCode::ALL
        .iter()
        .map(|(code, meaning)| format!("  {:<4} {meaning}\n", code.number()));
    format!("Exit status:\n{}", lines.collect::<String>().trim_end())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(std::iter::once("stepvault").chain(line.split_whitespace()))
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn global_options_stand_before_or_after_the_command() {
        for line in ["--run a/b --json -vv list", "list --run a/b --json -vv"] {
            let arguments = parse(line).unwrap();
            assert_eq!(arguments.global.run.unwrap().as_str(), "a/b");
            assert!(arguments.global.json);
            assert_eq!(arguments.global.verbose, 2);
        }
        let arguments = parse("list --remote s3://b/p?x=y --remote main=gs://c").unwrap();
        assert_eq!(arguments.global.remote, ["s3://b/p?x=y", "main=gs://c"]);
    }

    #[test]
    fn a_restore_needs_exactly_one_target() {
        assert!(parse("restore --into d").is_ok());
        assert!(parse("restore --as d/x").is_ok());
        assert_eq!(
            parse("restore").unwrap_err().kind(),
            ErrorKind::MissingRequiredArgument
        );
        assert_eq!(
            parse("restore --into d --as x").unwrap_err().kind(),
            ErrorKind::ArgumentConflict
        );
    }

    #[test]
    fn wrong_values_say_what_to_write() {
        let error = parse("gc --grace 24").unwrap_err().to_string();
        assert!(error.contains("\"24h\""), "{error}");
        let error = parse("verify --sample 20").unwrap_err().to_string();
        assert!(error.contains("write it as 1/20"), "{error}");
        assert_eq!(
            parse("verify --deep --sample 1/2").unwrap_err().kind(),
            ErrorKind::ArgumentConflict
        );
        assert_eq!(
            parse("list --run ../x").unwrap_err().kind(),
            ErrorKind::ValueValidation
        );
        assert_eq!(
            parse("push d --step 1000000000000").unwrap_err().kind(),
            ErrorKind::ValueValidation
        );
    }

    #[test]
    fn the_help_lists_the_exit_codes() {
        let help = Arguments::command().render_long_help().to_string();
        assert!(help.contains("  12   a tier cannot be reached in time"), "{help}");
    }
}
