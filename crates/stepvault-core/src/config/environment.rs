//! The environment: the variable of a key is `STEPVAULT_` and its name in capitals.

use std::collections::BTreeMap;

use super::finding::{Fault, Finding, Source};
use super::key::KeyPath;
use super::merge::Merged;
use super::schema::Schema;
use super::suggest::nearest;

const PREFIX: &str = "STEPVAULT_";
/// Variables that the command line reads for its own flags; none of these is a key.
const COMMAND_LINE: [&str; 7] = [
    "STEPVAULT_CONFIG",
    "STEPVAULT_RUN",
    "STEPVAULT_REMOTE",
    "STEPVAULT_LOCAL",
    "STEPVAULT_ATTEMPT",
    "STEPVAULT_LAUNCH",
    "STEPVAULT_LOG",
];

/// Variables that `run` sets for the trainer, whose commands inherit them, and the one that names the program to the
/// Python package.
const FOR_OTHERS: [&str; 3] = ["STEPVAULT_RESTORED_STEP", "STEPVAULT_RESTORED_PATH", "STEPVAULT_PROGRAM"];

/// Returns the variable for a dotted key: `upload.memory-budget` is `STEPVAULT_UPLOAD_MEMORY_BUDGET`.
pub fn variable_name(key: &str) -> String {
    let letters = key.chars().filter(|letter| *letter != '"');
    let upper =
        letters.map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' });
    PREFIX.chars().chain(upper).collect()
}

/// Reads the environment into `merged`. Remotes and runs must be known before: a variable can set a key of one, but
/// cannot create one, because the spelling of its name is lost.
pub(super) fn read(environment: &[(String, String)], schema: &Schema, merged: &mut Merged) {
    let mut known: BTreeMap<String, Vec<KeyPath>> = BTreeMap::new();
    for key in schema.keys(|table| merged.names(table)) {
        let variable = variable_name(&key.path.to_string());
        known.entry(variable).or_default().push(key.path);
    }
    for (variable, text) in environment.iter().filter(|(variable, _)| variable.starts_with(PREFIX)) {
        let source = Source::Environment { variable: variable.clone() };
        match known.get(variable).map(Vec::as_slice) {
            Some([path]) if text.is_empty() => {
                let fault = Fault::new("it is empty", "unset it, or give it a value");
                merged.fault_at(path, source, fault);
            }
            Some([path]) => merged.set_text(path.clone(), text, source),
            Some(several) => {
                let names: Vec<String> = several.iter().map(ToString::to_string).collect();
                let why = format!("it matches more than one key: {}", names.join(", "));
                let finding = Finding::new("", source, why);
                merged.faults.push(finding.hint("rename one of them, or set the key in the file"));
            }
            None if COMMAND_LINE.contains(&variable.as_str()) || FOR_OTHERS.contains(&variable.as_str()) => {}
            None => merged.warnings.push(unknown(variable, source, &known)),
        }
    }
}

fn unknown(variable: &str, source: Source, known: &BTreeMap<String, Vec<KeyPath>>) -> Finding {
    let finding = Finding::new("", source, "unknown variable: it has no effect");
    let names = known.keys().map(String::as_str).chain(COMMAND_LINE);
    match nearest(variable, names) {
        Some(near) => finding.hint(format!("did you mean {near}?")),
        None => finding.hint("run `stepvault config show` to see the effective configuration"),
    }
}
