//! The built-in profiles, combined with a user's own, which are read from the text of a configuration file and validated.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::Deserialize;
use stepvault_core::config::{Completion, RunSettings};
use toml::Spanned;

use super::{Detect, PathGlob, PathPattern, Profile, Proof, ResumeBy, Series};
use crate::step_name;

/// The name of the profile that is used when no other matches.
pub const GENERIC: &str = "generic";

/// The files of the built-in profiles; `generic` is the last.
const FILES: [&str; 25] = [
    include_str!("../../profiles/prime-rl.toml"),
    include_str!("../../profiles/areal.toml"),
    include_str!("../../profiles/openpi-jax.toml"),
    include_str!("../../profiles/openpi-pytorch.toml"),
    include_str!("../../profiles/torchtitan.toml"),
    include_str!("../../profiles/dcp.toml"),
    include_str!("../../profiles/hf-trainer.toml"),
    include_str!("../../profiles/trl.toml"),
    include_str!("../../profiles/accelerate.toml"),
    include_str!("../../profiles/lightning.toml"),
    include_str!("../../profiles/deepspeed.toml"),
    include_str!("../../profiles/megatron.toml"),
    include_str!("../../profiles/nemo.toml"),
    include_str!("../../profiles/verl.toml"),
    include_str!("../../profiles/torchtune.toml"),
    include_str!("../../profiles/composer.toml"),
    include_str!("../../profiles/orbax.toml"),
    include_str!("../../profiles/maxtext.toml"),
    include_str!("../../profiles/levanter.toml"),
    include_str!("../../profiles/cycling-utils.toml"),
    include_str!("../../profiles/timm.toml"),
    include_str!("../../profiles/ultralytics.toml"),
    include_str!("../../profiles/fairseq.toml"),
    include_str!("../../profiles/keras.toml"),
    include_str!("../../profiles/stepvault.toml"),
];

static GENERIC_PROFILE: LazyLock<Option<Profile>> =
    LazyLock::new(|| toml::from_str(include_str!("../../profiles/generic.toml")).ok());

// A test reads every file, so none is dropped here.
static BUILTIN: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    let framework = FILES.iter().filter_map(|file| toml::from_str(file).ok());
    let all = framework.chain(GENERIC_PROFILE.clone());
    all.map(|profile: Profile| Profile { version: Some(env!("CARGO_PKG_VERSION")), ..profile }).collect()
});

/// Returns the built-in profiles; [`GENERIC`] is the last.
pub fn builtin() -> &'static [Profile] {
    &BUILTIN
}

static CONFIGURED: LazyLock<Option<Profile>> =
    LazyLock::new(|| toml::from_str(include_str!("../../profiles/configured.toml")).ok());

impl Profile {
    /// Returns the profile of a run whose configuration gives the names of its steps and their proof, or `None` with
    /// [`Completion::Auto`]. Without names, [`RunSettings::DEFAULT_PATTERN`] names the steps.
    ///
    /// # Errors
    /// When the marker's path makes no glob.
    pub fn configured(completion: &Completion, names: Option<PathGlob>) -> Result<Option<Self>, String> {
        let proof = match completion {
            Completion::Auto(_) => return Ok(None),
            Completion::Rename => Proof::Rename,
            Completion::Marker(file) => Proof::Marker(vec![globset::escape(file.as_str()).try_into()?]),
            Completion::Quiet(_) => Proof::Quiet,
        };
        let mut profile = CONFIGURED.clone().ok_or("the profile of configured rules cannot be read")?;
        let by_default = || RunSettings::DEFAULT_PATTERN.to_owned().try_into();
        let names = names.map_or_else(by_default, Ok)?;
        let has_wildcard = names.text().contains(['*', '?', '[', '{']);
        let is_one_path = !has_wildcard && step_name::parse(names.text()).is_none();
        profile.names = Some(names);
        for series in &mut profile.series {
            series.rewritten |= is_one_path;
            if let Proof::Marker(files) = &proof {
                series.complete.may_be_empty.clone_from(files);
            }
            series.complete.proof = proof.clone();
        }
        Ok(Some(profile))
    }
}

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

/// The known profiles: a user's own first, then the built-in ones.
#[derive(Debug, Clone)]
pub struct ProfileSet(Vec<Profile>);

