//! The configuration file: TOML, checked against the schema, with the line of each value.

use std::ops::Range;

use serde::Deserialize as _;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

use super::finding::{Fault, Finding, Source};
use super::key::KeyPath;
use super::merge::Merged;
use super::schema::{PROFILE, Schema};
use super::sources::FileText;
use super::suggest::nearest;

/// Reads the file into `merged`.
pub(super) fn read(file: &FileText, schema: &Schema, merged: &mut Merged) {
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
            } else if above.segments().is_empty() && name.get_ref() == PROFILE {
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
        let is_named = path.user_name().is_some() && above.segments().len() == 1;
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
        match keys.find(|path| path.segments().last() == Some(&spelled)) {
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
