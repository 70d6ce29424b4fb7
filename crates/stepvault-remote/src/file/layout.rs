//! Maps keys to paths in the directory, and defines the names reserved for stepvault.

use std::path::{Path, PathBuf};

use stepvault_core::{Error, ErrorKind, Result};

/// The directory of incomplete uploads.
pub(super) const UPLOADS_DIRECTORY: &str = ".stepvault-uploads";
/// Prefix of the names of unfinished files.
pub(super) const TEMPORARY_PREFIX: &str = ".stepvault-tmp-";

/// The directory of a `file://` URL.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) root: PathBuf,
}

impl Layout {
    /// Returns the path of `key`. Its text never leads outside the root; symbolic links are refused where files are
    /// opened.
    pub(super) fn path(&self, key: &str) -> Result<PathBuf> {
        match fault_of(key) {
            None => Ok(self.root.join(key)),
            Some(why) => Err(Error::new(ErrorKind::Usage, "invalid key for a directory")
                .on(format!("{key:?}"))
                .because(why)),
        }
    }

    /// Returns the directory of incomplete uploads.
    pub(super) fn uploads(&self) -> PathBuf {
        self.root.join(UPLOADS_DIRECTORY)
    }

    /// Returns the deepest directory that holds all keys that begin with `prefix`, relative to the root and with a
    /// trailing slash; empty for the root itself.
    pub(super) fn directory_of(prefix: &str) -> Result<&str> {
        let directory = prefix.rfind('/').map_or("", |end| &prefix[..=end]);
        match directory.strip_suffix('/').and_then(fault_of) {
            None => Ok(directory),
            Some(why) => {
                Err(Error::new(ErrorKind::Usage, "invalid prefix").on(format!("{prefix:?}")).because(why))
            }
        }
    }
}

/// Returns a new name for an unfinished file.
pub(super) fn temporary_name() -> String {
    format!("{TEMPORARY_PREFIX}{}", uuid::Uuid::new_v4().simple())
}

/// Returns whether a directory entry is reserved for stepvault and is not an object.
pub(super) fn is_reserved(component: &str) -> bool {
    component == UPLOADS_DIRECTORY || component.starts_with(TEMPORARY_PREFIX)
}

fn fault_of(key: &str) -> Option<&'static str> {
    if key.is_empty() {
        return Some("it is empty");
    }
    if key.chars().any(|character| character.is_ascii_control()) {
        return Some("it holds a control character");
    }
    for component in key.split('/') {
        match component {
            "" => return Some("it begins or ends with a slash, or has an empty component"),
            "." | ".." => return Some("it has a '.' or '..' component"),
            long if long.len() > 255 => {
                return Some("a component is longer than 255 bytes, the limit of file systems");
            }
            own if is_reserved(own) => return Some("a component is reserved for unfinished files"),
            _ => {}
        }
    }
    None
}

/// Returns the parent of a path that has one.
pub(super) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_beneath_the_root_and_keep_their_bytes() {
        let layout = Layout { root: PathBuf::from("/vault") };
        for good in ["a", "run/.stepvault/vault.json", "50%/x#y?z", "ü ☃", "..a/b..", "a\\b"] {
            assert_eq!(layout.path(good).unwrap(), Path::new("/vault").join(good));
        }
        let long = "x".repeat(256);
        let bad = ["", "/etc/passwd", "../a", "a/../../b", "a//b", "a/", "./a", "a\0b", "a\nb", &long];
        for bad in bad.into_iter().chain([".stepvault-uploads/x", "a/.stepvault-tmp-1"]) {
            assert_eq!(layout.path(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
    }

    #[test]
    fn prefixes_are_listed_from_their_directory() {
        assert_eq!(Layout::directory_of("run/commits/0001").unwrap(), "run/commits/");
        assert_eq!(Layout::directory_of("run").unwrap(), "");
        assert_eq!(Layout::directory_of("").unwrap(), "");
        Layout::directory_of("../x").unwrap_err();
        Layout::directory_of("/x").unwrap_err();
    }
}
