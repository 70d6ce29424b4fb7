//! Paths, compared as text: this crate does not access the disk.

use std::path::{Component, Path, PathBuf};

use super::key::KeyPath;
use super::model::Config;

/// Returns the path without `.` and `..` components, as far as the text allows. Only for comparison: if a component is
/// a symbolic link, the original path leads elsewhere.
pub(super) fn normalize(path: &Path) -> PathBuf {
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
