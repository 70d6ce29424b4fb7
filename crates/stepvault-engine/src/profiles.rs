//! Looks up a profile by its name.

use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::profile::{Profile, ProfileSet};

/// Returns the profile with this name.
///
/// # Errors
/// [`ErrorKind::Usage`] when there is none, with the existing names.
pub(crate) fn named<'a>(profiles: &'a ProfileSet, name: &str) -> Result<&'a Profile> {
    profiles.get(name).ok_or_else(|| {
        let known: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        Error::new(ErrorKind::Usage, "unknown profile")
            .on(name)
            .because("no built-in or configured profile has this name")
            .hint(format!("the profiles are {}", known.join(", ")))
    })
}
