//! Tests of the configuration as a whole.

mod control;
mod faults;
mod hostile;
mod layers;
mod profiles;
mod reference;
mod selective;
mod values;

use super::{Config, FileText, FlagOverride, Report, Sources, check, load};

fn sources(text: &str) -> Sources {
    let file = FileText { path: "/etc/stepvault.toml".into(), text: text.to_owned() };
    Sources { file: Some(file), ..Sources::default() }
}

fn loaded(text: &str) -> Config {
    load(&sources(text)).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn report(text: &str) -> Report {
    check(&sources(text))
}

/// Returns the text and the hint of a configuration's only fault.
fn only_fault(text: &str) -> (String, String) {
    let report = report(text);
    match report.faults.as_slice() {
        [fault] => (fault.to_string(), fault.hint.clone().unwrap_or_default()),
        other => panic!("{other:#?}\n{text}"),
    }
}

fn flag(key: &str, value: impl Into<toml::Value>) -> FlagOverride {
    FlagOverride { key: key.to_owned(), value: value.into(), flag: "--flag".to_owned() }
}
