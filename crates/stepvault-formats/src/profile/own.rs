//! A user's own profiles, read from the text of a configuration file.

use serde::Deserialize;
use toml::Spanned;

use super::{Profile, ProfileSet};

/// Why a user's own profile cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnFault {
    /// The line of the file, from 1, if known.
    pub line: Option<usize>,
    /// The reason.
    pub why: String,
}

/// The part of a configuration that holds profiles.
#[derive(Deserialize)]
struct OwnProfiles {
    #[serde(default)]
    profile: Vec<Spanned<Profile>>,
}

impl ProfileSet {
    /// Returns the built-in profiles and those of the `[[profile]]` tables in this TOML text; other contents are
    /// ignored.
    ///
    /// # Errors
    /// Every profile that is not valid; if one cannot be parsed at all, only that one.
    pub fn with_own(text: &str) -> Result<Self, Vec<OwnFault>> {
        let line_of = |offset: usize| {
            let before = text.as_bytes().get(..offset)?;
            Some(before.split(|byte| *byte == b'\n').count())
        };
        let read: OwnProfiles = toml::from_str(text).map_err(|error| {
            let line = error.span().and_then(|span| line_of(span.start));
            let why = error.message().trim().replace('\n', ", ");
            vec![OwnFault { line, why }]
        })?;
        let (mut set, mut own, mut faults) = (Self::default(), Vec::new(), Vec::new());
        for spanned in read.profile {
            let line = line_of(spanned.span().start);
            own.push(spanned.into_inner());
            // Add one profile at a time, so that each fault has its own line.
            match Self::new(own.clone()) {
                Ok(more) => set = more,
                Err(fault) => {
                    own.pop();
                    let why = fault.to_string();
                    faults.push(OwnFault { line, why });
                }
            }
        }
        if faults.is_empty() { Ok(set) } else { Err(faults) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: &str = r#"[run.r]
watch = "/w"

[[profile]]
name = "mine"
description = "my own trainer"
links = "hard"
detect = [{ all = ["snap-*/DONE"], specificity = 90 }]
resume = { by = "highest-number", text = "train --from {path}" }
[[profile.series]]
name = "steps"
kind = "directory"
path = 'snap-(?<step>[0-9]+)'
complete = { proof = { marker = ["DONE"] } }
"#;

    fn faults(text: &str) -> Vec<(Option<usize>, String)> {
        let faults = ProfileSet::with_own(text).unwrap_err();
        faults.into_iter().map(|fault| (fault.line, fault.why)).collect()
    }

    #[test]
    fn own_profiles_stand_beside_the_built_in_ones() {
        let set = ProfileSet::with_own(MINE).unwrap();
        assert!(set.get("mine").is_some() && set.get("hf-trainer").is_some());
        assert_eq!(
            ProfileSet::with_own("[run.r]").unwrap().iter().count(),
            set.iter().count() - 1
        );
    }

    #[test]
    fn each_fault_has_its_line() {
        let misspelt = faults(&MINE.replace("links =", "lnks ="));
        assert_eq!(misspelt.len(), 1);
        assert_eq!(misspelt[0].0, Some(7));
        assert!(misspelt[0].1.starts_with("unknown field `lnks`"), "{misspelt:?}");

        let pattern = faults(&MINE.replace("(?<step>[0-9]+)", "("));
        assert_eq!(pattern[0].0, Some(13), "{pattern:?}");

        let second = MINE.split_once("[[profile]]").unwrap().1;
        let twice = faults(&format!("{MINE}[[profile]]{second}"));
        assert_eq!(
            twice,
            [(Some(15), "the profile \"mine\" is defined twice".to_owned())]
        );
        let broken = MINE.replace("[\"DONE\"]", "[]");
        assert_eq!(
            faults(&broken),
            [(
                Some(4),
                "the profile \"mine\" requires a marker as proof but names none, in its series \"steps\""
                    .to_owned()
            )]
        );
    }
}
