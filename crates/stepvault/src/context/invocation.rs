//! How a vault's last agent was started, which it records for a later round over what it left.

use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, Record, decode};
use stepvault_core::config::Sources;
use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::{NodePlace, NodeSet, Writer};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::ownership::Parents;
use stepvault_local::vault::Vault;

use super::sources::vault_flag;
use crate::arguments::global::GlobalArguments;

/// How an agent was started. Its configuration holds no credentials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Invocation {
    pub(super) attempt: Option<Attempt>,
    format: u32,
    launch: Option<LaunchName>,
    node: NodeName,
    nodes: NodeSet,
    pub(super) remotes: Option<Vec<RemoteName>>,
    pub(super) run: Option<RunName>,
    pub(super) sources: Sources,
}

impl Record for Invocation {
    const WHAT: &'static str = "record of how the agent was started";

    fn check(&self) -> Result<()> {
        self.writer().map(drop)
    }
}

impl Invocation {
    pub(super) fn new(
        sources: Sources,
        remotes: Option<Vec<RemoteName>>,
        writer: &Writer,
        attempt: Option<Attempt>,
    ) -> Self {
        Self {
            attempt,
            format: FORMAT,
            launch: writer.launch.clone(),
            node: writer.place.node().clone(),
            nodes: writer.place.nodes().clone(),
            remotes,
            run: sources.run.clone(),
            sources,
        }
    }

    /// Reads the record of the last agent from the vault that the command line names. The vault may have another path
    /// than it had then.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when the command line names no vault, or more than a vault, or when no agent has recorded
    /// anything in it.
    pub(super) fn read(global: &GlobalArguments) -> Result<Self> {
        let fault = || Error::new(ErrorKind::Usage, "cannot use the last agent's configuration");
        let given = [
            (global.config.is_some(), "--config"),
            (global.run.is_some(), "--run"),
            (!global.remote.is_empty(), "--remote"),
            (global.node.is_some(), "--node"),
            (global.nodes.is_some(), "--nodes"),
        ];
        if let Some((_, flag)) = given.into_iter().find(|(is_given, _)| *is_given) {
            return Err(fault()
                .because(format!("{flag} is given too"))
                .hint("give --local alone, or all of the configuration"));
        }
        let (directory, flag) = vault_flag(global)?.ok_or_else(|| {
            fault().because("no vault is given").hint("give the vault's directory: --local DIR")
        })?;
        // Whether the directories above may be open to others is recorded inside. The vault itself must be the user's.
        let vault = Vault::open_below(&directory, Parents::Shared)?;
        let vault = vault.ok_or_else(|| fault().on(directory.display()).because("it is not a vault"))?;
        let mut invocation = Self::of_vault(&vault)?.ok_or_else(|| {
            fault()
                .on(directory.display())
                .because("no agent has recorded how it was started")
                .hint("give the configuration: --config FILE")
        })?;
        invocation.sources.flags.push(flag);
        Ok(invocation)
    }

    /// Returns the record of the last agent; `None` if no agent has made one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn of_vault(vault: &Vault) -> Result<Option<Self>> {
        let bytes = vault.read_invocation()?;
        bytes.map(|bytes| decode(&bytes, &vault.root().display().to_string())).transpose()
    }

    /// Returns the identity under which that agent wrote steps.
    pub(super) fn writer(&self) -> Result<Writer> {
        Ok(Writer {
            place: NodePlace::new(self.node.clone(), self.nodes.clone())?,
            launch: self.launch.clone(),
            shared: false,
        })
    }
}
