//! The effective configuration, and what the command line selects from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use itertools::Itertools as _;
use serde::{Deserialize, Serialize};
use stepvault_agent::control::Client;
use stepvault_core::codec::{FORMAT, Record, decode, encode};
use stepvault_core::config::{Config, FlagOverride, LogFormat, RunSettings, Sources, faults_error, load};
use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName};
use stepvault_core::launch::LaunchName;
use stepvault_core::launcher::Launcher;
use stepvault_core::nodes::{NodePlace, NodeSet, Writer};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::profile::ProfileSet;
use stepvault_local::ownership::Parents;
use stepvault_local::vault::Vault;
use stepvault_remote::open::OpenOptions;

use super::remote_choice::with_name_letters;
use super::sources::{Gathered, absolute, flag_or_variable, gather, vault_flag};
use crate::arguments::global::GlobalArguments;
use crate::session::Session;

/// The configuration, with the selected run and remotes.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The effective configuration.
    pub(crate) config: Config,
    given: Gathered,
    /// Whether a remote that does not answer at all is waited for like one that goes away later: others depend on this
    /// command, or it cannot simply be repeated.
    is_patient: bool,
    /// The writer and the attempt that count instead of the job's launcher: of the vault's last agent, or of the demo.
    pub(super) last: Option<(Writer, Option<Attempt>)>,
}

impl Settings {
    /// Loads the configuration that the session's arguments select, and prints its warnings.
    pub(crate) fn load(session: &Session) -> Result<Self> {
        Ok(Self::load_silently(session)?.introduced(session))
    }

    /// Loads it without printing its warnings, after it was loaded before.
    pub(crate) fn load_silently(session: &Session) -> Result<Self> {
        Self::loaded(gather(&session.global)?)
    }

    /// Loads it with these remotes, by name or URL, in place of those that the arguments name, in the given order.
    pub(crate) fn load_of_remotes(session: &Session, remote: Vec<String>) -> Result<Self> {
        let global = GlobalArguments { remote, ..session.global.clone() };
        Self::loaded(gather(&global)?)
    }

    /// Loads the configuration with which the last agent of the vault was started that `--local` names, with its node,
    /// launch and attempt, and prints the warnings.
    ///
    /// # Errors
    /// As for [`Invocation::read`].
    pub(crate) fn of_last_agent(session: &Session) -> Result<Self> {
        let last = Invocation::read(&session.global)?;
        let writer = (last.writer()?, last.attempt);
        let sources = Sources { run: last.run, ..last.sources };
        let given = Gathered { sources, remotes: last.remotes };
        let settings = Self { last: Some(writer), ..Self::loaded(given)? };
        Ok(settings.introduced(session))
    }

    /// Loads the configuration that the session's arguments select, with the run that the vault's last agent served beside
    /// those of the file, such as one of `stepvault run --run NAME --into DIR`, and with that agent's values of variables
    /// that are not set here. Blocks.
    ///
    /// # Errors
    /// When the configuration is invalid, the vault cannot be opened, or its record cannot be used.
    pub(crate) fn load_with_last_agent(session: &Session) -> Result<Self> {
        let mut given = gather(&session.global)?;
        if given.sources.run.is_none() {
            add_last_agent(&mut given.sources)?;
        }
        Ok(Self::loaded(given)?.introduced(session))
    }

    fn loaded(given: Gathered) -> Result<Self> {
        Ok(Self { config: load(&given.sources)?, given, is_patient: false, last: None })
    }

    /// Waits for a remote that has not answered yet as long as for any other.
    pub(crate) fn patient(self) -> Self {
        Self { is_patient: true, ..self }
    }

    /// Returns how stores are opened.
    pub(crate) fn open_options(&self) -> OpenOptions {
        OpenOptions { gives_up_soon: !self.is_patient, ..OpenOptions::default() }
    }

    /// Prints the node and the warnings.
    pub(crate) fn introduced(self, session: &Session) -> Self {
        // A node that cannot be determined is an error of the commands that need it.
        if let Ok(writer) = self.writer() {
            session.output.name_node(&writer.place);
            let node = writer.place.node();
            if self.config.agent.log_format == LogFormat::Json {
                session.output.write_records(node);
            }
            session.output.start_traces(&self.config, node);
            if let Some(metrics) = &session.output.metrics {
                metrics.set_subject(node.clone(), self.run().ok().map(|run| run.name));
            }
        }
        for warning in &self.config.warnings {
            session.output.warn(&match &warning.hint {
                Some(hint) => format!("{warning} ({hint})"),
                None => warning.to_string(),
            });
        }
        self
    }

