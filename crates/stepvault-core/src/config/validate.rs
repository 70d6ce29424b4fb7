//! Checks that span several tables, which may contradict each other, and the directories that they name.

use std::path::{Component, Path, PathBuf};

use super::finding::nearest;
use super::key::KeyPath;
use super::merge::Merged;
use super::model::{Completion, Config, RunSettings};
use crate::ids::{RemoteName, RunName};

/// Checks everything that involves several tables.
pub(super) fn check_all(config: &Config, selected: Option<&RunName>, merged: &mut Merged) {
    check_distinct_remotes(config, merged);
    check_selections(config, merged);
    check_places(config, merged);
    for run in &config.runs {
        check_clean_source(config, run, merged);
        check_run_remotes(config, run, merged);
        // A selected run is served alone.
        if selected.is_none() {
            check_twins(config, run, merged);
        }
    }
}

fn check_distinct_remotes(config: &Config, merged: &mut Merged) {
    for (index, remote) in config.remotes.iter().enumerate() {
        let mut before = config.remotes[..index].iter();
        let same = before.find(|other| other.url == remote.url && other.endpoint == remote.endpoint);
        if let Some(other) = same {
            let why = format!("the remote '{}' has this URL already", other.name);
            let hint = "remove one of them: two names for one location would count one copy twice";
            merged.fault(&KeyPath::of(&["remote", remote.name.as_str(), "url"]), why, hint);
        }
    }
}

/// Checks that each selective remote gets its steps from a remote to which they are uploaded.
fn check_selections(config: &Config, merged: &mut Merged) {
    for remote in &config.remotes {
        let Some(selection) = &remote.selection else { continue };
        let from = &selection.from;
        let (why, hint) = match config.remote(from) {
            Some(other) if other.name == remote.name => (
                "it names the remote itself".to_owned(),
                "name another remote, to which the steps are uploaded",
            ),
            Some(other) if other.is_selective() => (
                format!("'{from}' gets its own steps from another remote"),
                "name a remote without from, to which the steps are uploaded",
            ),
            Some(_) => continue,
            None if merged.names("remote").iter().any(|name| name == from.as_str()) => continue,
            None => {
                let hint = unknown_remote_hint(from, config);
                let key = KeyPath::of(&["remote", remote.name.as_str(), "from"]);
                merged.fault(&key, format!("there is no remote '{from}'"), hint);
                continue;
            }
        };
        merged.fault(&KeyPath::of(&["remote", remote.name.as_str(), "from"]), why, hint);
    }
}

/// Checks that stepvault writes nothing into directories that trainers write and scan, and vice versa.
fn check_places(config: &Config, merged: &mut Merged) {
    let places = places(config);
    for (index, place) in places.iter().enumerate() {
        for other in &places[..index] {
            if place.watched && other.watched {
                continue;
            }
            let why = if place.path == other.path {
                format!("it is also {}", other.what)
            } else if place.path.starts_with(&other.path) {
                format!("it lies inside {} ({})", other.what, other.path.display())
            } else if other.path.starts_with(&place.path) {
                format!("{} lies inside it ({})", other.what, other.path.display())
            } else {
                continue;
            };
            let hint = "use separate directories, none inside another, and keep the vault on the trainer's filesystem";
            merged.fault(&place.key, why, hint);
        }
    }
}

/// Checks that the trainer's steps are removed only if a profile defines what the trainer needs, a required remote has
/// them, and the local tier's rules limit how long they stay.
fn check_clean_source(config: &Config, run: &RunSettings, merged: &mut Merged) {
    if !run.clean_source {
        return;
    }
    let mut fault = |why, hint| {
        merged.fault(&KeyPath::of(&["run", run.name.as_str(), "clean-source"]), why, hint);
    };
    if !matches!(run.complete, Completion::Auto(_)) {
        let why = "it requires a profile, which defines what the trainer can do without";
        fault(why, "set complete = \"auto\", or remove it");
    }
    if run.keep_local.is_unset() && config.local.limits.is_unset() {
        let why = "the local tier keeps every step, so none of the trainer's own steps would ever be removed";
        let hint =
            "set a rule in [keep.local], such as last = 2, or set local.maximum-size or local.free-space-low";
        fault(why, hint);
    }
    if config.required_remotes_of(run).is_empty() {
        let why = "no remote of the run is required: no step would ever be removed";
        fault(why, "set required = true for a remote of the run, or remove it");
    }
}

