//! The guarantees that stepvault needs from every store, one request at a time, and what it means if a store lacks
//! one.

use super::{check, provider, remedy};
use crate::doctor::Finding;
use stepvault_core::error::{Error, ErrorKind};
use stepvault_core::remote_settings::{IGNORED_ATTRIBUTES_HINT, RemoteSettings, Scheme};

/// One guarantee of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

struct GuaranteeText {
    check: &'static str,
    kept: &'static str,
    broken: &'static str,
    /// What to do if it does not hold.
    advice: &'static str,
    /// Whether stepvault cannot work without it.
    needed: bool,
}

impl Guarantee {
    fn words(self) -> GuaranteeText {
        let words =
            |check, kept, broken, advice, needed| GuaranteeText { check, kept, broken, advice, needed };
        match self {
            Self::Put => words(
                "put",
                "an object was written and found",
                "the store acknowledged a write, but the object does not exist",
                "do not use this store",
                true,
            ),
            Self::CreateOnce => words(
                "conditional create",
                "a second create of the same key was refused",
                "a second create of the same key replaced the first object: this store does not support \
                 create-if-absent",
                "use a store that honours If-None-Match, or let only one writer at a time work on a run: two writers \
                 of one step would not detect each other",
                false,
            ),
            Self::CompleteOnce => words(
                "conditional create",
                "a second create of the same key was refused",
                "a second create was refused, but the completion of a multipart upload replaced the object",
                "let only one writer at a time work on a run: two of them would not detect each other's large files",
                false,
            ),
            Self::RefuseWrongBytes => words(
                "checksum rejection",
                "bytes sent with a wrong checksum were refused, or detected at once and not kept",
                "the store accepted bytes that do not match the checksum sent with them: it would store data damaged \
                 in transit without an error",
                "nothing to do with read-back = \"auto\": stepvault then reads back and hashes every upload before \
                 it counts, which costs one download per upload; a store that verifies checksums avoids that",
                false,
            ),
            Self::Get => words(
                "get",
                "the object was read back byte for byte",
                "the bytes read back differ from those written",
                "do not use this store; look for a proxy or gateway that changes request bodies",
                true,
            ),
            Self::List => words(
                "list",
                "the object was listed right after it was written",
                "the object was not listed right after it was written: steps are found by listing",
                "use a store whose listings are up to date at once",
                true,
            ),
            Self::KeepNames => words(
                "names",
                "an object with unusual characters in its name was listed under the same name",
                "an object with unusual characters in its name was not listed under the same name",
                "avoid backslashes, spaces, percent signs and non-ASCII characters in the names of checkpoint files: \
                 a step that has them does not become durable here",
                false,
            ),
            Self::Multipart => words(
                "multipart upload",
                "a multipart upload was completed and found",
                "the store acknowledged the completion of a multipart upload, but the object does not exist",
                "do not use this store for files over 8 MiB",
                true,
            ),
            Self::ListUploads => words(
                "unfinished uploads",
                "an unfinished multipart upload was listed",
                "an unfinished multipart upload is not listed under its directory: `stepvault gc` cannot find what an \
                 interrupted upload leaves",
                "add a rule to the bucket that deletes abandoned uploads, or let the store's own tool delete them \
                 (MinIO: mc rm --incomplete)",
                false,
            ),
            Self::Abort => words(
                "multipart abort",
                "a multipart upload was aborted, and its parts are gone",
                "a multipart upload is still listed after it was aborted",
                "add a rule to the bucket that deletes abandoned uploads: their parts are stored and billed",
                false,
            ),
            Self::Delete => words(
                "delete",
                "an object was deleted and is gone",
                "an object was deleted but still exists",
                "check retention locks and legal holds on the bucket: prune and gc cannot free anything here",
                false,
            ),
            Self::DeleteTogether => words(
                "batch delete",
                "several objects were deleted with one request",
                "the store refuses to delete several objects with one request",
                "nothing has to be done: prune and gc delete one object per request here, which takes longer",
                false,
            ),
        }
    }
}

const REPEAT: &str = "repeat the check; if it fails again, ask the operator of the store";

/// Returns the finding on one guarantee: it holds, it does not, or the request failed.
pub fn guarantee(remote: &RemoteSettings, guarantee: Guarantee, outcome: &Result<bool, Error>) -> Finding {
    use Guarantee::{Abort, Delete, DeleteTogether, ListUploads};
    let words = guarantee.words();
    let check = check(words.check, remote);
    match outcome {
        Ok(true) => check.pass(words.kept),
        Ok(false) if words.needed => check.fail(words.broken, words.advice),
        Ok(false) => check.warn(words.broken, words.advice),
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
    check(Guarantee::RefuseWrongBytes.words().check, remote).pass(
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

    const ALL: [Guarantee; 10] = [
        Guarantee::Put,
        Guarantee::CreateOnce,
        Guarantee::RefuseWrongBytes,
        Guarantee::Get,
        Guarantee::List,
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
                | Guarantee::RefuseWrongBytes
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