    /// Returns the record of how an agent with these settings was started. `None`, with a warning in the log, if there can
    /// be none: that is no reason not to save checkpoints.
    pub(crate) fn invocation(&self) -> Option<Vec<u8>> {
        let Gathered { sources, remotes } = self.given.clone();
        let record = || {
            let Writer { place, launch, .. } = self.writer()?;
            encode(&Invocation {
                attempt: self.attempt(None)?,
                format: FORMAT,
                launch,
                node: place.node().clone(),
                nodes: place.nodes().clone(),
                remotes,
                run: sources.run.clone(),
                sources,
            })
        };
        let warn =
            |error: &Error| tracing::warn!(%error, "how the agent was started is not recorded in the vault");
        record().inspect_err(warn).ok()
    }

    /// Adds a path that the command has determined by itself to [`invocation`](Self::invocation), unless it is not UTF-8.
    pub(crate) fn record_path(&mut self, key: &str, path: &Path) {
        let flag = absolute(path).map(|path| FlagOverride::text(key, path, "--into"));
        self.given.sources.flags.extend(flag);
    }

    /// Returns the attempt from the flag, else the one that the last agent was given, if it counts, else that of
    /// `STEPVAULT_ATTEMPT`.
    pub(crate) fn attempt(&self, flag: Option<Attempt>) -> Result<Option<Attempt>> {
        match &self.last {
            Some((_, attempt)) => Ok(flag.or(*attempt)),
            None => attempt(flag),
        }
    }

    /// Builds settings from sources that the command itself provides, for a node that writes its steps alone.
    pub(crate) fn of(sources: Sources, node: NodeName) -> Result<Self> {
        let given = Gathered { sources, remotes: None };
        Ok(Self { last: Some((Writer::single_node(node), None)), ..Self::loaded(given)? })
    }

    /// Returns the built-in and the configured profiles.
    pub(crate) fn profiles(&self) -> Result<Arc<ProfileSet>> {
        stepvault_agent::profiles(&self.config)
            .map(Arc::new)
            .map_err(|faults| faults_error("the configuration is invalid", &faults))
    }

    /// Returns the named run, or the only configured one.
    pub(crate) fn run(&self) -> Result<RunSettings> {
        if let Some(name) = &self.given.sources.run {
            return Ok(self.config.run(name));
        }
        let fault = |why: &str, hint: String| {
            Err(Error::new(ErrorKind::Usage, "no run selected").because(why).hint(hint))
        };
        match self.config.runs.as_slice() {
            [only] => Ok(only.clone()),
            [] => fault("none is given or configured", "give --run NAME".to_owned()),
            several => {
                let names = several.iter().map(|run| &run.name).join(", ");
                fault("several are configured", format!("select one with --run: {names}"))
            }
        }
    }

    /// Returns the settings with this run selected.
    pub(crate) fn with_run(mut self, run: RunName) -> Self {
        self.given.sources.run = Some(run);
        self
    }

    /// Returns the settings with these remotes selected, which are configured.
    pub(crate) fn with_remotes(mut self, names: Vec<RemoteName>) -> Self {
        self.given.remotes = Some(names);
        self
    }

    /// Returns the run that the command line names. Without one the agent serves all configured runs.
    pub(crate) fn named_run(&self) -> Option<&RunName> {
        self.given.sources.run.as_ref()
    }

    /// Returns the remotes that the command line names.
    pub(crate) fn named_remotes(&self) -> Option<&[RemoteName]> {
        self.given.remotes.as_deref()
    }

    /// Returns the remotes in the order of preference: the named ones, else the run's.
    pub(crate) fn remotes(&self, run: &RunSettings) -> Vec<RemoteSettings> {
        self.named_or(|| self.config.remotes_of(run))
    }

    /// Returns the remotes that the command line names, else all that are configured, for any run.
    pub(crate) fn all_remotes(&self) -> Vec<RemoteSettings> {
        self.named_or(|| self.config.remotes.iter().collect())
    }

