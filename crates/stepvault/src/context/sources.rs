//! Where the configuration comes from: which file, which variables, which flags.

use std::path::{Path, PathBuf};

use stepvault_core::config::{FileText, FlagOverride, Sources, check};
use stepvault_core::ids::{NodeName, RemoteName, RunName};
use stepvault_core::{Error, ErrorKind, Result};

use super::remote_choice::choose_remotes;
use crate::arguments::GlobalArguments;

/// Largest configuration file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// The file's name where nobody gives one.
pub(crate) const FILE_NAME: &str = "stepvault.toml";
const SYSTEM_FILE: &str = "/etc/stepvault/stepvault.toml";

/// The sources, and what flags and variables choose among what is configured.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// For the configuration.
    pub(crate) sources: Sources,
    /// The run, when one was named.
    pub(crate) run: Option<RunName>,
    /// The remotes, when some were named.
    pub(crate) remotes: Option<Vec<RemoteName>>,
}

/// Gathers everything. The variables of the command line's own flags count like those flags.
pub(crate) fn gather(global: &GlobalArguments) -> Result<Gathered> {
    let named = match &global.config {
        Some(path) => Some(path.clone()),
        None => variable("STEPVAULT_CONFIG")?.map(PathBuf::from),
    };
    let file = match named {
        Some(path) => Some(read_named(&path)?),
        None => search()?,
    };
    let mut flags = Vec::new();
    let mut flag = |key: &str, flag: &str, value: String| {
        let value = toml::Value::String(value);
        flags.push(FlagOverride {
            key: key.to_owned(),
            value,
            flag: flag.to_owned(),
        });
    };
    match (&global.local, variable("STEPVAULT_LOCAL")?) {
        (Some(path), _) => flag("local.directory", "--local", absolute(path)?),
        (None, Some(path)) => flag("local.directory", "STEPVAULT_LOCAL", absolute(Path::new(&path))?),
        (None, None) => {}
    }
    if let Some(node) = &global.node {
        flag("node", "--node", node.to_string());
    }
    if let Some(nodes) = &global.nodes {
        let list: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
        flag("nodes", "--nodes", list.join(","));
    }
    let run = match (&global.run, variable("STEPVAULT_RUN")?) {
        (Some(run), _) => Some(run.clone()),
        (None, Some(name)) => Some(
            name.parse()
                .map_err(|error: Error| error.hint("STEPVAULT_RUN holds it"))?,
        ),
        (None, None) => None,
    };
    let mut sources = Sources {
        file,
        environment: environment()?,
        flags,
    };
    let (given, origin) = given_remotes(global)?;
    let mut remotes = None;
    if !given.is_empty() {
        let configured = check(&sources)
            .config
            .map(|config| config.remotes)
            .unwrap_or_default();
        let chosen = choose_remotes(&given, &configured)?;
        for (name, url) in chosen
            .iter()
            .filter_map(|remote| Some((&remote.name, remote.url.as_ref()?)))
        {
            let key = format!("remote.\"{name}\".url");
            let value = toml::Value::String(url.clone());
            sources.flags.push(FlagOverride {
                key,
                value,
                flag: origin.to_owned(),
            });
        }
        remotes = Some(chosen.into_iter().map(|remote| remote.name).collect());
    }
    Ok(Gathered {
        sources,
        run,
        remotes,
    })
}

/// The remotes as they are given, and by which of the two.
pub(crate) fn given_remotes(global: &GlobalArguments) -> Result<(Vec<String>, &'static str)> {
    if !global.remote.is_empty() {
        return Ok((global.remote.clone(), "--remote"));
    }
    // A URL has no space in it, and may well have a comma.
    let text = variable("STEPVAULT_REMOTE")?.unwrap_or_default();
    let given = text.split_whitespace().map(str::to_owned).collect();
    Ok((given, "STEPVAULT_REMOTE"))
}

/// A variable of the command line's own. An empty one is a mistake that must not pass for 'not given'.
pub(crate) fn variable(name: &str) -> Result<Option<String>> {
    let fault = |why: &str| {
        Err(
            Error::new(ErrorKind::Usage, "cannot use the environment variable")
                .on(name)
                .because(why)
                .hint("unset it, or give it a value"),
        )
    };
    match std::env::var(name) {
        Ok(text) if text.trim().is_empty() => fault("it is empty"),
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => fault("it is not UTF-8"),
    }
}

/// The variables that may set keys.
fn environment() -> Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with("STEPVAULT_")) else {
            continue;
        };
        let value = value.to_str().ok_or_else(|| {
            Error::new(ErrorKind::Usage, "cannot use the environment variable")
                .on(name)
                .because("it is not UTF-8")
        })?;
        variables.push((name.to_owned(), value.to_owned()));
    }
    variables.sort_unstable();
    Ok(variables)
}

/// A path from the command line starts where the program was started.
pub(crate) fn absolute(path: &Path) -> Result<String> {
    let fault = || Error::new(ErrorKind::Usage, "not a path").on(path.display());
    let absolute = std::path::absolute(path).map_err(|error| fault().caused_by(error))?;
    absolute
        .into_os_string()
        .into_string()
        .map_err(|_| fault().because("it is not UTF-8"))
}

/// A file that somebody named has to be there.
fn read_named(path: &Path) -> Result<FileText> {
    read(path)?.ok_or_else(|| {
        Error::new(ErrorKind::Usage, "cannot read the configuration")
            .on(path.display())
            .because("there is no such file")
            .hint("'stepvault init' writes one")
    })
}

fn search() -> Result<Option<FileText>> {
    for path in candidates() {
        // A process that was started as another user often has root's HOME still. Whether there is a file cannot be told.
        if is_hidden(&path) {
            let path = path.display();
            tracing::warn!(%path, "this user may not look for a configuration there: it goes on without that one");
            continue;
        }
        if let Some(file) = read(&path)? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Whether a directory above is closed to this user.
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

fn read(path: &Path) -> Result<Option<FileText>> {
    let fault = || Error::new(ErrorKind::Usage, "cannot read the configuration").on(path.display());
    // An absolute path, so that messages and relative paths inside hold wherever they are read.
    let path = std::path::absolute(path).map_err(|error| fault().caused_by(error))?;
    let bytes = stepvault_local::durable::read_bounded(&path, MAX_FILE_BYTES)
        .map_err(|error| error.with_kind(ErrorKind::Usage))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let text = String::from_utf8(bytes).map_err(|_| fault().because("it is not UTF-8"))?;
    Ok(Some(FileText { path, text }))
}
