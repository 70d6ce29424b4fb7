//! Reads the number of a step from its content, where its name has none.

use crate::pickle::{Pickle, Value};
use crate::profile::template::last_component;
use crate::profile::{Series, StatedNumber};
use crate::structure::torch;
use crate::text_file::read_json;
use crate::tree::{OpenFile, Tree};

/// A file that states a number, as data.
enum Document {
    Json(serde_json::Value),
    Torch(Pickle),
}

/// Returns the number that a step of these paths states; `None` when it states none, or cannot be read.
pub(super) fn stated_step(
    series: &Series,
    members: &[&str],
    tree: &Tree,
    files: &dyn OpenFile,
) -> Option<u64> {
    let mut read: Vec<(String, Option<Document>)> = Vec::new();
    series.number.iter().find_map(|number| {
        let path = path_of(number, members, tree)?;
        let index = read.iter().position(|(known, _)| *known == path);
        let index = index.unwrap_or_else(|| {
            let document = Document::read(&path, tree, files);
            read.push((path, document));
            read.len() - 1
        });
        let (_, document) = read.get(index)?;
        document.as_ref()?.number(number)
    })
}

fn path_of(number: &StatedNumber, members: &[&str], tree: &Tree) -> Option<String> {
    let Some(glob) = &number.file else {
        return members.first().map(|path| (*path).to_owned());
    };
    members.iter().find_map(|member| {
        if tree.is_file(member) {
            return glob
                .is_match(last_component(member))
                .then(|| (*member).to_owned());
        }
        let inside = tree.inside(member).map(|(path, _)| path);
        let mut files = inside.filter(|path| tree.is_file(path));
        let is_it = |path: &&str| {
            let inside = path.strip_prefix(*member).unwrap_or(path);
            glob.is_match(inside.trim_start_matches('/'))
        };
        files.find(is_it).map(str::to_owned)
    })
}

impl Document {
    fn read(path: &str, tree: &Tree, files: &dyn OpenFile) -> Option<Self> {
        let ending = last_component(path).rsplit_once('.');
        if ending.is_some_and(|(_, ending)| ending == "json") {
            return read_json(tree, files, path).ok().map(Self::Json);
        }
        let source = files.open(path).ok()?;
        torch::read_object(&*source).ok().map(Self::Torch)
    }

    fn number(&self, stated: &StatedNumber) -> Option<u64> {
        let is_ambiguous = stated.unless.as_ref().is_some_and(|keys| self.is_set(keys));
        if is_ambiguous {
            return None;
        }
        match self {
            Self::Json(json) => json_at(json, &stated.key)?.as_u64(),
            Self::Torch(pickle) => pickle.unsigned(pickled_at(pickle, &stated.key)?),
        }
    }

    /// Whether these keys lead to anything but 0.
    fn is_set(&self, keys: &str) -> bool {
        match self {
            Self::Json(json) => json_at(json, keys).is_some_and(|value| value.as_i64() != Some(0)),
            Self::Torch(pickle) => {
                pickled_at(pickle, keys).is_some_and(|value| pickle.integer(value) != Some(0))
            }
        }
    }
}

fn json_at<'a>(json: &'a serde_json::Value, keys: &str) -> Option<&'a serde_json::Value> {
    keys.split('.').try_fold(json, |value, key| match value {
        serde_json::Value::Array(elements) if key == "-1" => elements.last(),
        other => other.get(key),
    })
}

fn pickled_at(pickle: &Pickle, keys: &str) -> Option<Value> {
    keys.split('.')
        .try_fold(pickle.root(), |value, key| match pickle.elements(value) {
            Some(elements) if key == "-1" => elements.last().copied(),
            _ => pickle.entry(value, key),
        })
}
