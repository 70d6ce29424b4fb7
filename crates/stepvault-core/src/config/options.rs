//! Options in a remote's URL: `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1`.

use toml::Value;

use super::finding::{Fault, Finding};
use super::key::KeyPath;
use super::merge::Merged;
use super::schema;
use super::suggest::nearest;
use crate::remote_settings::RemoteUrl;

/// Length of the longest option name that messages show.
const LONGEST_NAME_BYTES: usize = 40;

/// Moves the options of each remote's URL to the keys of the same name. An option has the precedence of the URL: it
/// overrides the key in a weaker layer, is overridden by a stronger layer, and conflicts with a key of its own layer.
pub(super) fn unfold(merged: &mut Merged) {
    for name in merged.names("remote") {
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
                let mut seen: Vec<&str> = Vec::new();
                for (option, value) in &options {
                    let twice = seen.contains(&option.as_str());
                    seen.push(option);
                    unfold_one(merged, &above, option, value, twice, &entry.source);
                }
            }
            Err(error) => {
                let hint = error.hint_text().unwrap_or_default().to_owned();
                merged.fault(&url_path, entry.source, &Fault::new(error.to_string(), hint));
            }
        }
    }
}

fn unfold_one(
    merged: &mut Merged,
    above: &KeyPath,
    option: &str,
    text: &str,
    twice: bool,
    source: &super::finding::Source,
) {
    let options = || {
        schema::REMOTE
            .iter()
            .map(|member| member.name)
            .filter(|name| *name != "url")
    };
    let path = above.join(option);
    if !options().any(|known| known == option) {
        let url_path = above.join("url");
        let why = if is_name(option) {
            format!("there is no option '{option}'")
        } else {
            "the text after a '?' or '&' is not the name of an option".to_owned()
        };
        let finding = Finding::new(url_path, source.clone(), why);
        let hint = match nearest(&option.replace('_', "-"), options()) {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("the options are {}", options().collect::<Vec<_>>().join(", ")),
        };
        merged.faults.push(finding.hint(hint));
        return;
    }
    let given = merged.get(&path).map(|entry| entry.source.clone());
    if twice || given.as_ref().is_some_and(|given| given.rank() == source.rank()) {
        let fault = Fault::new(
            "it is given twice",
            "give it in the URL or as a key of the table, once",
        );
        return merged.fault(&path, source.clone(), &fault);
    }
    if given.is_none_or(|given| given.rank() < source.rank()) {
        merged.set_text(path, text, source.clone());
    }
}

/// Returns whether this may be an option name. If a password contains an '&', the rest of the password appears here.
fn is_name(option: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    (1..=LONGEST_NAME_BYTES).contains(&option.len()) && option.chars().all(is_letter)
}
