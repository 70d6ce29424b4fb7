//! Collects the sources of the configuration: file, environment variables and flags.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use itertools::Itertools as _;
use stepvault_core::config::{FileText, FlagOverride, HOSTNAME, Sources, check};
use stepvault_core::{Error, ErrorKind, RemoteName, Result};

use super::remote_choice::choose_remotes;
use crate::arguments::global::GlobalArguments;

/// Maximum size of a configuration file.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// The default name of the configuration file.
pub(crate) const FILE_NAME: &str = "stepvault.toml";
const SYSTEM_FILE: &str = "/etc/stepvault/stepvault.toml";

/// The sources, and the remotes that flags and variables select.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gathered {
    /// The sources of the configuration.
    pub(crate) sources: Sources,
    /// The named remotes, if any.
    pub(crate) remotes: Option<Vec<RemoteName>>,
}

/// Collects all sources. A variable that belongs to a flag counts as that flag.
pub(crate) fn gather(global: &GlobalArguments) -> Result<Gathered> {
    let named = match &global.config {
        Some(path) => Some(path.clone()),
        None => variable("STEPVAULT_CONFIG")?.map(PathBuf::from),
    };
    let file = match named {
        Some(path) => Some(read_named(&path)?),
        None => search()?,
    };
    let mut flags: Vec<FlagOverride> = vault_flag(global)?.map(|(_, flag)| flag).into_iter().collect();
    if let Some(node) = &global.node {
        flags.push(FlagOverride::text("node", node.to_string(), "--node"));
    }
    if let Some(nodes) = &global.nodes {
        flags.push(FlagOverride::text("nodes", nodes.iter().join(","), "--nodes"));
    }
    let run = flag_or_variable(global.run.clone(), "STEPVAULT_RUN")?;
    let mut sources = Sources { file, environment: environment()?, flags, run };
    for name in sources.variables_of_names() {
        let value = if name == HOSTNAME {
            Some(rustix::system::uname().nodename().to_string_lossy().into_owned())
        } else {
            std::env::var(&name).ok()
        };
        sources.environment.extend(value.map(|value| (name, value)));
    }
    let (given, origin) = given_remotes(global)?;
    let mut remotes = None;
    if !given.is_empty() {
        let configured = check(&sources).config;
        let configured = configured.map(|config| config.remotes).unwrap_or_default();
        let chosen = choose_remotes(&given, &configured)?;
        for remote in &chosen {
            let key = format!("remote.\"{}\".url", remote.name);
            let url = remote.url.as_ref();
            sources.flags.extend(url.map(|url| FlagOverride::text(key, url, origin)));
        }
        remotes = Some(chosen.into_iter().map(|remote| remote.name).collect());
    }
    Ok(Gathered { sources, remotes })
}

/// Returns the vault that the flag or its variable names, and the key that it sets.
pub(super) fn vault_flag(global: &GlobalArguments) -> Result<Option<(PathBuf, FlagOverride)>> {
    let (path, flag) = match (&global.local, variable("STEPVAULT_LOCAL")?) {
        (Some(path), _) => (path.clone(), "--local"),
        (None, Some(path)) => (PathBuf::from(path), "STEPVAULT_LOCAL"),
        (None, None) => return Ok(None),
    };
    let flag = FlagOverride::text("local.directory", absolute(&path)?, flag);
    Ok(Some((path, flag)))
}

/// Returns the remotes as given, and the flag or variable that gave them.
pub(crate) fn given_remotes(global: &GlobalArguments) -> Result<(Vec<String>, &'static str)> {
    if !global.remote.is_empty() {
        return Ok((global.remote.clone(), "--remote"));
    }
    // A URL cannot contain a space, but may contain a comma.
    let text = variable("STEPVAULT_REMOTE")?.unwrap_or_default();
    let given = text.split_whitespace().map(str::to_owned).collect();
    Ok((given, "STEPVAULT_REMOTE"))
}

/// Reads a variable that belongs to a flag. An empty value is an error: it must not count as not set.
fn variable(name: &str) -> Result<Option<String>> {
    let fault = |why| Err(unusable(name).because(why).hint("unset it, or give it a value"));
    match std::env::var(name) {
        Ok(text) if text.trim().is_empty() => fault("it is empty"),
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => fault("it is not UTF-8"),
    }
}

