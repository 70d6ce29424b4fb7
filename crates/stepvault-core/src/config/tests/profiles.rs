//! How a run selects the rule by which its steps are finished, and tables of the file that other crates read.

use std::time::Duration;

use super::super::{Completion, RunSettings};
use super::loaded;
use crate::ids::RunName;

fn run(text: &str) -> RunSettings {
    loaded(&format!("[run.r]\n{text}")).run(&RunName::new("r").unwrap())
}

const MINUTE: Duration = Duration::from_mins(1);

#[test]
fn a_run_goes_by_a_profile_unless_it_says_otherwise() {
    let bare = run("");
    assert_eq!(
        (bare.complete, bare.pattern, bare.profile, bare.series),
        (Completion::Auto(MINUTE), None, None, None)
    );
    let chosen =
        run("profile = \"prime-rl\"\nseries = [\"weights\"]\npattern = \"step_*\"\nquiet-time = \"5s\"");
    assert_eq!(chosen.complete, Completion::Auto(Duration::from_secs(5)));
    assert_eq!(chosen.pattern.as_deref(), Some("step_*"));
    assert_eq!(chosen.profile.as_deref(), Some("prime-rl"));
    assert_eq!(chosen.series, Some(vec!["weights".to_owned()]));
}

#[test]
fn a_pattern_alone_still_means_quiet_time() {
    let by_pattern = run("pattern = \"step_*\"");
    assert_eq!(by_pattern.complete, Completion::Quiet(MINUTE));
    let automatic = run("pattern = \"step_*\"\ncomplete = \"auto\"");
    assert_eq!(automatic.complete, Completion::Auto(RunSettings::DEFAULT_QUIET_TIME));
    assert_eq!(RunSettings::DEFAULT_QUIET_TIME, MINUTE);
}

#[test]
fn a_rule_without_a_profile_has_a_pattern() {
    for rule in ["complete = \"rename\"", "complete = \"quiet\""] {
        assert_eq!(run(rule).pattern.as_deref(), Some(RunSettings::DEFAULT_PATTERN), "{rule}");
    }
}

#[test]
fn what_is_in_force_is_what_is_explained() {
    let value = |text: &str, key: &str| {
        let config = loaded(text);
        let shown = config.explained.iter().find(|entry| entry.key == key);
        shown.map(|entry| entry.value.clone())
    };
    let text = "[run.r]\npattern = \"x*\"";
    assert_eq!(value(text, "run.r.complete").as_deref(), Some("\"quiet\""));
    assert_eq!(value("[run.r]", "run.r.complete").as_deref(), Some("\"auto\""));
    assert_eq!(value("[run.r]", "run.r.pattern"), None);
}

#[test]
fn profiles_are_kept_as_they_stand_for_those_who_know_them() {
    let text = "[[profile]]\nname = \"mine\"\nanything = { goes = [1] }";
    let config = loaded(text);
    assert_eq!(config.profiles.map(|file| file.text).as_deref(), Some(text));
    assert_eq!(loaded("[run.r]").profiles, None);
    let config = loaded("[run.\"a/b\"]\nprofile = \"verl\"");
    let finding = config.finding(&["run", "a/b", "profile"], "it is odd");
    assert_eq!(finding.to_string(), "/etc/stepvault.toml:2: run.\"a/b\".profile: it is odd");
}
