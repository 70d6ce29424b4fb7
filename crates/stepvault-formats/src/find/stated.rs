//! Reads what a step states in its content: its number, where its name has none, and the best step so far.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::pickle::{Pickle, Value};
use crate::profile::template::last_component;
use crate::profile::{PathGlob, Profile, Series, StatedNumber};
use crate::structure::{json, torch};
use crate::text_file::JSON_LIMIT_BYTES;
use crate::tree::{OpenFile, Tree};

/// The key of any entry of a dictionary or a list.
const ANY: &str = "*";
/// The key of the last element of a list.
const LAST: &str = "-1";
/// The maximum number of values that one key leads to.
const MAX_LEAVES: usize = 64;

/// A file that states something.
enum Document<'a> {
    Json(&'a dyn OpenFile, String),
    Torch(Pickle),
}

/// What keys lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Leaf {
    Text(String),
    Integer(i128),
    Other,
}

/// Returns the number that a step of these paths states; `None` when it states none, or cannot be read.
pub(super) fn stated_step(
    series: &Series,
    members: &[&str],
    tree: &Tree,
    files: &dyn OpenFile,
) -> Option<u64> {
    let mut read: Vec<(String, Option<Document<'_>>)> = Vec::new();
    series.number.iter().find_map(|number| {
        let path = path_of(number.file.as_ref(), members, tree)?;
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

/// Returns the number at each of these keys of a file; `None` for one that is not there, and for all when the file cannot
/// be read.
pub(super) fn stated_numbers<const COUNT: usize>(
    path: &str,
    keys: [&str; COUNT],
    tree: &Tree,
    files: &dyn OpenFile,
) -> [Option<u64>; COUNT] {
    let document = Document::read(path, tree, files);
    keys.map(|keys| document.as_ref()?.unsigned(keys))
}

/// Returns the names of the steps that a step of these paths states to be the best so far, which may be its own. A
/// trainer states a path as it saw it, of which only the last component means something here. Returns `None` when
/// something that may name one cannot be read.
pub(super) fn stated_best(
    profile: &Profile,
    members: &[&str],
    tree: &Tree,
    files: &dyn OpenFile,
) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for stated in &profile.best {
        let path = path_of(stated.file.as_ref(), members, tree);
        let Some(path) = path.filter(|path| tree.is_file(path)) else {
            continue;
        };
        for leaf in Document::read(&path, tree, files)?.leaves(&stated.key)? {
            let Leaf::Text(path) = leaf else { continue };
            let name = last_component(path.trim_end_matches('/'));
            if !name.is_empty() {
                names.insert(name.to_owned());
            }
        }
    }
    Some(names)
}

/// Returns the file inside a step that matches; without a pattern, the step's first path.
fn path_of(file: Option<&PathGlob>, members: &[&str], tree: &Tree) -> Option<String> {
    let Some(glob) = file else {
        return members.first().map(|path| (*path).to_owned());
    };
    members.iter().find_map(|member| {
        if tree.is_file(member) {
            return glob.is_match(last_component(member)).then(|| (*member).to_owned());
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

impl<'a> Document<'a> {
    fn read(path: &str, tree: &Tree, files: &'a dyn OpenFile) -> Option<Self> {
        let ending = last_component(path).rsplit_once('.');
        if ending.is_some_and(|(_, ending)| ending == "json") {
            return tree.is_file(path).then(|| Self::Json(files, path.to_owned()));
        }
        let source = files.open(path).ok()?;
        torch::read_object(&*source).ok().map(Self::Torch)
    }

    fn number(&self, stated: &StatedNumber) -> Option<u64> {
        let is_ambiguous = stated.unless.as_ref().is_some_and(|keys| self.is_set(keys));
        if is_ambiguous {
            return None;
        }
        self.unsigned(&stated.key)
    }

    /// Returns the number that these keys lead to.
    fn unsigned(&self, keys: &str) -> Option<u64> {
        match self.leaves(keys)?.first()? {
            Leaf::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Whether these keys lead to anything but 0.
    fn is_set(&self, keys: &str) -> bool {
        let leaves = self.leaves(keys).unwrap_or_default();
        leaves.first().is_some_and(|leaf| *leaf != Leaf::Integer(0))
    }

    /// Returns the values that these keys lead to; `None` when the file cannot be read.
    fn leaves(&self, keys: &str) -> Option<Vec<Leaf>> {
        let keys: Vec<&str> = keys.split('.').collect();
        let mut leaves = Vec::new();
        match self {
            Self::Json(files, path) => {
                let file = files.open(path).ok()?;
                let end = file.size_bytes();
                if end > JSON_LIMIT_BYTES {
                    return None;
                }
                let seed = At { keys: &keys, leaves: &mut leaves };
                json::parse(&*file, 0, end, path, seed).ok()?;
            }
            Self::Torch(pickle) => collect(pickle, pickle.root, &keys, &mut leaves),
        }
        Some(leaves)
    }
}

fn add(leaves: &mut Vec<Leaf>, leaf: Leaf) {
    if leaves.len() < MAX_LEAVES {
        leaves.push(leaf);
    }
}

/// Collects what keys lead to from a value of a pickle.
fn collect(pickle: &Pickle, value: Value, keys: &[&str], leaves: &mut Vec<Leaf>) {
    let Some((key, rest)) = keys.split_first() else {
        let text = pickle.text(value).map(|text| Leaf::Text(text.to_owned()));
        let leaf = text.or_else(|| pickle.integer(value).map(Leaf::Integer));
        return add(leaves, leaf.unwrap_or(Leaf::Other));
    };
    let inner: Vec<Value> = match (*key, pickle.elements(value)) {
        (LAST, Some(elements)) => elements.last().copied().into_iter().collect(),
        (ANY, Some(elements)) => elements.iter().copied().take(MAX_LEAVES).collect(),
        (ANY, None) => {
            let entries = pickle.entries(value).unwrap_or_default().iter();
            entries.map(|(_, value)| *value).take(MAX_LEAVES).collect()
        }
        (key, _) => pickle.entry(value, key).into_iter().collect(),
    };
    for value in inner {
        collect(pickle, value, rest, leaves);
    }
}

/// Collects what keys lead to from a value of a JSON text, and keeps nothing else of it.
struct At<'a> {
    keys: &'a [&'a str],
    leaves: &'a mut Vec<Leaf>,
}

impl At<'_> {
    fn leaf(self, leaf: Leaf) {
        if self.keys.is_empty() {
            add(self.leaves, leaf);
        }
    }
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = ();

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.leaf(Leaf::Other);
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.leaf(Leaf::Integer(i128::from(value)));
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.leaf(Leaf::Integer(i128::from(value)));
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.leaf(Leaf::Other);
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.leaf(Leaf::Text(value.to_owned()));
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.leaf(Leaf::Other);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let (before, rest) = (self.leaves.len(), self.keys.get(1..).unwrap_or_default());
        match self.keys.first().copied() {
            Some(key @ (ANY | LAST)) => loop {
                let mut of_element = Vec::new();
                let seed = At { keys: rest, leaves: &mut of_element };
                if elements.next_element_seed(seed)?.is_none() {
                    return Ok(());
                }
                if key == LAST {
                    self.leaves.truncate(before);
                }
                for leaf in of_element {
                    add(self.leaves, leaf);
                }
            },
            _ => while elements.next_element::<IgnoredAny>()?.is_some() {},
        }
        self.leaf(Leaf::Other);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let (wanted, rest) = (self.keys.first().copied(), self.keys.get(1..).unwrap_or_default());
        while let Some(key) = entries.next_key::<String>()? {
            if wanted.is_some_and(|wanted| wanted == ANY || wanted == key) {
                entries.next_value_seed(At { keys: rest, leaves: self.leaves })?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        self.leaf(Leaf::Other);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(json: &str, keys: &str) -> Vec<Leaf> {
        struct One(Vec<u8>);
        impl OpenFile for One {
            fn open(&self, _: &str) -> std::io::Result<Box<dyn crate::tree::ReadAt>> {
                Ok(Box::new(self.0.clone()))
            }
        }
        let file = One(json.as_bytes().to_vec());
        Document::Json(&file, "state.json".to_owned()).leaves(keys).unwrap()
    }

    #[test]
    fn keys_lead_through_objects_and_lists() {
        let text = |text: &str| Leaf::Text(text.to_owned());
        let state =
            r#"{"a": {"x": NaN, "b": "one"}, "c": {"b": "two"}, "list": [{"n": 1}, {"n": 2}], "b": 3}"#;
        assert_eq!(leaves(state, "b"), [Leaf::Integer(3)]);
        assert_eq!(leaves(state, "a.b"), [text("one")]);
        assert_eq!(leaves(state, "a"), [Leaf::Other]);
        assert_eq!(leaves(state, "*.b"), [text("one"), text("two")]);
        assert_eq!(leaves(state, "list.-1.n"), [Leaf::Integer(2)]);
        assert_eq!(leaves(state, "list.*.n"), [Leaf::Integer(1), Leaf::Integer(2)]);
        assert_eq!(leaves(state, "b.c"), []);
        assert_eq!(leaves(state, "d"), []);
        assert_eq!(leaves(r#"{"a": null}"#, "a"), [Leaf::Other]);
        assert_eq!(leaves(r#"{"a": []}"#, "a.-1"), []);
        let many = format!("{{\"list\": [{}0]}}", "0,".repeat(1000));
        assert_eq!(leaves(&many, "list.*").len(), MAX_LEAVES);
    }
}