/// Returns the value of a flag, else that of the variable that belongs to it.
pub(super) fn flag_or_variable<T: FromStr<Err = Error>>(flag: Option<T>, name: &str) -> Result<Option<T>> {
    match (flag, variable(name)?) {
        (None, Some(text)) => {
            text.parse().map(Some).map_err(|error: Error| error.hint(format!("correct {name}")))
        }
        (flag, _) => Ok(flag),
    }
}

fn unusable(variable: &str) -> Error {
    Error::new(ErrorKind::Usage, "cannot use the environment variable").on(variable)
}

/// Returns the variables that may set configuration keys.
fn environment() -> Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with("STEPVAULT_")) else {
            continue;
        };
        let value = value.to_str();
        let value = value.ok_or_else(|| unusable(name).because("it is not UTF-8"))?;
        variables.push((name.to_owned(), value.to_owned()));
    }
    variables.sort_unstable();
    Ok(variables)
}

/// Checks that an input from the command line exists: a mistyped path must not count as an empty one.
pub(crate) fn check_presence(what: &str, path: &Path) -> Result<()> {
    path.symlink_metadata().map(drop).map_err(|error| {
        let fault = Error::new(ErrorKind::Usage, what).on(path.display());
        if error.kind() == std::io::ErrorKind::NotFound {
            fault.because("no such file or directory")
        } else {
            fault.caused_by(error)
        }
    })
}

/// Resolves a path from the command line against the working directory.
pub(crate) fn absolute(path: &Path) -> Result<String> {
    let fault = || Error::new(ErrorKind::Usage, "invalid path").on(path.display());
    let absolute = std::path::absolute(path).map_err(|error| fault().caused_by(error))?;
    absolute.into_os_string().into_string().map_err(|_| fault().because("it is not UTF-8"))
}

/// Reads an explicitly named file, which must exist. It is trusted regardless of its owner.
fn read_named(path: &Path) -> Result<FileText> {
    let full = in_full(path)?;
    let bytes = stepvault_local::durable::read_bounded(&full, MAX_FILE_BYTES)
        .map_err(|error| error.with_kind(ErrorKind::Usage))?;
    let missing = || fault(path).because("no such file").hint("run 'stepvault init' to create one");
    text_of(full, bytes.ok_or_else(missing)?)
}

/// Returns the first file found in the default locations. It is used only if no other user can have written it, because
/// it determines where steps and credentials are sent.
fn search() -> Result<Option<FileText>> {
    for path in candidates() {
        // A process started as another user often still has root's HOME; whether a file exists there is unknown.
        if is_hidden(&path) {
            let path = path.display();
            tracing::warn!(%path, "permission denied: this configuration file is ignored");
            continue;
        }
        let path = in_full(&path)?;
        let bytes = stepvault_local::ownership::read_configuration(&path, MAX_FILE_BYTES)
            .map_err(|error| error.with_kind(ErrorKind::Usage))?;
        if let Some(bytes) = bytes {
            return text_of(path, bytes).map(Some);
        }
    }
    Ok(None)
}

/// Returns whether this user may not search a directory above `path`.
fn is_hidden(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

fn candidates() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|directory| !directory.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".config")));
    let mut paths = vec![PathBuf::from(FILE_NAME)];
    paths.extend(own.map(|directory| directory.join("stepvault").join(FILE_NAME)));
    paths.push(PathBuf::from(SYSTEM_FILE));
    paths
}

fn fault(path: &Path) -> Error {
    Error::new(ErrorKind::Usage, "cannot read the configuration").on(path.display())
}

/// Returns the absolute path, so that messages and relative paths in the file do not depend on the working directory.
fn in_full(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| fault(path).caused_by(error))
}

fn text_of(path: PathBuf, bytes: Vec<u8>) -> Result<FileText> {
    let text = String::from_utf8(bytes).map_err(|_| fault(&path).because("it is not UTF-8"))?;
    Ok(FileText { path, text })
}
