//! Checks environment variables that a cluster has to set to directories.

use super::directory::{Maker, Place, directory};
use super::{Check, Finding};
use stepvault_core::disk_facts::DirectoryFacts;

const CHECK: &str = "variable";

/// Returns the path that the variable `name` contains. A relative one depends on the directory in which each process
/// starts.
///
/// # Errors
/// The finding, if there is no path to check.
pub fn path_of<'a>(name: &str, value: Option<&'a str>) -> Result<&'a str, Finding> {
    let (measured, remedy) = match value.map(str::trim) {
        None => (
            "it is not set".to_owned(),
            " where the trainer is started, or remove it from doctor.required-environment",
        ),
        Some("") => ("it is set but empty".to_owned(), " where the trainer is started"),
        Some(url) if url.contains("://") => {
            (format!("it is the URL {url}, not a directory"), ", and let stepvault upload from there")
        }
        Some(path) => return Ok(path),
    };
    Err(Check::new(CHECK, name).fail(measured, format!("export {name}=/a/directory{remedy}")))
}

/// Returns the finding for a variable whose directory did not answer in time.
pub fn no_answer(name: &str, path: &str, waited_seconds: u64) -> Finding {
    Check::new(CHECK, name).fail(
        format!("{path}: its filesystem did not answer within {waited_seconds} s"),
        "restore the filesystem's server, or use another directory; otherwise the trainer hangs",
    )
}

/// Returns the finding on the directory `path` that a variable contains.
pub fn with_path(name: &str, path: &str, facts: &DirectoryFacts) -> Finding {
    let place = Place { role: name.to_owned(), path: path.to_owned(), maker: Maker::Nobody };
    let found = directory(&place, facts);
    let finding = Finding {
        check: CHECK,
        subject: name.to_owned(),
        measured: format!("{path}: {}", found.measured),
        ..found
    };
    if path.starts_with('/') || finding.remedy.is_some() {
        return finding;
    }
    Check::new(CHECK, name).warn(
        format!("{}; it is a relative path", finding.measured),
        "use an absolute path: another process may start in another directory",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use stepvault_core::disk_facts::Presence;

    #[test]
    fn a_variable_has_to_hold_a_directory() {
        let found = |text| path_of("OUTPUT_PATH", text).unwrap_err().measured;
        assert_eq!(found(None), "it is not set");
        assert_eq!(found(Some(" ")), "it is set but empty");
        assert_eq!(found(Some("gs://bucket/x")), "it is the URL gs://bucket/x, not a directory");
        assert_eq!(path_of("OUTPUT_PATH", Some("/data")), Ok("/data"));
    }

    #[test]
    fn what_is_tried_in_it_counts() {
        let mut facts = DirectoryFacts { presence: Presence::There, failed: None, link_refused: None };
        let found = with_path("OUTPUT_PATH", "/data", &facts);
        assert_eq!((found.outcome, found.subject.as_str()), (Outcome::Pass, "OUTPUT_PATH"));
        let found = with_path("OUTPUT_PATH", "data", &facts);
        assert_eq!(found.outcome, Outcome::Warn);
        facts.presence = Presence::Missing("/".to_owned());
        let found = with_path("OUTPUT_PATH", "/data", &facts);
        assert_eq!(found.outcome, Outcome::Fail);
        assert_eq!(found.measured, "/data: it does not exist; it can be created in /");
        assert_eq!(found.remedy.as_deref(), Some("create it: mkdir -p '/data'"));
    }
}
