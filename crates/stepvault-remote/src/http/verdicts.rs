//! What the stores' error codes and statuses mean: kinds, reasons and hints, as data in `verdicts.toml`.

use std::sync::LazyLock;

use serde::Deserialize;
use stepvault_core::ErrorKind;

/// The meaning of a failed request.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Verdict {
    codes: Vec<String>,
    statuses: Vec<u16>,
    case: String,
    kind: String,
    /// Empty where the store's own message is sufficient.
    pub(crate) why: String,
    /// Empty where there is nothing to do.
    pub(crate) hint: String,
}

impl Verdict {
    pub(crate) fn kind(&self) -> ErrorKind {
        ErrorKind::from_name(&self.kind)
    }
}

/// The verdicts on the answers of one kind of store.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Verdicts(Vec<Verdict>);

/// The verdicts on every store's answers.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tables {
    /// On those of S3 and compatible stores.
    pub(crate) s3: Verdicts,
    /// On those of Google Cloud Storage and Azure.
    pub(crate) others: Verdicts,
}

pub(crate) static TABLES: LazyLock<Tables> = LazyLock::new(|| toml::from_str(TEXT).unwrap_or_default());
const TEXT: &str = include_str!("verdicts.toml");
/// The verdict on what no row names: a failure, in the store's own words.
pub(crate) static OTHER: LazyLock<Verdict> = LazyLock::new(Verdict::default);

impl Verdicts {
    /// Returns the verdict on an error code, or `None` for an unknown code.
    pub(crate) fn by_code(&self, code: &str) -> Option<&Verdict> {
        self.0.iter().find(|verdict| verdict.codes.iter().any(|other| other == code))
    }

    /// Returns the verdict where there is only a status.
    pub(crate) fn by_status(&'static self, status: u16) -> &'static Verdict {
        let of = |status| self.0.iter().find(|verdict| verdict.statuses.contains(&status));
        of(status).or_else(|| of(500).filter(|_| (500..600).contains(&status))).unwrap_or(&OTHER)
    }

    /// Returns the verdict on a case that neither a code nor a status tells.
    pub(crate) fn of_case(&'static self, case: &str) -> &'static Verdict {
        self.0.iter().find(|verdict| verdict.case == case).unwrap_or(&OTHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_found_and_names_a_kind() {
        let tables: Tables = toml::from_str(TEXT).unwrap();
        for Verdicts(rows) in [&tables.s3, &tables.others] {
            for verdict in rows {
                assert_eq!(verdict.kind().name(), verdict.kind);
                let names_something =
                    !verdict.codes.is_empty() || !verdict.statuses.is_empty() || !verdict.case.is_empty();
                assert!(names_something, "{verdict:?}");
            }
            let mut codes: Vec<&String> = rows.iter().flat_map(|verdict| &verdict.codes).collect();
            let count = codes.len();
            codes.sort();
            codes.dedup();
            assert_eq!(codes.len(), count);
        }
    }
}