fn check_run_remotes(config: &Config, run: &RunSettings, merged: &mut Merged) {
    let Some(remotes) = &run.remotes else { return };
    let key = KeyPath::of(&["run", run.name.as_str(), "remotes"]);
    if remotes.is_empty() {
        let why = "it is empty: no step of the run would ever become durable";
        merged.fault(&key, why, "remove it to use all remotes");
    }
    for (index, remote) in remotes.iter().enumerate() {
        if remotes[..index].contains(remote) {
            let why = format!("'{remote}' is listed twice");
            merged.fault(&key, why, "list each remote once");
        }
        let fed_from = config.remote(remote).and_then(|remote| remote.selection.as_ref());
        if let Some(selection) = fed_from.filter(|selection| !remotes.contains(&selection.from)) {
            let why = format!("'{remote}' gets its steps from '{}', which is not among them", selection.from);
            merged.fault(&key, why, "list both, or neither");
        }
        // An existing but faulty remote has its own fault.
        if !merged.names("remote").iter().any(|name| name == remote.as_str()) {
            let hint = unknown_remote_hint(remote, config);
            merged.fault(&key, format!("there is no remote '{remote}'"), hint);
        }
    }
}

fn unknown_remote_hint(remote: &RemoteName, config: &Config) -> String {
    let configured: Vec<&str> = config.remotes.iter().map(|remote| remote.name.as_str()).collect();
    match nearest(remote.as_str(), configured.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None if configured.is_empty() => format!("add a table [remote.{remote}]"),
        None => format!("the remotes are {}", configured.join(", ")),
    }
}

/// Checks that no other run of the configuration takes the same steps.
fn check_twins(config: &Config, run: &RunSettings, merged: &mut Merged) {
    let twin = |other: &&RunSettings| {
        other.watch.is_some()
            && other.watch.as_deref().map(normalize) == run.watch.as_deref().map(normalize)
            && (&other.pattern, &other.profile, &other.series) == (&run.pattern, &run.profile, &run.series)
    };
    let mut before = config.runs.iter().take_while(|other| other.name != run.name);
    if let Some(other) = before.find(twin) {
        let why = format!("run '{}' already watches this directory with the same pattern", other.name);
        let hint = "give the runs patterns or series that do not overlap, or remove one of them";
        merged.fault(&KeyPath::of(&["run", run.name.as_str(), "watch"]), why, hint);
    }
}

/// Returns the path without `.` and `..` components, as far as the text allows. Only for comparison: if a component is
/// a symbolic link, the original path leads elsewhere.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => match normal.components().next_back() {
                Some(Component::Normal(_)) => {
                    normal.pop();
                }
                Some(Component::RootDir) => {}
                _ => normal.push(".."),
            },
            other => normal.push(other),
        }
    }
    if normal.as_os_str().is_empty() { PathBuf::from(".") } else { normal }
}

/// A directory that the configuration names, and the key that names it.
pub(super) struct Place {
    pub(super) key: KeyPath,
    pub(super) path: PathBuf,
    /// A description of the directory.
    pub(super) what: String,
    /// Whether a trainer writes there.
    pub(super) watched: bool,
}

/// Returns every local directory that the configuration names.
pub(super) fn places(config: &Config) -> Vec<Place> {
    let vault = config.local.directory.iter().map(|path| Place {
        key: KeyPath::of(&["local", "directory"]),
        path: normalize(path),
        what: "the local vault".to_owned(),
        watched: false,
    });
    let remotes = config.remotes.iter();
    let directories = remotes.filter(|remote| remote.url.scheme.is_directory());
    let remotes = directories.map(|remote| Place {
        key: KeyPath::of(&["remote", remote.name.as_str(), "url"]),
        path: normalize(Path::new(&remote.url.prefix)),
        what: format!("the remote '{}'", remote.name),
        watched: false,
    });
    let runs = config.runs.iter().filter_map(|run| {
        Some(Place {
            key: KeyPath::of(&["run", run.name.as_str(), "watch"]),
            path: normalize(run.watch.as_ref()?),
            what: format!("the watched directory of run '{}'", run.name),
            watched: true,
        })
    });
    vault.chain(remotes).chain(runs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_resolved_by_their_text() {
        for (path, normal) in [
            ("/a/./b/../c", "/a/c"),
            ("/../a", "/a"),
            ("../a", "../a"),
            ("a/../..", ".."),
            ("a/..", "."),
            ("/a/b/", "/a/b"),
        ] {
            assert_eq!(normalize(Path::new(path)), Path::new(normal), "{path}");
        }
    }
}
