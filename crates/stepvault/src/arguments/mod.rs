//! The command line: the options that every command takes, and the commands.

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
/// Steps are sealed into a local vault without copying, uploaded to every remote with each byte verified, kept by
/// rules on each tier, and put back from whichever tier has them whole.
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
    /// What every command takes.
    #[command(flatten)]
    pub(crate) global: GlobalArguments,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes. Flags win over variables, which win over the file.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArguments {
    /// Configuration file [env: STEPVAULT_CONFIG]
    ///
    /// Without it: ./stepvault.toml, ~/.config/stepvault/stepvault.toml, /etc/stepvault/stepvault.toml, whichever
    /// comes first; none is needed when --remote and --run are given.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The run, as in [run."NAME"] [env: STEPVAULT_RUN]
    ///
    /// May be left out when one run is configured.
    #[arg(long, global = true, value_name = "NAME", value_parser = values::checked::<RunName>)]
    pub(crate) run: Option<RunName>,
    /// A remote: URL, NAME=URL, or the name of a configured one; repeatable [env: STEPVAULT_REMOTE]
    ///
    /// With it only the remotes given are used. Options go in the URL's query:
    /// s3://bucket/prefix?region=eu-west-1&endpoint=http://127.0.0.1:9000. Several in the variable are separated by
    /// spaces.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) remote: Vec<String>,
    /// The local vault's directory [env: STEPVAULT_LOCAL]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) local: Option<PathBuf>,
    /// This node's name; by default its rank's (node-0), else the host's name [env: STEPVAULT_NODE]
    #[arg(long, global = true, value_name = "NAME", value_parser = values::checked::<NodeName>)]
    pub(crate) node: Option<NodeName>,
    /// The nodes that write each step together: how many, or their names [env: STEPVAULT_NODES]
    ///
    /// A step is durable once each of them has uploaded its part. With a number they are called node-0, node-1, and so
    /// on. By default what torchrun or Slurm says in the environment, else this node alone.
    #[arg(long, global = true, value_name = "N|NAMES", value_parser = values::checked::<NodeSet>)]
    pub(crate) nodes: Option<NodeSet>,
    /// Print one JSON document on stdout and nothing else
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log more to stderr: -v what happens, -vv how, -vvv everything [env: STEPVAULT_LOG]
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// No progress and no warnings, only the result and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(commands::demo::DemoArguments),
    Init(commands::init::InitArguments),
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
    Explain(commands::explain::ExplainArguments),
    Verify(commands::verify::VerifyArguments),
    Prune(commands::prune::PruneArguments),
    Pin(commands::pin::PinArguments),
    Unpin(commands::pin::UnpinArguments),
    Gc(commands::gc::GcArguments),
    Config(commands::config::ConfigArguments),
    Completions(commands::completions::CompletionsArguments),
    Man(commands::man::ManArguments),
}

impl Command {
    /// Whether the command ends in order by itself when it is asked to, instead of being cut off.
    pub(crate) fn ends_by_itself_when_interrupted(&self) -> bool {
        matches!(self, Self::Agent(_) | Self::Run(_))
    }

    /// Whether the command has a use of its own for every signal.
    pub(crate) fn handles_signals(&self) -> bool {
        matches!(self, Self::Run(_))
    }

    /// What a person who interrupted the command has to know.
    pub(crate) fn after_interruption(&self) -> &'static str {
        match self {
            Self::Push(_) => {
                "what was sealed and uploaded is kept: the same command goes on where it ended, part by part"
            }
            Self::Restore(_) => {
                "the target is whole or not there, and what was fetched is kept: the same command does what is left"
            }
            Self::Prune(_) | Self::Gc(_) => {
                "no step is half there: the next prune finishes what was begun; a lease that was left runs out by itself"
            }
            Self::Wait(_) | Self::Drain(_) | Self::Announce(_) => "the agent goes on as if nobody had asked",
            Self::Agent(_) => "what was sealed and uploaded is kept: the agent goes on where it ended",
            _ => "the same command can be run again",
        }
    }
}

/// The exit codes, as they stand below the help.
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
