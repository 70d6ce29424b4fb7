//! `remote forget`: removes the vault's records of a remote.

use clap::Subcommand;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::{Error, ErrorKind, RemoteName, Result};
use stepvault_engine::tier::cache::{Forgotten, forget};

use crate::arguments::values::checked;
use crate::context::{DefaultVault, Settings, open_vault};
use crate::exit_code::ExitCode;
use crate::output::{Report, human};
use crate::session::Session;

/// Change the vault's records of a remote
#[derive(Debug, Subcommand)]
pub(crate) enum RemoteAction {
    /// Forget the archive at a remote, after it was emptied or replaced on purpose
    ///
    /// The vault records the archive that it found at each remote of a run, and the steps that are durable there. While
    /// that archive is missing, the remote counts as unreachable, as when its filesystem is not mounted. After
    /// 'forget', the next push reads the remote again, creates an archive if there is none, and uploads the steps that
    /// the vault still has. Nothing is deleted on the remote. Without --run this applies to every run in the vault.
    /// Stop the agent first.
    Forget {
        /// Name of the remote
        #[arg(value_name = "NAME", value_parser = checked::<RemoteName>)]
        name: RemoteName,
    },
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ForgetDocument {
    /// The remote's name.
    remote: String,
    /// One entry for each run of which the vault had records.
    runs: Vec<Forgotten>,
}

impl Report for ForgetDocument {
    fn human(&self) -> String {
        let remote = &self.remote;
        if self.runs.is_empty() {
            return format!("the vault has no records of {remote}");
        }
        let line = |forgotten: &Forgotten| {
            let (run, steps) = (&forgotten.run, human::count(forgotten.steps, "step"));
            format!(
                "forgot the archive of '{run}' at {remote} with {steps}; the next push reads the remote again"
            )
        };
        self.runs.iter().map(line).join("\n")
    }
}

/// Runs the command.
pub(crate) async fn run(session: &Session, action: &RemoteAction) -> Result<ExitCode> {
    let RemoteAction::Forget { name } = action;
    let settings = Settings::load(session)?;
    let vault = open_vault(&settings, DefaultVault::None).await?;
    let vault = vault.ok_or_else(|| {
        Error::new(ErrorKind::Usage, "no vault with records of a remote")
            .because("no vault is given or configured, or the directory holds none")
            .hint("give the vault's directory with --local DIR")
    })?;
    let _lock = vault.lock()?;
    let runs = match settings.named_run() {
        Some(run) => vec![run.clone()],
        None => vault.runs()?,
    };
    let mut document = ForgetDocument { remote: name.to_string(), runs: Vec::new() };
    for run in runs {
        let forgotten = forget(&vault, &run, name).await?;
        if forgotten.archive || forgotten.steps > 0 {
            document.runs.push(forgotten);
        }
    }
    session.output.result(&document)?;
    Ok(ExitCode::Done)
}
