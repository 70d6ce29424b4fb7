//! Paths, compared as text: this crate does not access the disk.

use std::path::{Component, Path, PathBuf};

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
    if normal.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        normal
    }
}

/// A directory that the configuration names, and the key that names it.
pub(super) struct Place {
    pub(super) key: Vec<String>,
    pub(super) path: PathBuf,
    /// A description of the directory.
    pub(super) what: String,
    /// Whether a trainer writes there.
    pub(super) watched: bool,
}

/// Returns every local directory that the configuration names.
pub(super) fn places(config: &Config) -> Vec<Place> {
    let key = |segments: &[&str]| {
        segments
            .iter()
            .map(|segment| (*segment).to_owned())
            .collect::<Vec<_>>()
    };
    let mut places = Vec::new();
    if let Some(path) = &config.local.directory {
        let what = "the local vault".to_owned();
        places.push(Place {
            key: key(&["local", "directory"]),
            path: normalize(path),
            what,
            watched: false,
        });
    }
    for remote in config
        .remotes
        .iter()
        .filter(|remote| remote.url.scheme.is_directory())
    {
        places.push(Place {
            key: key(&["remote", remote.name.as_str(), "url"]),
            path: normalize(Path::new(&remote.url.prefix)),
            what: format!("the remote '{}'", remote.name),
            watched: false,
        });
    }
    for run in &config.runs {
        if let Some(path) = &run.watch {
            places.push(Place {
                key: key(&["run", run.name.as_str(), "watch"]),
                path: normalize(path),
                what: format!("the watched directory of run '{}'", run.name),
                watched: true,
            });
        }
    }
    places
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