    fn named_or<'a>(&'a self, others: impl FnOnce() -> Vec<&'a RemoteSettings>) -> Vec<RemoteSettings> {
        let named = self.named_remotes();
        let named = named.map(|names| names.iter().filter_map(|name| self.config.remote(name)).collect());
        named.unwrap_or_else(others).into_iter().cloned().collect()
    }

    /// # Errors
    /// If a run has no remote to which its steps are uploaded.
    pub(crate) fn require_upload_remote(&self, run: &RunSettings) -> Result<()> {
        self.require_remote(run)?;
        let selective = self.remotes(run);
        match selective.first().filter(|_| selective.iter().all(RemoteSettings::is_selective)) {
            None => Ok(()),
            Some(remote) => Err(Error::new(ErrorKind::Usage, "cannot upload to the selected remote")
                .on(&remote.name)
                .because("it is a selective remote: steps are copied to it from another one")
                .hint("select the remote that feeds it, and run 'stepvault tier'")),
        }
    }

    /// # Errors
    /// If a run has no remote.
    pub(crate) fn require_remote(&self, run: &RunSettings) -> Result<()> {
        if !self.remotes(run).is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Usage, "no remote selected").because("none is given or configured").hint(
            "give --remote URL, such as --remote s3://bucket/prefix, or a configuration with --config FILE",
        ))
    }

    /// Returns the vault's directory, if one is configured.
    pub(crate) fn local_directory(&self) -> Option<PathBuf> {
        self.config.local.directory.clone()
    }

    /// Returns whether the directories above the vault may be writable by other users.
    pub(crate) fn vault_parents(&self) -> Parents {
        Parents::allowed_if(self.config.local.allow_shared_parents)
    }

    /// Returns a client for the control socket of an agent with this configuration; `None` if it has no socket.
    pub(crate) fn control(&self) -> Option<Client> {
        self.control_in(self.local_directory().as_deref())
    }

    /// As [`control`](Self::control), of the agent with this vault.
    pub(crate) fn control_in(&self, vault: Option<&Path>) -> Option<Client> {
        self.config.agent.control_socket.path(vault).map(Client::new)
    }

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
        let launch = flag_or_variable(None, "STEPVAULT_LAUNCH")?.or_else(|| launcher.launch.clone());
        Ok(Writer {
            place: place(self.config.node.clone(), self.config.nodes.clone(), launcher, &host)?,
            launch,
            shared: false,
        })
    }
}

/// Adds the run that the vault's last agent served, and that agent's values of variables that are not set here.
fn add_last_agent(sources: &mut Sources) -> Result<()> {
    let mut unset = sources.variables_of_names();
    unset.retain(|name| sources.environment.iter().all(|(set, _)| set != name));
    // No name of a run says where the vault is.
    let mut nameless = sources.clone();
    let placeholders = unset.iter().map(|name| (name.clone(), "0".to_owned()));
    nameless.environment.extend(placeholders);
    let local = load(&nameless)?.local;
    let parents = Parents::allowed_if(local.allow_shared_parents);
    let opened = |directory: PathBuf| Vault::open_below(&directory, parents);
    let Some(vault) = local.directory.map(opened).transpose()?.flatten() else {
        return Ok(());
    };
    let Some(last) = Invocation::of_vault(&vault)? else {
        return Ok(());
    };
    let flags = last.sources.flags.into_iter();
    sources.flags.extend(flags.filter(|flag| flag.key.starts_with("run.")));
    if !unset.is_empty() {
        sources.run = last.run;
    }
    let variables = last.sources.environment.into_iter();
    sources.environment.extend(variables.filter(|(name, _)| unset.contains(name)));
    Ok(())
}

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
    fn of_vault(vault: &Vault) -> Result<Option<Self>> {
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

/// Returns the attempt from the flag, else from `STEPVAULT_ATTEMPT`.
pub(crate) fn attempt(flag: Option<Attempt>) -> Result<Option<Attempt>> {
    flag_or_variable(flag, "STEPVAULT_ATTEMPT")
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
    fn without_a_run_the_error_says_how_to_name_one() {
        let settings = Settings::loaded(Gathered::default()).unwrap();
        let error = settings.run().unwrap_err();
        assert_eq!(
            crate::output::human::error(&error),
            "error: no run selected: none is given or configured\n  hint: give --run NAME"
        );
    }

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
