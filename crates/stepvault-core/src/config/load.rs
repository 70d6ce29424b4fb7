//! Loads the sources and returns a checked configuration, with the source of each value.

use super::finding::{Explained, Finding, Source};
use super::key::KeyPath;
use super::merge::Merged;
use super::model::Config;
use super::notify::{mask_url, mask_urls};
use super::run_names::name_runs;
use super::sources::{self, FlagOverride, Sources};
use super::tables::{self, SCHEMA};
use super::validate;
use super::value::Kind;
use crate::error::{Error, ErrorKind, Result};

/// The result of a check.
#[derive(Debug, Clone)]
pub struct Report {
    /// The configuration, when there is no fault.
    pub config: Option<Config>,
    /// The faults, in the order of the file.
    pub faults: Vec<Finding>,
    /// The warnings.
    pub warnings: Vec<Finding>,
}

/// Merges and checks everything, and reports every fault and warning (`config check`).
pub fn check(sources: &Sources) -> Report {
    let schema = &*SCHEMA;
    let mut merged = Merged::new(schema);
    if let Some(file) = &sources.file {
        sources::read_file(file, schema, &mut merged);
        name_runs(&mut merged, sources);
    }
    let overrides: Vec<(KeyPath, &FlagOverride)> =
        sources.flags.iter().filter_map(|flag| Some((flag_key(flag, &mut merged)?, flag))).collect();
    // The overrides come before the environment, which may set their keys.
    for (path, _) in &overrides {
        merged.add_name(path);
    }
    sources::read_environment(&sources.environment, schema, &mut merged);
    for (path, flag) in overrides {
        merged.set(path, flag.value.clone(), flag.source());
    }
    sources::unfold(schema, &mut merged);
    let mut config = tables::config(&mut merged);
    validate::check_all(&config, sources.run.as_ref(), &mut merged);
    config.explained = explain(&merged);
    config.profiles = sources.file.clone().filter(|_| merged.has_profiles);
    config.warnings.clone_from(&merged.warnings);
    let Merged { mut faults, warnings, .. } = merged;
    faults.sort_by_key(|fault| match &fault.source {
        Source::File { line, .. } => (fault.source.rank(), *line),
        other => (other.rank(), None),
    });
    // One mistake may be found several times; report it once.
    faults.dedup();
    Report { config: faults.is_empty().then_some(config), faults, warnings }
}

fn flag_key(flag: &FlagOverride, merged: &mut Merged) -> Option<KeyPath> {
    let path = KeyPath::parse(&flag.key);
    if path.is_none() {
        let finding = Finding::new(&flag.key, flag.source(), "it is not a valid dotted key");
        merged.faults.push(finding.hint("write it as in the configuration file"));
    }
    path
}

/// Merges and checks everything.
///
/// # Errors
/// [`ErrorKind::Usage`] with every fault in one message; [`ErrorKind::Refused`] when the only faults are keep rules
/// that would delete everything.
pub fn load(sources: &Sources) -> Result<Config> {
    let report = check(sources);
    report.config.ok_or_else(|| faults_error("the configuration is invalid", &report.faults))
}

/// Returns all faults as one error. A single fault provides the hint; several faults include their hints in the
/// message.
pub fn faults_error(what: &str, faults: &[Finding]) -> Error {
    let refused = !faults.is_empty() && faults.iter().all(|fault| fault.kind == ErrorKind::Refused);
    let kind = if refused { ErrorKind::Refused } else { ErrorKind::Usage };
    let error = Error::new(kind, what);
    match faults {
        [only] => error.on(only).hint(only.hint.as_deref().unwrap_or_default()),
        several => {
            let line = |fault: &Finding| match &fault.hint {
                Some(hint) => format!("\n  {fault} ({hint})"),
                None => format!("\n  {fault}"),
            };
            let lines: String = several.iter().map(line).collect();
            error.because(format!("{} problems:{lines}", several.len()))
        }
    }
}

/// Replaces a secret in the output.
const MASK: &str = "****";

/// Returns every value that is set, in the order of the schema.
pub(super) fn explain(merged: &Merged) -> Vec<Explained> {
    let explained = merged.read.iter().filter_map(|key| {
        let entry = merged.get(&key.path)?;
        Some(Explained {
            key: key.path.to_string(),
            value: match key.kind {
                Kind::Notify => mask_urls(entry.value.clone()),
                Kind::ServiceUrl => mask_url(&entry.value),
                _ => mask(entry.value.clone()),
            }
            .to_string(),
            source: entry.source.clone(),
        })
    });
    explained.collect()
}

/// Masks secrets. No key is meant for a secret; this covers one that was pasted by mistake.
fn mask(value: toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) => toml::Value::String(mask_text(text)),
        toml::Value::Array(items) => toml::Value::Array(items.into_iter().map(mask).collect()),
        toml::Value::Table(table) => {
            let masked = table.into_iter().map(|(name, value)| match value {
                toml::Value::String(_) if is_secret_name(&name) => {
                    (name, toml::Value::String(MASK.to_owned()))
                }
                other => (name, mask(other)),
            });
            toml::Value::Table(masked.collect())
        }
        other => other,
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    [
        "secret",
        "token",
        "password",
        "passwd",
        "credential",
        "signature",
        "access-key",
        "access_key",
        "accesskey",
    ]
    .iter()
    .any(|word| name.contains(word))
        || name == "sig"
}

/// Masks the user information of a URL and the values of query members that look like secrets.
fn mask_text(text: String) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text;
    };
    let (place, query) = match rest.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (rest, None),
    };
    let authority_end = place.find('/').unwrap_or(place.len());
    let has_user = place[..authority_end].contains(['@', ':']);
    // A password may contain a slash: the text before the last '@' is then not the path.
    let place = match place.rfind('@').filter(|_| has_user) {
        Some(at) => format!("{MASK}{}", &place[at..]),
        None => place.to_owned(),
    };
    let Some(query) = query else {
        return format!("{scheme}://{place}");
    };
    let members = query.split('&').map(|member| match member.split_once('=') {
        Some((name, _)) if is_secret_name(name) => format!("{name}={MASK}"),
        _ => member.to_owned(),
    });
    format!("{scheme}://{place}?{}", members.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_masked() {
        let masked = |text: &str| mask_text(text.to_owned());
        assert_eq!(masked("http://user:s3cr3t@host/p"), "http://****@host/p");
        assert_eq!(masked("http://user:s3/cr3t@host/p"), "http://****@host/p");
        assert_eq!(
            masked("https://h/p?a=1&token=s3cr3t&X-Amz-Signature=x"),
            "https://h/p?a=1&token=****&X-Amz-Signature=****"
        );
        assert_eq!(masked("s3://bucket/p@x"), "s3://bucket/p@x");
        assert_eq!(masked("plain text"), "plain text");
        let table = toml::toml! { team = "a"
        api-token = "s3cr3t" };
        assert!(!mask(toml::Value::Table(table)).to_string().contains("s3cr3t"));
    }
}
