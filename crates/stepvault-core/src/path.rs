//! Paths inside a checkpoint: relative, UTF-8, and unable to leave it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::string_form;

/// Maximum length of a path inside a checkpoint in bytes. With the longest run, step and attempt it still fits into
/// the 1,024 bytes that S3 and GCS allow for a key.
pub const MAX_PATH_BYTES: usize = 512;
/// Maximum length of a component, as on Linux filesystems.
pub const MAX_COMPONENT_BYTES: usize = 255;

/// A path of a file, link or directory relative to its checkpoint, `/` between components.
///
/// It is always checked when it is created, and can therefore be joined to a directory safely: no empty, `.` or `..`
/// component, not absolute, no control characters, within the length limits. Clones share the text, because a step may
/// have many files, each of which is in several lists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RelativePath(Arc<str>);

impl RelativePath {
    /// Checks the path.
    pub fn new(path: impl Into<String>) -> Result<Self> {
        let path = path.into();
        match fault_of(&path) {
            None => Ok(Self(path.into())),
            Some(why) => Err(Error::new(ErrorKind::Damaged, "not a path inside a checkpoint")
                .on(format!("{:?}", shorten(&path)))
                .because(why)),
        }
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the components in order; at least one.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// Returns the directories that contain it, outermost first: `a/b/c` has `a` and `a/b`.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('/').map(|(end, _)| &self.0[..end])
    }
}

fn fault_of(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("it is empty");
    }
    if path.len() > MAX_PATH_BYTES {
        return Some("it is longer than 512 bytes");
    }
    if path.chars().any(char::is_control) {
        return Some("it holds a control character");
    }
    for component in path.split('/') {
        match component {
            "" => return Some("it is absolute, or has an empty component"),
            "." | ".." => return Some("it has a '.' or '..' component"),
            long if long.len() > MAX_COMPONENT_BYTES => return Some("a component is longer than 255 bytes"),
            _ => {}
        }
    }
    None
}

fn shorten(path: &str) -> String {
    let mut text: String = path.chars().take(80).collect();
    if text.len() < path.len() {
        text.push('…');
    }
    text
}

impl fmt::Display for RelativePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

string_form!(RelativePath, RelativePath::new);

impl AsRef<std::path::Path> for RelativePath {
    fn as_ref(&self) -> &std::path::Path {
        std::path::Path::new(&*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_trainers_write() {
        for good in
            [".metadata", "trainer/__0_0.distcp", "a b/ü.pt", "epoch=1-step=2.ckpt", "..a", "a..", "x%2Fy"]
        {
            assert_eq!(RelativePath::new(good).expect("a good path").as_str(), good);
        }
    }

    #[test]
    fn refuses_what_escapes_or_cannot_be_stored() {
        let long = "x".repeat(256);
        let longer = format!("{}/y", "x/".repeat(300));
        for bad in [
            "",
            "/etc/passwd",
            "a//b",
            "a/",
            "../a",
            "a/../b",
            "a/..",
            ".",
            "a/./b",
            "a\0b",
            "a\nb",
            &long,
            &longer,
        ] {
            assert_eq!(RelativePath::new(bad).expect_err(bad).kind(), ErrorKind::Damaged);
        }
    }

    #[test]
    fn ancestors_are_the_directories_above() {
        let path = RelativePath::new("a/b/c").unwrap();
        assert_eq!(path.ancestors().collect::<Vec<_>>(), ["a", "a/b"]);
    }
}