impl Default for ProfileSet {
    fn default() -> Self {
        Self(BUILTIN.clone())
    }
}

impl ProfileSet {
    /// Combines the built-in profiles with these. One with the name of a built-in profile replaces it.
    ///
    /// # Errors
    /// When one of these is not valid, or two have the same name.
    pub fn new(mut own: Vec<Profile>) -> Result<Self, ProfileFault> {
        for (index, profile) in own.iter().enumerate() {
            profile.validate()?;
            if own.iter().take(index).any(|other| other.name == profile.name) {
                return Err(ProfileFault {
                    profile: profile.name.clone(),
                    why: "is defined twice".to_owned(),
                });
            }
        }
        let others: Vec<_> = BUILTIN
            .iter()
            .filter(|profile| own.iter().all(|other| other.name != profile.name))
            .cloned()
            .collect();
        own.extend(others);
        Ok(Self(own))
    }

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

    /// Returns the profile with this name.
    pub fn get(&self, name: &str) -> Option<&Profile> {
        self.0.iter().find(|profile| profile.name == name)
    }

    /// Returns all profiles, a user's own first.
    pub fn iter(&self) -> impl Iterator<Item = &Profile> {
        self.0.iter()
    }
}

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
    if detect.contains.as_ref().is_some_and(|contains| contains.text.is_empty()) {
        return Err("has a detect entry that searches for an empty text".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stepvault_core::path::RelativePath;

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

    #[test]
    fn no_profile_is_forgotten() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/profiles");
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let is_apart = ["generic.toml", "configured.toml"].iter().any(|name| path.ends_with(name));
            assert!(is_apart || FILES.contains(&text.as_str()), "{} is not in FILES", path.display());
        }
    }

    #[test]
    fn every_built_in_profile_can_be_read_and_is_valid() {
        let others =
            [include_str!("../../profiles/generic.toml"), include_str!("../../profiles/configured.toml")];
        for file in FILES.iter().copied().chain(others) {
            let profile: Profile = toml::from_str(file).unwrap_or_else(|error| panic!("{error}\n{file}"));
            assert_eq!(profile.validate(), Ok(()));
        }
        assert_eq!(builtin().len(), FILES.len() + 1);
        let names: BTreeSet<_> = builtin().iter().map(|profile| &profile.name).collect();
        assert_eq!(names.len(), builtin().len());
        assert_eq!(builtin().last().map(|profile| profile.name.as_str()), Some(GENERIC));
    }

    #[test]
    fn a_users_profile_takes_the_place_of_a_built_in_one() {
        let mut own = builtin().first().unwrap().clone();
        "mine".clone_into(&mut own.description);
        let set = ProfileSet::new(vec![own.clone()]).unwrap();
        assert_eq!(set.get(&own.name).unwrap().description, "mine");
        assert_eq!(set.iter().count(), builtin().len());
        let twice = ProfileSet::new(vec![own.clone(), own]).unwrap_err();
        assert_eq!(twice.to_string(), "the profile \"prime-rl\" is defined twice");
    }

    #[test]
    fn a_configured_marker_is_one_path() {
        let marker = Completion::Marker(RelativePath::new("out[1]/DONE").unwrap());
        let profile = Profile::configured(&marker, None).unwrap().unwrap();
        let Proof::Marker(files) = &profile.series[0].complete.proof else {
            panic!("no marker");
        };
        assert!(files[0].is_match("out[1]/DONE") && !files[0].is_match("out1/DONE"));
    }

    fn faults(text: &str) -> Vec<(Option<usize>, String)> {
        let faults = ProfileSet::with_own(text).unwrap_err();
        faults.into_iter().map(|fault| (fault.line, fault.why)).collect()
    }

    #[test]
    fn own_profiles_stand_beside_the_built_in_ones() {
        let set = ProfileSet::with_own(MINE).unwrap();
        assert!(set.get("mine").is_some() && set.get("hf-trainer").is_some());
        assert_eq!(ProfileSet::with_own("[run.r]").unwrap().iter().count(), set.iter().count() - 1);
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
        assert_eq!(twice, [(Some(15), "the profile \"mine\" is defined twice".to_owned())]);
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
