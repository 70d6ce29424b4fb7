//! What a configuration is loaded from: the file, the environment, flags, and the options in URLs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

use super::finding::{Fault, Finding, Source, nearest};
use super::key::KeyPath;
use super::merge::{Merged, PROFILE, Schema};
use crate::{RemoteUrl, RunName};

/// The text of a configuration file and the path it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileText {
    /// Used in messages, and as the base of the relative paths in the file.
    pub path: PathBuf,
    /// The content.
    pub text: String,
}

/// A value that the command line gives for a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlagOverride {
    /// The key as in the file: `local.directory`, `remote.s3-main.url`, `run."a/b".watch`.
    pub key: String,
    /// Its value, as it would be written in the file.
    pub value: Value,
    /// The flag, with its dashes, for messages.
    pub flag: String,
}

impl FlagOverride {
    /// Returns the override of a key with a text.
    pub fn text(key: impl Into<String>, text: impl Into<String>, flag: impl Into<String>) -> Self {
        Self { key: key.into(), value: Value::String(text.into()), flag: flag.into() }
    }

    pub(super) fn source(&self) -> Source {
        Source::Flag { flag: self.flag.clone() }
    }
}

/// All sources of a configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    /// The file, if there is one.
    pub file: Option<FileText>,
    /// The environment; of the variables that do not begin with `STEPVAULT_`, only
    /// [those in names of runs](Self::variables_of_names) count.
    pub environment: Vec<(String, String)>,
    /// The run that was selected, if one was: no other one is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunName>,
    /// The values given on the command line.
    pub flags: Vec<FlagOverride>,
}

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
pub(super) fn read_environment(environment: &[(String, String)], schema: &Schema, merged: &mut Merged) {
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

/// Reads the file into `merged`.
pub(super) fn read_file(file: &FileText, schema: &Schema, merged: &mut Merged) {
    let mut reader = Reader { file, schema, merged };
    match DeTable::parse(&file.text) {
        Ok(document) => reader.table(&KeyPath::of(&[]), document.into_inner()),
        Err(error) => reader.unreadable(&error),
    }
}

struct Reader<'a> {
    file: &'a FileText,
    schema: &'a Schema,
    merged: &'a mut Merged,
}

impl Reader<'_> {
    /// Reads a table in the order of the file.
    fn table(&mut self, above: &KeyPath, table: DeTable<'_>) {
        let mut members: Vec<_> = table.into_iter().collect();
        members.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in members {
            let path = above.join(name.get_ref());
            let source = self.source(Some(name.span()));
            if self.schema.find(&path).is_some() {
                match Value::deserialize(ValueDeserializer::from(value)) {
                    Ok(value) => self.merged.set(path, value, source),
                    Err(error) => self.unreadable(&error),
                }
            } else if above.0.is_empty() && name.get_ref() == PROFILE {
                self.profiles(&path, value.get_ref(), source);
            } else if self.schema.members(&path).is_empty() {
                let hint = self.nearest_key(above, name.get_ref());
                self.merged.fault_at(&path, source, Fault::new("there is no such key", hint));
            } else {
                self.inner(above, &path, value, source);
            }
        }
    }

    /// Reads a table of the schema.
    fn inner(&mut self, above: &KeyPath, path: &KeyPath, value: Spanned<DeValue<'_>>, source: Source) {
        let is_named = path.user_name().is_some() && above.0.len() == 1;
        match value.into_inner() {
            DeValue::Table(table) => {
                if is_named {
                    self.merged.add_table(path, source);
                }
                self.table(path, table);
            }
            _ if is_named => {
                let fault = Fault::new(
                    format!("'{above}' must contain named tables"),
                    format!("write [{above}.NAME] and put the key below it"),
                );
                self.merged.fault_at(path, source, fault);
            }
            _ => {
                let hint = format!("write it as a table: [{path}]");
                self.merged.fault_at(path, source, Fault::new("it must be a table, not a value", hint));
            }
        }
    }

    /// Accepts tables that another crate reads; only checks that they are tables.
    fn profiles(&mut self, path: &KeyPath, value: &DeValue<'_>, source: Source) {
        let is_list = |items: &toml::de::DeArray<'_>| items.iter().all(|item| item.get_ref().is_table());
        self.merged.has_profiles = value.as_array().is_some_and(is_list);
        if !self.merged.has_profiles {
            let hint = format!("begin each table with a line [[{path}]]");
            self.merged.fault_at(path, source, Fault::new("it is not a list of tables", hint));
        }
    }

    /// Returns what to do about an unknown key: the nearest one that exists.
    fn nearest_key(&self, above: &KeyPath, name: &str) -> String {
        let members = self.schema.members(above);
        let spelled = name.replace('_', "-");
        if let Some(near) = nearest(&spelled, members.iter().copied()) {
            return format!("did you mean '{}'?", above.join(near));
        }
        let secret = ["secret", "token", "password", "credential", "access-key"];
        if secret.iter().any(|word| spelled.contains(word)) {
            return "do not write credentials here: provide them through the provider's own mechanism (environment, \
                    profile, instance identity)"
                .to_owned();
        }
        // The key may exist in another table.
        let mut keys = self.schema.0.iter().map(|key| &key.path);
        match keys.find(|path| path.0.last() == Some(&spelled)) {
            Some(elsewhere) => format!("did you mean '{elsewhere}'?"),
            None => format!("the keys of this table are {}", members.join(", ")),
        }
    }

    fn unreadable(&mut self, error: &toml::de::Error) {
        let source = self.source(error.span());
        let why = error.message().trim().replace('\n', ", ");
        self.merged.faults.push(Finding::new("", source, why));
    }

    fn source(&self, span: Option<Range<usize>>) -> Source {
        let line = span.and_then(|span| {
            let before = self.file.text.as_bytes().get(..span.start)?;
            Some(before.split(|byte| *byte == b'\n').count())
        });
        Source::File { path: self.file.path.clone(), line }
    }
}

