//! Consistency rules between the parts of a profile, checked after it is parsed.

use std::collections::BTreeSet;

use super::{Detect, PathPattern, Profile, Proof, ResumeBy, Series};

/// The maximum number of series, detection rules, patterns and pointers of a profile, each: every one is tried on
/// every path.
const LIST_LIMIT: usize = 64;

/// Why a profile cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the profile {profile:?} {why}")]
pub struct ProfileFault {
    /// The profile's name.
    pub profile: String,
    /// The reason, as a continuation of the name.
    pub why: String,
}

impl Profile {
    /// Checks the consistency of the parts of this profile.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), ProfileFault> {
        self.checked().map_err(|why| ProfileFault { profile: self.name.clone(), why })
    }

    fn checked(&self) -> Result<(), String> {
        let of_name = |character: char| {
            character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-'
        };
        if self.name.is_empty() || !self.name.chars().all(of_name) {
            return Err("has a name that is not made of lower-case letters, digits and hyphens".to_owned());
        }
        let lengths = [
            ("series", self.series.len()),
            ("detect", self.detect.len()),
            ("temporary", self.temporary.len()),
            ("ignored", self.ignored.len()),
            ("pointer", self.pointer.len()),
            ("best", self.best.len()),
            ("hazard", self.hazard.len()),
        ];
        if let Some((list, length)) = lengths.iter().find(|(_, length)| *length > LIST_LIMIT) {
            return Err(format!("has {length} entries in {list}; the maximum is {LIST_LIMIT}"));
        }
        if self.series.is_empty() {
            return Err("has no series, so it recognizes no steps".to_owned());
        }
        let mut names = BTreeSet::new();
        for series in &self.series {
            if !names.insert(series.name.as_str()) {
                return Err(format!("has two series named {:?}", series.name));
            }
            self.series_checked(series).map_err(|why| format!("{why}, in its series {:?}", series.name))?;
        }
        self.detect.iter().try_for_each(detect_checked)?;
        if self.resume.by == ResumeBy::Pointer && self.pointer.is_empty() {
            return Err("resumes by its pointer but defines none".to_owned());
        }
        if self.resume.by == ResumeBy::HighestNumber
            && let Some(scan) = self.resume.scan.iter().find(|scan| !scan.has_group("step"))
        {
            return Err(format!(
                "resumes by the highest number, but its scan {:?} has no group (?<step>…)",
                scan.text()
            ));
        }
        Ok(())
    }

    fn series_checked(&self, series: &Series) -> Result<(), String> {
        let complete = &series.complete;
        match &complete.proof {
            Proof::Marker(files) if files.is_empty() => {
                Err("requires a marker as proof but names none".to_owned())
            }
            Proof::MarkerRemoved(suffix) if suffix.is_empty() || suffix.contains('/') => Err(
                "requires the removal of a marker as proof, but the marker's ending is not part of a name"
                    .to_owned(),
            ),
            Proof::Pointer if self.pointer.is_empty() => {
                Err("requires a pointer as proof but defines none".to_owned())
            }
            _ => Ok(()),
        }?;
        if let Some(required) = complete.required.iter().find(|required| required.any.is_empty()) {
            let when = required.when.as_ref().map(|glob| format!(" when {} exists", glob.text()));
            return Err(format!(
                "has an entry in `required` that lists no files{}",
                when.unwrap_or_default()
            ));
        }
        if series.rewritten && series.numbered {
            return Err(
                "has paths that hold one step after another, but requires a number in their names".to_owned()
            );
        }
        let no_rank = |pattern: &&PathPattern| !pattern.has_group("rank");
        if let Some(pattern) = complete.ranks.iter().map(|set| &set.files).find(no_rank) {
            return Err(format!(
                "has a set of ranks whose pattern {:?} has no group (?<rank>…)",
                pattern.text()
            ));
        }
        Ok(())
    }
}

fn detect_checked(detect: &Detect) -> Result<(), String> {
    if detect.all.is_empty() {
        return Err("has a detect entry with an empty `all`, which would match every directory".to_owned());
    }
    match &detect.contains {
        Some(contains) if contains.text.is_empty() => {
            Err("has a detect entry that searches for an empty text".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        name = "mine"
        description = "my own trainer"
        links = "hard"
        resume = { by = "highest-number", text = "train --from {path}" }
        [[detect]]
        all = ["snap-*/DONE"]
        specificity = 50
        [[series]]
        name = "steps"
        kind = "directory"
        path = 'snap-(?<step>[0-9]+)'
        [series.complete]
        proof = { marker = ["DONE"] }
        ranks = [{ what = "shards", files = 'shard-(?<rank>[0-9]+)[.]pt' }]
    "#;

    fn fault(from: &str, to: &str) -> String {
        assert!(WHOLE.contains(from), "{from}");
        let profile: Profile = toml::from_str(&WHOLE.replace(from, to)).unwrap();
        profile.validate().unwrap_err().to_string()
    }

    #[test]
    fn a_profile_of_a_users_own() {
        let profile: Profile = toml::from_str(WHOLE).unwrap();
        assert_eq!(profile.validate(), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(
            fault("\"mine\"", "\"My trainer\""),
            "the profile \"My trainer\" has a name that is not made of lower-case letters, digits and hyphens"
        );
        assert_eq!(
            fault("[\"DONE\"]", "[]"),
            "the profile \"mine\" requires a marker as proof but names none, in its series \"steps\""
        );
        assert_eq!(
            fault("{ marker = [\"DONE\"] }", "\"pointer\""),
            "the profile \"mine\" requires a pointer as proof but defines none, in its series \"steps\""
        );
        assert_eq!(
            fault("{ marker = [\"DONE\"] }", "{ marker-removed = \"\" }"),
            "the profile \"mine\" requires the removal of a marker as proof, but the marker's ending is not part of \
             a name, in its series \"steps\""
        );
        assert_eq!(
            fault("(?<rank>[0-9]+)", "[0-9]+"),
            "the profile \"mine\" has a set of ranks whose pattern \"shard-[0-9]+[.]pt\" has no group (?<rank>…), in \
             its series \"steps\""
        );
        assert_eq!(
            fault("kind = \"directory\"", "kind = \"directory\"\nrewritten = true"),
            "the profile \"mine\" has paths that hold one step after another, but requires a number in their names, in \
             its series \"steps\""
        );
        assert_eq!(
            fault("[\"snap-*/DONE\"]", "[]"),
            "the profile \"mine\" has a detect entry with an empty `all`, which would match every directory"
        );
        assert_eq!(
            fault("\"highest-number\"", "\"pointer\""),
            "the profile \"mine\" resumes by its pointer but defines none"
        );
        assert_eq!(
            fault("\"highest-number\"", "\"highest-number\", scan = ['snap.*']"),
            "the profile \"mine\" resumes by the highest number, but its scan \"snap.*\" has no group (?<step>…)"
        );
    }

    #[test]
    fn mistakes_are_found_while_reading() {
        let read = |from: &str, to: &str| {
            toml::from_str::<Profile>(&WHOLE.replace(from, to)).unwrap_err().to_string()
        };
        assert!(read("links", "lnks").contains("unknown field `lnks`"));
        assert!(read("snap-*/DONE", "snap-[/DONE").contains("\"snap-[/DONE\" is not a glob"));
        assert!(read("(?<step>[0-9]+)", "(").contains("is not a regular expression"));
        assert!(read("{path}", "{dir}").contains("uses {dir}, which is not one of {root}, {path}"));
    }
}
