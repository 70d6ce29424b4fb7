//! The profile that somebody names.

use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::profile::{Profile, ProfileSet};

/// The profile of this name.
///
/// # Errors
/// [`ErrorKind::Usage`] when there is none, with those there are.
pub(crate) fn named<'a>(profiles: &'a ProfileSet, name: &str) -> Result<&'a Profile> {
    profiles.get(name).ok_or_else(|| {
        let known: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        Error::new(ErrorKind::Usage, "no such profile")
            .on(name)
            .because("neither a built-in nor a configured one has this name")
            .hint(format!("the profiles are {}", known.join(", ")))
    })
}