/// Length of the longest option name that messages show.
const LONGEST_NAME_BYTES: usize = 40;

/// Moves the options of each remote's URL to the keys of the same name. An option has the precedence of the URL: it
/// overrides the key in a weaker layer, is overridden by a stronger layer, and conflicts with a key of its own layer.
pub(super) fn unfold(schema: &Schema, merged: &mut Merged) {
    for name in merged.names("remote").to_vec() {
        let above = KeyPath::of(&["remote", &name]);
        let url_path = above.join("url");
        let Some(entry) = merged.get(&url_path).cloned() else {
            continue;
        };
        let Some(text) = entry.value.as_str() else {
            continue;
        };
        match RemoteUrl::parse(text) {
            Ok((url, options)) => {
                merged.set(url_path, Value::String(url.to_string()), entry.source.clone());
                for (index, (option, value)) in options.iter().enumerate() {
                    let twice = options[..index].iter().any(|(other, _)| other == option);
                    unfold_one(schema, merged, &above, (option, value, twice), &entry.source);
                }
            }
            Err(error) => merged.fault_at(&url_path, entry.source, error.into()),
        }
    }
}

fn unfold_one(
    schema: &Schema,
    merged: &mut Merged,
    above: &KeyPath,
    (option, text, twice): (&str, &str, bool),
    source: &Source,
) {
    let path = above.join(option);
    let options: Vec<&str> = schema
        .members(above)
        .into_iter()
        .filter(|name| *name != "url" && schema.find(&above.join(name)).is_some())
        .collect();
    if !options.contains(&option) {
        let why = if is_name(option) {
            format!("there is no option '{option}'")
        } else {
            "the text after a '?' or '&' is not the name of an option".to_owned()
        };
        let hint = match nearest(&option.replace('_', "-"), options.iter().copied()) {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("the options are {}", options.join(", ")),
        };
        return merged.fault_at(&above.join("url"), source.clone(), Fault::new(why, hint));
    }
    let given = merged.get(&path).map(|entry| entry.source.rank());
    if twice || given == Some(source.rank()) {
        let hint = "give it in the URL or as a key of the table, once";
        return merged.fault_at(&path, source.clone(), Fault::new("it is given twice", hint));
    }
    if given.is_none_or(|rank| rank < source.rank()) {
        merged.set_text(path, text, source.clone());
    }
}

/// Returns whether this may be an option name. If a password contains an '&', the rest of the password appears here.
fn is_name(option: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    (1..=LONGEST_NAME_BYTES).contains(&option.len()) && option.chars().all(is_letter)
}
