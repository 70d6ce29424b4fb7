//! Options in a remote's URL: `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1`.

use toml::Value;

use super::finding::{Fault, Source};
use super::key::KeyPath;
use super::merge::Merged;
use super::schema::Schema;
use super::suggest::nearest;
use crate::remote_settings::RemoteUrl;

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
    let options: Vec<&str> = schema.members(above).into_iter().filter(|name| *name != "url").collect();
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
