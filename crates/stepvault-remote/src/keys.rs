//! Maps keys to names in a store: raw, under the remote's prefix, never re-encoded.
//!
//! `object_store` has two conversions from text to a `Path`: `Path::from` percent-encodes unusual characters, so that
//! `50%` would become `50%25` in the bucket and no other tool would find it; `Path::parse` keeps every byte and rejects
//! what it cannot keep. Only the second is used here.

use std::fmt::Write as _;

use object_store::path::Path;
use stepvault_core::{Error, ErrorKind, Result};

/// The keys under one remote's prefix.
#[derive(Debug, Clone)]
pub(crate) struct KeySpace {
    /// Without leading or trailing slash; empty for the whole bucket.
    prefix: String,
}

impl KeySpace {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.trim_matches('/').to_owned() }
    }

    /// Returns the name of `key` in the bucket.
    pub(crate) fn full(&self, key: &str) -> Result<String> {
        Ok(self.path(key)?.into())
    }

    /// Like [`Self::full`], as a `Path` of `object_store`.
    pub(crate) fn path(&self, key: &str) -> Result<Path> {
        let full = self.full_prefix(key);
        let fault =
            |why: &str| Error::new(ErrorKind::Usage, "invalid key").on(format!("{key:?}")).because(why);
        if key.is_empty() {
            return Err(fault("it is empty"));
        }
        let path = Path::parse(&full).map_err(|error| fault(&error.to_string()))?;
        if path.as_ref() == full {
            return Ok(path);
        }
        Err(fault("it begins or ends with a slash"))
    }

    /// Returns the text with which every name under `prefix` begins. It is text, not a directory: `run/a` also covers
    /// `run/ab`.
    pub(crate) fn full_prefix(&self, prefix: &str) -> String {
        if self.prefix.is_empty() { prefix.to_owned() } else { format!("{}/{prefix}", self.prefix) }
    }

    /// Returns the deepest directory that holds everything under `prefix`, because stores list by directory; `None` for
    /// all.
    pub(crate) fn directory_of(&self, prefix: &str) -> Result<Option<Path>> {
        let full = self.full_prefix(prefix);
        let Some((directory, _)) = full.rsplit_once('/') else {
            return Ok(None);
        };
        Path::parse(directory).map(Some).map_err(|error| {
            Error::new(ErrorKind::Usage, "invalid prefix").on(format!("{prefix:?}")).because(error)
        })
    }

    /// Returns the key of an object from its name in the bucket, or `None` for a name outside the prefix.
    pub(crate) fn key_of<'a>(&self, full: &'a str) -> Option<&'a str> {
        if self.prefix.is_empty() {
            return Some(full);
        }
        full.strip_prefix(&self.prefix)?.strip_prefix('/')
    }
}

/// Percent-encodes all characters except unreserved ones and those in `kept`.
pub(crate) fn percent_encode(text: &str, kept: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        let character = char::from(byte);
        if byte.is_ascii_alphanumeric()
            || "-_.~".contains(character)
            || (byte.is_ascii() && kept.contains(character))
        {
            encoded.push(character);
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_stay_as_they_are() {
        let keys = KeySpace::new("team/a b%");
        for key in [
            "50%",
            "a%2Fb",
            "x#y?z&w=1",
            "ü/☃.pt",
            "epoch=1-step=2.ckpt",
            "a\\b",
            "[x]{y}~^|`\"",
            "..a",
            "a b",
        ] {
            let full = keys.full(key).expect(key);
            assert_eq!(full, format!("team/a b%/{key}"));
            assert_eq!(keys.key_of(&full), Some(key));
        }
    }

    #[test]
    fn keys_that_cannot_be_kept_are_refused() {
        let keys = KeySpace::new("p");
        for bad in ["", "/a", "a/", "a//b", ".", "a/../b", "a\nb"] {
            assert_eq!(keys.full(bad).expect_err(bad).kind(), ErrorKind::Usage);
        }
        assert_eq!(KeySpace::new("").full("/a").expect_err("a slash").kind(), ErrorKind::Usage);
        assert_eq!(
            keys.full("a//b").expect_err("an empty segment").to_string(),
            "invalid key: \"a//b\": Path \"p/a//b\" contained empty path segment"
        );
    }

    #[test]
    fn prefixes_are_text() {
        let keys = KeySpace::new("p");
        assert_eq!(keys.full_prefix("run/x"), "p/run/x");
        assert_eq!(keys.directory_of("run/x").unwrap().unwrap().as_ref(), "p/run");
        assert_eq!(keys.directory_of("").unwrap().unwrap().as_ref(), "p");
        assert_eq!(KeySpace::new("").directory_of("x").unwrap(), None);
        assert_eq!(keys.key_of("px/a"), None);
    }

    #[test]
    fn all_but_the_unreserved_is_encoded() {
        assert_eq!(percent_encode("a b/+%ü~", "/"), "a%20b/%2B%25%C3%BC~");
    }

    #[test]
    fn every_byte_of_a_key_is_kept() {
        assert_eq!(percent_encode("a/b c%2F?#é+~", ""), "a%2Fb%20c%252F%3F%23%C3%A9%2B~");
    }
}
