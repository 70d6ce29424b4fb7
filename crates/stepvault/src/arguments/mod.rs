//! The command line: the commands, and the options of all.

pub(crate) mod global;
pub(crate) mod values;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use itertools::Itertools as _;

use crate::commands;
use crate::exit_code::ExitCode;
use global::GlobalArguments;

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

/// A command with its arguments.
#[derive(Debug, Subcommand, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
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
    Follow(Box<commands::follow::FollowArguments>),
    Stage(commands::save::StageArguments),
    Commit(commands::save::CommitArguments),
    Runs(commands::runs::RunsArguments),
    Du(commands::du::DuArguments),
    List(commands::list::ListArguments),
    /// Show the tiers and files of one step
    Show(commands::inventory::ChosenStep),
    Status(commands::status::StatusArguments),
    Dashboard(commands::dashboard::DashboardArguments),
    Inspect(commands::inspect::InspectArguments),
    Import(Box<commands::import::ImportArguments>),
    Estimate(Box<commands::estimate::EstimateArguments>),
    Explain(commands::explain::ExplainArguments),
    Verify(commands::verify::VerifyArguments),
    Prune(commands::prune::PruneArguments),
    Copy(commands::copy::CopyArguments),
    Tier(commands::tier::TierArguments),
    Pin(commands::pin::PinArguments),
    /// Remove a pin
    Unpin(commands::inventory::ChosenStep),
    Gc(commands::gc::GcArguments),
    #[command(subcommand)]
    Remote(commands::remote::RemoteAction),
    #[command(subcommand)]
    Config(commands::config::ConfigAction),
    Completions(commands::generated::CompletionsArguments),
    Man(commands::generated::ManArguments),
}

impl Command {
    /// Returns the command's name.
    pub(crate) fn name(&self) -> &'static str {
        self.into()
    }

    /// Returns whether the command works beside other processes for as long as they run. It shuts down by itself after a
    /// signal, instead of being cancelled.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self, Self::Agent(_) | Self::Dashboard(_)) || self.passes_signals_on()
    }

    /// Returns whether the command handles signals itself, and passes them on to a process that it starts.
    pub(crate) fn passes_signals_on(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Follow(_))
    }

    /// Returns whether the command prints a JSON document for each event, on a line of its own.
    pub(crate) fn prints_events(&self) -> bool {
        matches!(self, Self::Follow(_))
    }

    /// Returns the hint for a user who interrupted the command.
    pub(crate) fn after_interruption(&self) -> &'static str {
        match self {
            Self::Push(_) => "sealed and uploaded parts are kept; run the same command again to continue",
            Self::Restore(_) => {
                "the target is complete or absent, and fetched bytes are kept; run the same command again to continue"
            }
            Self::Copy(_) | Self::Tier(_) => "copied parts are kept; run the same command again to continue",
            Self::Prune(_) | Self::Gc(_) => {
                "the next prune completes deletions under way; a lease that is still held expires"
            }
            Self::Import(_) => "what was imported stays; run the same command again to continue",
            Self::Wait(_) | Self::Drain(_) | Self::Announce(_) => "the agent is not affected",
            Self::Agent(_) => {
                "sealed and uploaded parts are kept; the agent continues from there when it is started again"
            }
            _ => "run the same command again",
        }
    }
}

/// Name of the page of `stepvault help` with the options that every command takes.
const OPTIONS_PAGE: &str = "options";

impl Arguments {
    /// Returns the command line whose help shows the options of one command, and names the page of those of all.
    pub(crate) fn command_line() -> clap::Command {
        let page = clap::Command::new(OPTIONS_PAGE).about("The options that every command takes").hide(true);
        let mut command = Self::command().subcommand(page);
        // The global options are copied into every command here.
        command.build();
        with_short_help(command)
    }

    /// Parses the arguments of this process.
    pub(crate) fn of_process() -> Result<Self, clap::Error> {
        Self::from_arg_matches(&Self::command_line().try_get_matches()?)
    }
}

fn with_short_help(command: clap::Command) -> clap::Command {
    if command.get_name() == OPTIONS_PAGE {
        return command;
    }
    let names = command.get_arguments().filter(|argument| argument.is_global_set());
    let names = names.filter_map(|argument| Some(format!("--{}", argument.get_long()?))).join(", ");
    let others = format!("Options of every command ({names}): stepvault help {OPTIONS_PAGE}");
    let after = command.get_after_help().map(|after| format!("\n\n{after}")).unwrap_or_default();
    command
        .after_help(format!("{others}{after}"))
        .mut_args(|argument| if argument.is_global_set() { argument.hide(true) } else { argument })
        .mut_subcommands(with_short_help)
}

/// Returns the list of exit codes that follows the help.
fn exit_status_help() -> String {
    let lines = ExitCode::ALL.iter().map(|(code, meaning)| format!("  {:<4} {meaning}\n", code.number()));
    format!("Exit status:\n{}", lines.collect::<String>().trim_end())
}

#[cfg(test)]
mod tests {
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
        assert_eq!(parse("restore").unwrap_err().kind(), ErrorKind::MissingRequiredArgument);
        assert_eq!(parse("restore --into d --as x").unwrap_err().kind(), ErrorKind::ArgumentConflict);
    }

    #[test]
    fn wrong_values_say_what_to_write() {
        let error = parse("gc --grace 24").unwrap_err().to_string();
        assert!(error.contains("\"24h\""), "{error}");
        let error = parse("verify --sample 20").unwrap_err().to_string();
        assert!(error.contains("write it as 1/20"), "{error}");
        assert_eq!(parse("verify --deep --sample 1/2").unwrap_err().kind(), ErrorKind::ArgumentConflict);
        assert_eq!(parse("list --run ../x").unwrap_err().kind(), ErrorKind::ValueValidation);
        assert_eq!(parse("push d --step 1000000000000").unwrap_err().kind(), ErrorKind::ValueValidation);
    }

    #[test]
    fn the_help_lists_the_exit_codes() {
        let help = Arguments::command().render_long_help().to_string();
        assert!(help.contains("  12   a tier cannot be reached in time"), "{help}");
    }
}
