//! The configuration file: TOML, checked against the schema, with the line of each value.

use std::ops::Range;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::finding::{Finding, Source};
use super::key::KeyPath;
use super::merge::Merged;
use super::schema::{self, Member, Shape};
use super::sources::FileText;
use super::suggest::nearest;

/// Reads the file into `merged`.
pub(super) fn read(file: &FileText, merged: &mut Merged) {
    // The same document is parsed twice: into a table of values, and into a table with positions.
    let parsed =
        DeTable::parse(&file.text).and_then(|places| Ok((places, file.text.parse::<toml::Table>()?)));
    let (places, values) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let source = place(file, error.span());
            merged.faults.push(Finding::new(
                "",
                source,
                error.message().trim().replace('\n', ", "),
            ));
            return;
        }
    };
    let reader = Reader { file };
    reader.table(&KeyPath::of(&[]), schema::ROOT, places.get_ref(), &values, merged);
}

struct Reader<'a> {
    file: &'a FileText,
}

fn place(file: &FileText, span: Option<Range<usize>>) -> Source {
    let line = span.and_then(|span| {
        let before = file.text.as_bytes().get(..span.start)?;
        Some(before.split(|byte| *byte == b'\n').count())
    });
    Source::File {
        path: file.path.clone(),
        line,
    }
}

impl Reader<'_> {
    fn table(
        &self,
        above: &KeyPath,
        members: &'static [Member],
        places: &DeTable<'_>,
        values: &toml::Table,
        merged: &mut Merged,
    ) {
        for (key, inner_place, inner_value) in in_order(places, values) {
            let (name, span) = key;
            let path = above.join(name);
            let source = place(self.file, Some(span));
            match members
                .iter()
                .find(|member| member.name == name)
                .map(|member| &member.shape)
            {
                Some(Shape::Value(..)) => merged.set(path, inner_value.clone(), source),
                Some(Shape::Foreign) => foreign(&path, inner_value, source, merged),
                Some(shape) => self.inner(&path, shape, inner_place, inner_value, source, merged),
                None => merged.faults.push(unknown(above, &path, name, members, source)),
            }
        }
    }

    fn inner(
        &self,
        path: &KeyPath,
        shape: &'static Shape,
        places: &DeValue<'_>,
        value: &Value,
        source: Source,
        merged: &mut Merged,
    ) {
        let (Some(places), Some(values)) = (places.as_table(), value.as_table()) else {
            let finding = Finding::new(path, source, "it must be a table, not a value");
            merged
                .faults
                .push(finding.hint(format!("write it as a table: [{path}]")));
            return;
        };
        match shape {
            Shape::Table(members) => self.table(path, members, places, values, merged),
            Shape::Named(members) => {
                for ((name, span), inner_place, inner_value) in in_order(places, values) {
                    let named = path.join(name);
                    let source = place(self.file, Some(span));
                    let (Some(places), Some(values)) = (inner_place.as_table(), inner_value.as_table())
                    else {
                        let table = path.to_string();
                        let finding =
                            Finding::new(&named, source, format!("'{table}' must contain named tables"));
                        merged
                            .faults
                            .push(finding.hint(format!("write [{table}.NAME] and put the key below it")));
                        continue;
                    };
                    merged.add_table(&named, source);
                    self.table(&named, members, places, values, merged);
                }
            }
            Shape::Value(..) | Shape::Foreign => {}
        }
    }
}

/// Accepts tables that another crate reads; only checks that they are tables.
fn foreign(path: &KeyPath, value: &Value, source: Source, merged: &mut Merged) {
    let tables = value
        .as_array()
        .is_some_and(|items| items.iter().all(Value::is_table));
    if tables {
        merged.has_profiles = true;
        return;
    }
    let finding = Finding::new(path, source, "it is not a list of tables");
    merged
        .faults
        .push(finding.hint(format!("begin each table with a line [[{path}]]")));
}

type Keyed<'a> = ((&'a str, Range<usize>), &'a DeValue<'a>, &'a Value);

/// Returns the members of a table in the order of the file.
fn in_order<'a>(places: &'a DeTable<'a>, values: &'a toml::Table) -> Vec<Keyed<'a>> {
    let mut found: Vec<Keyed<'a>> = Vec::new();
    for (key, place) in places {
        let name: &str = key.get_ref();
        if let Some(value) = values.get(name) {
            found.push(((name, key.span()), place.get_ref(), value));
        }
    }
    found.sort_by_key(|((_, span), ..)| span.start);
    found
}

/// Returns the fault for an unknown key, with the nearest key that exists.
fn unknown(
    above: &KeyPath,
    path: &KeyPath,
    name: &str,
    members: &'static [Member],
    source: Source,
) -> Finding {
    let finding = Finding::new(path, source, "there is no such key");
    let spelled = name.replace('_', "-");
    if let Some(near) = nearest(&spelled, members.iter().map(|member| member.name)) {
        return finding.hint(format!("did you mean '{}'?", above.join(near)));
    }
    let secret = ["secret", "token", "password", "credential", "access-key"];
    if secret.iter().any(|word| spelled.contains(word)) {
        return finding.hint(
            "do not write credentials here: provide them through the provider's own mechanism (environment, profile, \
             instance identity)",
        );
    }
    // The key may exist in another table.
    let elsewhere = schema::keys(&|_| vec!["NAME".to_owned()]);
    let elsewhere = elsewhere
        .iter()
        .find(|(other, ..)| other.segments().last().is_some_and(|last| *last == spelled));
    if let Some((other, ..)) = elsewhere {
        return finding.hint(format!("did you mean '{other}'?"));
    }
    let known: Vec<&str> = members.iter().map(|member| member.name).collect();
    finding.hint(format!("the keys of this table are {}", known.join(", ")))
}
