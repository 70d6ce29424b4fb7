//! Validates the profiles in a configuration.

use stepvault_core::config::{Config, Finding, RunSettings, Source, nearest};
use stepvault_formats::profile::ProfileSet;

/// Returns the built-in and the configured profiles, after checking that the runs name existing profiles and series.
///
/// # Errors
/// All faults, each with its position.
pub fn profiles(config: &Config) -> Result<ProfileSet, Vec<Finding>> {
    let set = own(config)?;
    let faults: Vec<Finding> = config
        .runs
        .iter()
        .flat_map(|run| [unknown_profile(config, run, &set), unknown_series(config, run, &set)])
        .flatten()
        .collect();
    if faults.is_empty() { Ok(set) } else { Err(faults) }
}

fn own(config: &Config) -> Result<ProfileSet, Vec<Finding>> {
    let Some(file) = &config.profiles else {
        return Ok(ProfileSet::default());
    };
    ProfileSet::with_own(&file.text).map_err(|faults| {
        let finding = |fault: stepvault_formats::profile::OwnFault| {
            let source = Source::File { path: file.path.clone(), line: fault.line };
            Finding::new("profile", source, fault.why)
                .hint("the reference file config/stepvault.toml has an example of each key")
        };
        faults.into_iter().map(finding).collect()
    })
}

fn unknown_profile(config: &Config, run: &RunSettings, set: &ProfileSet) -> Option<Finding> {
    let name = run.profile.as_deref()?;
    if set.get(name).is_some() {
        return None;
    }
    let key = ["run", run.name.as_str(), "profile"];
    let finding = config.finding(&key, format!("there is no profile '{name}'"));
    let names: Vec<&str> = set.iter().map(|profile| profile.name.as_str()).collect();
    Some(finding.hint(meant(name, &names, "the profiles are")))
}

/// Without a profile, a series of any profile is accepted: the right one shows once steps exist.
fn unknown_series(config: &Config, run: &RunSettings, set: &ProfileSet) -> Option<Finding> {
    let chosen = run.profile.as_deref();
    // This fault is reported separately.
    if chosen.is_some_and(|name| set.get(name).is_none()) {
        return None;
    }
    let known: Vec<&str> = set
        .iter()
        .filter(|profile| chosen.is_none_or(|name| profile.name == name))
        .flat_map(|profile| profile.series.iter().map(|series| series.name.as_str()))
        .collect();
    let unknown = run.series.iter().flatten().find(|name| !known.contains(&name.as_str()))?;
    let key = ["run", run.name.as_str(), "series"];
    let (why, list) = match chosen {
        Some(profile) => (format!("the profile '{profile}' has no series '{unknown}'"), "its series are"),
        None => (format!("no profile has a series '{unknown}'"), "the series are"),
    };
    Some(config.finding(&key, why).hint(meant(unknown, &known, list)))
}

/// Returns a hint with the name that was probably meant, or all names.
fn meant(name: &str, known: &[&str], list: &str) -> String {
    if let Some(near) = nearest(name, known.iter().copied()) {
        return format!("did you mean '{near}'?");
    }
    let mut known = known.to_vec();
    known.sort_unstable();
    known.dedup();
    format!("{list} {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use stepvault_core::config::{FileText, Sources, load};

    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let file = FileText { path: "/etc/stepvault.toml".into(), text: text.to_owned() };
        let config = load(&Sources { file: Some(file), ..Sources::default() }).unwrap();
        let found = profiles(&config).err().unwrap_or_default();
        let text = |finding: Finding| format!("{finding} | {}", finding.hint.as_deref().unwrap_or_default());
        found.into_iter().map(text).collect()
    }

    #[test]
    fn unknown_names_are_told_with_the_nearest_known_one() {
        assert_eq!(
            findings("[run.r]\nprofile = \"hf-trianer\""),
            [
                "/etc/stepvault.toml:2: run.r.profile: there is no profile 'hf-trianer' | did you mean 'hf-trainer'?"
            ]
        );
        assert_eq!(
            findings("[run.r]\nprofile = \"prime-rl\"\nseries = [\"wieghts\"]"),
            [
                "/etc/stepvault.toml:3: run.r.series: the profile 'prime-rl' has no series 'wieghts' | did you mean \
                 'weights'?"
            ]
        );
        assert_eq!(
            findings("[run.r]\nprofile = \"prime-rl\"\nseries = [\"everything\"]"),
            [
                "/etc/stepvault.toml:3: run.r.series: the profile 'prime-rl' has no series 'everything' | its series \
                 are checkpoints, weights"
            ]
        );
        let anywhere = findings("[run.r]\nseries = [\"chekpoints\"]");
        assert!(
            anywhere[0].ends_with("no profile has a series 'chekpoints' | did you mean 'checkpoints'?"),
            "{anywhere:?}"
        );
        assert_eq!(findings("[run.r]\nseries = [\"checkpoints\"]"), Vec::<String>::new());
    }

    #[test]
    fn a_fault_in_a_profile_is_told_with_its_line() {
        let found = findings("[run.r]\n[[profile]]\nname = \"mine\"\nlinks = \"soft\"");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("/etc/stepvault.toml:4: profile: unknown variant `soft`"), "{found:?}");
    }

    /// The reference file's example with every key set.
    #[test]
    fn the_profile_in_the_reference_file_is_a_right_one() {
        let reference = include_str!("../../../config/stepvault.toml");
        let (_, example) = reference.split_once("#[[profile]]").unwrap();
        let in_use = |line: &str| line.strip_prefix('#').unwrap_or(line).to_owned() + "\n";
        let is_key = |line: &&str| !line.starts_with("# ");
        let example: String = example.lines().filter(is_key).map(in_use).collect();
        assert_eq!(findings(&format!("[[profile]]\n{example}")), Vec::<String>::new());
    }
}
