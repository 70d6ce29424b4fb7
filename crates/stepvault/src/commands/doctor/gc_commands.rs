//! The `stepvault gc` commands that remedies quote.

use stepvault_core::Result;
use stepvault_core::ids::{RemoteName, RunName};
use stepvault_core::keys::RunKeys;
use stepvault_core::words::shell_word;
use stepvault_engine::doctor::left_uploads::GcCommand;
use stepvault_engine::doctor::local::RunToCheck;
use stepvault_engine::explain::quoted;

use crate::context::{Settings, choose_remotes, given_remotes};
use crate::session::Session;

/// The runs, and the parts of the command for each.
#[derive(Debug)]
pub(super) struct GcCommands {
    /// Empty if no run has a name.
    runs: Vec<RunName>,
    config: Option<String>,
    /// The remotes that the command line or its variable names, as given.
    given: Vec<(RemoteName, String)>,
}

/// Collects the parts that are common to the commands of all remotes.
pub(super) fn gc_commands(session: &Session, settings: &Settings, runs: &[RunToCheck]) -> Result<GcCommands> {
    let global = &session.global;
    let (given, _) = given_remotes(global)?;
    let chosen = choose_remotes(&given, &settings.config.remotes)?;
    let names = chosen.into_iter().map(|remote| remote.name);
    Ok(GcCommands {
        runs: runs.iter().filter_map(|run| run.name.clone()).collect(),
        config: global.config.as_deref().map(quoted),
        given: names.zip(given).collect(),
    })
}

impl GcCommands {
    /// Returns the runs to check on this remote.
    pub(super) fn of(&self, remote: &RemoteName) -> Vec<GcCommand> {
        if self.runs.is_empty() {
            return vec![GcCommand {
                keys: None,
                command: self.command(remote, "NAME") + ", with the run name that the path starts with",
            }];
        }
        let of_run = |run: &RunName| GcCommand {
            keys: Some(RunKeys::new(run.clone())),
            command: self.command(remote, &shell_word(run.as_str())),
        };
        self.runs.iter().map(of_run).collect()
    }

    fn command(&self, remote: &RemoteName, run: &str) -> String {
        let given = self.given.iter().find(|(name, _)| name == remote);
        let remote = given.map_or(remote.as_str(), |(_, text)| text.as_str());
        let config = self.config.iter().map(|path| format!(" --config {path}"));
        format!("stepvault gc{} --run {run} --remote {}", config.collect::<String>(), shell_word(remote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_what_the_command_line_named() {
        let name = |name: &str| RemoteName::new(name).unwrap();
        let gc_commands = GcCommands {
            runs: vec![RunName::new("grpo/checkpoints").unwrap(), RunName::new("sft").unwrap()],
            config: Some("'/etc/step vault.toml'".to_owned()),
            given: vec![(name("other"), "other=s3://b/p?region=eu".to_owned())],
        };
        let commands = |remote| -> Vec<String> {
            let commands = gc_commands.of(&name(remote)).into_iter();
            commands.map(|run| run.command).collect()
        };
        assert_eq!(
            commands("main"),
            [
                "stepvault gc --config '/etc/step vault.toml' --run grpo/checkpoints --remote main",
                "stepvault gc --config '/etc/step vault.toml' --run sft --remote main",
            ]
        );
        assert!(commands("other")[1].ends_with("--run sft --remote 'other=s3://b/p?region=eu'"));
    }

    #[test]
    fn without_a_run_everything_is_looked_at() {
        let gc_commands = GcCommands { runs: Vec::new(), config: None, given: Vec::new() };
        let commands = gc_commands.of(&RemoteName::new("main").unwrap());
        assert_eq!(commands.len(), 1);
        assert!(commands[0].keys.is_none());
        assert_eq!(
            commands[0].command,
            "stepvault gc --run NAME --remote main, with the run name that the path starts with"
        );
    }
}
