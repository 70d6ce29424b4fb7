//! Checks the service files under `config/` against the program: each call, variable, key and path in them exists.
//! `scripts/check-service-files` runs the services' own validators.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use regex::Regex;

use crate::keys_in_texts::tables;
use crate::place::{Place, read};
use crate::service_invocations::{calls, containers, rendered_manifests, service_files};

/// A configuration in which every key of every table may be set.
pub(crate) const BARE: &str = "[remote.main]\nurl = \"file:///nowhere\"\n[run.\"my-run\"]\n";
/// Where units and containers find the program.
pub(crate) const BINARY: &str = "/usr/local/bin/stepvault";
/// Where they find its configuration.
pub(crate) const CONFIGURATION: &str = "/etc/stepvault/stepvault.toml";

#[test]
fn the_program_understands_every_call() {
    let mut faults = Vec::new();
    let mut count = 0;
    for file in service_files() {
        for words in calls(&file, &read(&file)) {
            count += 1;
            let fault = fault_of(&words);
            faults
                .extend(fault.map(|why| format!("{}: stepvault {}: {why}", file.display(), words.join(" "))));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count >= 15, "only {count} calls were found");
}

/// What the program's own parser has against these words. Nothing is run: with the wish for help at their end they are
/// read, values and all.
fn fault_of(words: &[String]) -> Option<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_stepvault"))
        .args(words)
        .arg("--help")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    (!output.status.success()).then(|| problem.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn a_wrong_call_is_found() {
    let fault = |line: &str| fault_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(fault("verify --tier remote --sample 1/30"), None);
    for wrong in ["serve", "agent --forever", "verify --sample 30", "gc --grace 24", "prune --run ../x"] {
        assert!(fault(wrong).is_some(), "{wrong}");
    }
}

#[test]
fn every_variable_is_one_that_is_read() {
    let mut faults = Vec::new();
    let mut checked = BTreeSet::new();
    for file in service_files() {
        for found in pattern("STEPVAULT_[A-Z_]*[A-Z]").find_iter(&read(&file)) {
            if checked.insert(found.as_str().to_owned()) && !is_read(found.as_str()) {
                faults.push(format!("{}: nothing reads {}", file.display(), found.as_str()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(!checked.is_empty() && !is_read("STEPVAULT_DIRECTORY"));
}

/// Whether a variable changes anything.
fn is_read(variable: &str) -> bool {
    let place = Place::new();
    std::fs::write(place.path().join("stepvault.toml"), BARE).unwrap();
    let output = place.shell(&format!("{variable}=1 stepvault config check"));
    !String::from_utf8_lossy(&output.stdout).contains("unknown variable")
}

#[test]
fn every_key_that_is_named_exists() {
    let keys = tables();
    let mut named = 0;
    for file in service_files() {
        for found in
            pattern("(?:^|[^-a-z])((local|upload|agent)\\.([a-z]+(?:-[a-z]+)*))").captures_iter(&read(&file))
        {
            assert!(keys[&found[2]].contains(&found[3]), "{}: there is no {}", file.display(), &found[1]);
            named += 1;
        }
    }
    assert!(named >= 3, "only {named} keys were found");
}

#[test]
fn units_and_image_put_everything_in_the_same_places() {
    for file in service_files().iter().filter(|file| {
        file.starts_with("config/systemd") && file.extension().is_some_and(|name| name == "service")
    }) {
        let start = value_of(&read(file), "ExecStart=");
        let words: Vec<&str> = start.split(' ').collect();
        assert_eq!(words[0], BINARY, "{}", file.display());
        let flag = words.iter().position(|word| *word == "--config").unwrap();
        assert_eq!(words[flag + 1], CONFIGURATION, "{}", file.display());
    }
    let version = env!("CARGO_PKG_VERSION");
    for file in service_files() {
        for found in pattern("stepvault:([0-9][0-9.]*[0-9])").captures_iter(&read(&file)) {
            assert_eq!(&found[1], version, "{}", file.display());
        }
    }
    for file in rendered_manifests() {
        assert!(!containers(&read(&file)).is_empty(), "{}", file.display());
    }
    let chart = read("config/kubernetes/chart/Chart.yaml");
    assert_eq!(value_of(&chart, "version: "), version);
    assert_eq!(value_of(&chart, "appVersion: "), format!("\"{version}\""));
}

pub(crate) fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

/// What stands behind a unit's key.
pub(crate) fn value_of(unit: &str, key: &str) -> String {
    let line = unit.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("there is no {key}")).to_owned()
}
