//! Detection of the framework that wrote a directory.

use std::cmp::Reverse;

use crate::find::finds_steps;
use crate::profile::{Contains, Detect, GENERIC, Profile, ProfileSet};
use crate::soundness::{read_head, read_tail};
use crate::tree::{OpenFile, ReadAt, Tree};

/// How many bytes at each end of a file are searched for a text that identifies a framework.
pub const CONTENT_LIMIT_BYTES: u64 = 2 << 20;

/// The maximum number of files that are searched for one text.
const CONTENT_FILES_LIMIT: usize = 4;

/// The detected framework of a directory.
#[derive(Debug, Clone)]
pub struct Detection<'a> {
    /// The best match.
    pub profile: &'a Profile,
    /// The evidence for it, as text.
    pub why: Vec<String>,
    /// The specificity of the match; 0 when nothing matches.
    pub specificity: u32,
    /// The names of the other matching profiles, the most specific first.
    pub others: Vec<String>,
}

/// Returns the profile that matches a directory best; [`GENERIC`] when no other does, or when it finds no step and the
/// generic one does. Returns `None` only when the
/// set has no generic profile either. The same directory always gives the same result.
pub fn detect<'a>(tree: &Tree, files: &dyn OpenFile, profiles: &'a ProfileSet) -> Option<Detection<'a>> {
    let mut fitting: Vec<_> =
        profiles.iter().filter_map(|profile| Some((profile, best_fit(tree, files, profile)?))).collect();
    // The sort is stable: of equally specific profiles, a user's own comes first.
    fitting.sort_by_key(|(_, (specificity, _))| Reverse(*specificity));
    let mut fitting = fitting.into_iter();
    let generic = |why: String| {
        Some(Detection {
            profile: profiles.get(GENERIC)?,
            why: vec![why],
            specificity: 0,
            others: Vec::new(),
        })
    };
    let Some((profile, (specificity, why))) = fitting.next() else {
        return generic("it contains no file that identifies a known framework".to_owned());
    };
    // Names of files may look like a framework's by chance.
    if !finds_steps(profile, tree, files)
        && profiles.get(GENERIC).is_some_and(|generic| finds_steps(generic, tree, files))
    {
        return generic(format!("{}, but no entry is named like a step of {}", why.join(", "), profile.name));
    }
    Some(Detection {
        profile,
        why,
        specificity,
        others: fitting.map(|(other, _)| other.name.clone()).collect(),
    })
}

/// Returns the specificity with which a profile matches, and the evidence.
fn best_fit(tree: &Tree, files: &dyn OpenFile, profile: &Profile) -> Option<(u32, Vec<String>)> {
    let mut rules: Vec<_> = profile.detect.iter().collect();
    rules.sort_by_key(|rule| Reverse(rule.specificity));
    rules.into_iter().find_map(|rule| Some((rule.specificity, reasons(tree, files, rule)?)))
}

/// Returns the evidence that a rule holds, or `None` when it does not.
fn reasons(tree: &Tree, files: &dyn OpenFile, rule: &Detect) -> Option<Vec<String>> {
    let mut why = Vec::new();
    for glob in &rule.all {
        let (path, _) = tree.entries().find(|(path, _)| glob.is_match(path))?;
        why.push(format!("{path} exists"));
    }
    let refused = |(path, _): (&str, _)| rule.none.iter().any(|glob| glob.is_match(path));
    if !rule.none.is_empty() && tree.entries().any(refused) {
        return None;
    }
    if let Some(contains) = &rule.contains {
        let path = holder(tree, files, contains)?;
        why.push(format!("{path} contains {:?}", contains.text));
    }
    Some(why)
}

/// Returns the first file that contains a text.
fn holder<'a>(tree: &'a Tree, files: &dyn OpenFile, contains: &Contains) -> Option<&'a str> {
    tree.files()
        .map(|(path, _)| path)
        .filter(|path| contains.file.is_match(path))
        .take(CONTENT_FILES_LIMIT)
        .find(|path| {
            let holds = |source: Box<dyn ReadAt>| ends_hold(&*source, contains.text.as_bytes());
            // A file that cannot be read is no evidence.
            files.open(path).and_then(holds).unwrap_or(false)
        })
}

fn ends_hold(source: &dyn ReadAt, text: &[u8]) -> std::io::Result<bool> {
    Ok(holds(&read_head(source, CONTENT_LIMIT_BYTES)?, text)
        || source.size_bytes() > CONTENT_LIMIT_BYTES && holds(&read_tail(source, CONTENT_LIMIT_BYTES)?, text))
}

fn holds(bytes: &[u8], text: &[u8]) -> bool {
    !text.is_empty() && bytes.windows(text.len()).any(|window| window == text)
}
