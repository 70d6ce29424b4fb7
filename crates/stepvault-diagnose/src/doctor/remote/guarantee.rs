//! The guarantees that stepvault needs from every store, one request at a time, and what it means if a store lacks
//! one.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::{check, provider, remedy};
use crate::doctor::Finding;
use stepvault_core::error::{Error, ErrorKind};
use stepvault_core::remote_settings::{IGNORED_ATTRIBUTES_HINT, RemoteSettings, Scheme};

/// One guarantee of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// An object that was written exists.
    Put,
    /// A second create of the same key is refused.
    CreateOnce,
    /// It is also refused when a multipart upload is completed.
    CompleteOnce,
    /// Bytes with a wrong checksum are refused, in a single request and in parts.
    RefuseWrongBytes,
    /// The bytes read are the bytes written.
    Get,
    /// A written object is listed at once.
    List,
    /// A written object is listed under its own name, whatever characters the name contains.
    KeepNames,
    /// A completed multipart upload becomes an object.
    Multipart,
    /// A multipart upload that is neither completed nor aborted is listed.
    ListUploads,
    /// A multipart upload can be aborted.
    Abort,
    /// A deleted object is gone.
    Delete,
    /// Several objects are deleted by one request.
    DeleteTogether,
}

/// The texts of a guarantee.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GuaranteeText {
    check: String,
    kept: String,
    broken: String,
    /// What to do if it does not hold.
    advice: String,
    /// Whether stepvault cannot work without it.
    #[serde(default)]
    needed: bool,
}

// A test reads the texts of every guarantee.
static TEXTS: LazyLock<BTreeMap<Guarantee, GuaranteeText>> =
    LazyLock::new(|| crate::table(include_str!("../../../texts/guarantees.toml")));

const REPEAT: &str = "repeat the check; if it fails again, ask the operator of the store";

/// Returns the finding on one guarantee: it holds, it does not, or the request failed.
pub fn guarantee(remote: &RemoteSettings, guarantee: Guarantee, outcome: &Result<bool, Error>) -> Finding {
    use Guarantee::{Abort, Delete, DeleteTogether, ListUploads};
    let text = &TEXTS[&guarantee];
    let check = check(&text.check, remote);
    match outcome {
        Ok(true) => check.pass(&text.kept),
        Ok(false) if text.needed => check.fail(&text.broken, &text.advice),
        Ok(false) => check.warn(&text.broken, &text.advice),
        Err(error) if error.kind() == ErrorKind::Denied => {
            let advice = provider::right(remote.url.scheme, guarantee);
            match guarantee {
                // Uploads work without these.
                Delete | DeleteTogether | ListUploads | Abort => check.warn(error.to_string(), advice),
                _ => check.fail(error.to_string(), advice),
            }
        }
        Err(error) => {
            let otherwise = match guarantee {
                Guarantee::Multipart if remote.url.scheme == Scheme::Gcs => {
                    "use a store that supports multipart uploads, or set transport = \"json\" for this remote: files \
                     over 8 MiB need one of them"
                }
                Guarantee::Multipart => {
                    "use a store that supports multipart uploads: files over 8 MiB need them"
                }
                _ => REPEAT,
            };
            check.fail(error.to_string(), remedy(error, otherwise))
        }
    }
}

/// Replaces the finding on [`Guarantee::RefuseWrongBytes`] for a kind of store that accepts no checksums.
pub fn takes_no_checksums(remote: &RemoteSettings) -> Finding {
    check(&TEXTS[&Guarantee::RefuseWrongBytes].check, remote).pass(
        "this kind of store accepts no checksum: stepvault reads back and hashes every upload before it counts",
    )
}

/// Returns the finding on attributes requested for new objects: those that the store `ignored`, or an error of the
/// comparison. `None` where none is requested.
pub fn attributes(settings: &RemoteSettings, ignored: &Result<Vec<String>, Error>) -> Option<Finding> {
    let requested = requested(settings);
    if requested.is_empty() {
        return None;
    }
    let check = check("attributes", settings);
    let (measured, hint) = match ignored {
        Ok(ignored) if ignored.is_empty() => {
            let kept = requested.join(", ");
            return Some(check.pass(format!("the store keeps what is requested: {kept}")));
        }
        Ok(ignored) => (ignored.join("; "), IGNORED_ATTRIBUTES_HINT.to_owned()),
        Err(error) => (error.to_string(), remedy(error, REPEAT)),
    };
    Some(if settings.attributes_required {
        check.fail(measured, hint)
    } else {
        check.warn(measured, "nothing has to be done: attributes = \"if-supported\" accepts it")
    })
}

/// Returns the keys of the attributes that are requested for new objects.
fn requested(settings: &RemoteSettings) -> Vec<&'static str> {
    let is_encrypted = settings.server_side_encryption.is_some();
    [
        ("storage-class", settings.storage_class.is_some()),
        ("server-side-encryption", is_encrypted),
        ("kms-key", settings.kms_key.is_some()),
        ("tags", !settings.tags.is_empty()),
        ("expected-bucket-owner", settings.expected_bucket_owner.is_some()),
    ]
    .into_iter()
    .filter_map(|(key, is_requested)| is_requested.then_some(key))
    .collect()
}

/// Returns the finding on objects of the check itself that could not be removed.
pub fn left_behind(remote: &RemoteSettings, place: &str, error: &Error) -> Finding {
    check("clean-up", remote).warn(
        format!("objects of this check may be left below {place}: {error}"),
        "delete them, or run `stepvault gc`; they belong to no step",
    )
}

/// Returns the finding for checks that took too long as a whole.
pub fn out_of_time(remote: &RemoteSettings, limit_seconds: u64) -> Finding {
    check("network", remote).fail(
        format!("the checks did not finish within {limit_seconds} seconds: those missing here were not run"),
        "check the network to the store; uploads would be slow too",
    )
}

#[cfg(test)]
mod tests {
    use super::super::subject;
    use super::*;
    use crate::doctor::Outcome;

    const ALL: [Guarantee; 12] = [
        Guarantee::Put,
        Guarantee::CreateOnce,
        Guarantee::CompleteOnce,
        Guarantee::RefuseWrongBytes,
        Guarantee::Get,
        Guarantee::List,
        Guarantee::KeepNames,
        Guarantee::Multipart,
        Guarantee::ListUploads,
        Guarantee::Abort,
        Guarantee::Delete,
        Guarantee::DeleteTogether,
    ];

    fn denied() -> Error {
        Error::new(ErrorKind::Denied, "cannot delete the object").on("s3://b/k").hint("general advice")
    }

    #[test]
    fn what_is_kept_passes_and_what_the_service_cannot_do_without_fails() {
        let subject = subject("s3://b/p");
        for one in ALL {
            assert_eq!(guarantee(&subject, one, &Ok(true)).outcome, Outcome::Pass);
            let wanted = match one {
                Guarantee::CreateOnce
                | Guarantee::CompleteOnce
                | Guarantee::RefuseWrongBytes
                | Guarantee::KeepNames
                | Guarantee::ListUploads
                | Guarantee::Abort
                | Guarantee::Delete
                | Guarantee::DeleteTogether => Outcome::Warn,
                _ => Outcome::Fail,
            };
            let broken = guarantee(&subject, one, &Ok(false));
            assert_eq!(broken.outcome, wanted, "{one:?}");
            assert!(broken.remedy.is_some());
        }
    }

    #[test]
    fn a_store_that_takes_any_checksum_is_named_in_plain_words() {
        let finding = guarantee(&subject("s3://b/p"), Guarantee::RefuseWrongBytes, &Ok(false));
        assert_eq!(finding.check, "checksum rejection");
        assert_eq!(
            finding.measured,
            "the store accepted bytes that do not match the checksum sent with them: it would store data damaged in \
             transit without an error"
        );
    }

    #[test]
    fn a_right_that_is_missing_is_named_by_the_providers_name() {
        for (url, one, outcome, right) in [
            ("s3://b", Guarantee::Put, Outcome::Fail, "s3:PutObject"),
            ("s3://b", Guarantee::Get, Outcome::Fail, "s3:GetObject"),
            ("s3://b", Guarantee::Delete, Outcome::Warn, "s3:DeleteObject"),
            ("s3://b", Guarantee::Abort, Outcome::Warn, "s3:AbortMultipartUpload"),
            ("gs://b", Guarantee::List, Outcome::Fail, "storage.objects.list"),
            ("gs://b", Guarantee::Multipart, Outcome::Fail, "storage.multipartUploads.create"),
            ("az://b", Guarantee::Put, Outcome::Fail, "Storage Blob Data Contributor"),
            ("file:///b", Guarantee::Put, Outcome::Fail, "the user that runs stepvault"),
        ] {
            let finding = guarantee(&subject(url), one, &Err(denied()));
            assert_eq!(finding.outcome, outcome, "{url} {one:?}");
            assert!(finding.remedy.unwrap().contains(right), "{url} {one:?}");
        }
    }

    #[test]
    fn any_other_error_fails_with_its_own_words() {
        let error = Error::new(ErrorKind::NoSpace, "cannot write the object").hint("free some space");
        let finding = guarantee(&subject("s3://b"), Guarantee::Delete, &Err(error));
        assert_eq!(finding.outcome, Outcome::Fail);
        assert_eq!(finding.measured, "cannot write the object");
        assert_eq!(finding.remedy.as_deref(), Some("free some space"));
    }
}
