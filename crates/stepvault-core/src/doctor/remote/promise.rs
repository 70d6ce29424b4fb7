//! What stepvault asks of every store, one request at a time, and what it means when a store does otherwise.

use super::{Subject, remedy};
use crate::doctor::Finding;
use crate::error::{Error, ErrorKind};
use crate::remote_settings::Scheme;

/// One thing that a store has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// An object that was written is there.
    Put,
    /// A second create of the same key is refused, also when an upload in parts is completed.
    CreateOnce,
    /// Bytes with a wrong checksum are refused, in one request and in parts.
    RefuseWrongBytes,
    /// What comes back is what was written.
    Get,
    /// What was written is listed at once.
    List,
    /// An upload in parts becomes an object.
    Multipart,
    /// An upload in parts can be given up.
    Abort,
    /// What is deleted is gone.
    Delete,
}

struct Words {
    check: &'static str,
    kept: &'static str,
    broken: &'static str,
    /// What to do when it is broken.
    advice: &'static str,
    /// Whether the service does its work without it.
    needed: bool,
}

impl Promise {
    fn words(self) -> Words {
        let words = |check, kept, broken, advice, needed| Words {
            check,
            kept,
            broken,
            advice,
            needed,
        };
        match self {
            Self::Put => words(
                "put",
                "an object was written and found",
                "an object was written, the store said that all was well, and it is not there",
                "do not use this store",
                true,
            ),
            Self::CreateOnce => words(
                "conditional create",
                "a second create of the same key was refused",
                "a second create of the same key replaced the first object: this store does not know \
                 create-if-absent",
                "let only one writer at a time work on a run, or use a store that honours If-None-Match: two \
                 writers of one step would not see each other",
                false,
            ),
            Self::RefuseWrongBytes => words(
                "checksum rejection",
                "bytes sent with a wrong checksum were refused, or found wrong at once, and did not stay",
                "the store accepted bytes that do not match the checksum sent with them: what is damaged on its \
                 way is stored and called good",
                "nothing, with read-back = \"auto\": every upload is then read back and hashed before it counts, \
                 which takes one download more per upload; a store that checks saves that",
                false,
            ),
            Self::Get => words(
                "get",
                "the object was read back byte for byte",
                "other bytes came back than were written",
                "do not use this store; look for a proxy or gateway between that changes bodies",
                true,
            ),
            Self::List => words(
                "list",
                "the object was listed right after it was written",
                "the object was not listed right after it was written: steps are found by listing",
                "use a store whose listings are up to date at once",
                true,
            ),
            Self::Multipart => words(
                "multipart upload",
                "an upload in parts was completed and found",
                "an upload in parts was completed, the store said that all was well, and it is not there",
                "do not use this store for files over 8 MiB",
                true,
            ),
            Self::Abort => words(
                "multipart abort",
                "an upload in parts was given up, and its parts are gone",
                "an upload in parts is still listed after it was given up",
                "add a rule to the bucket that drops abandoned uploads: their parts are stored and paid for",
                false,
            ),
            Self::Delete => words(
                "delete",
                "an object was deleted, and is gone",
                "an object was deleted, and is still there",
                "check retention locks and legal holds on the bucket: prune and gc cannot free anything here",
                false,
            ),
        }
    }

    /// The right that it takes.
    fn right(self, scheme: Scheme) -> &'static str {
        match (scheme, self) {
            (Scheme::S3, Self::Get) => "allow s3:GetObject",
            (Scheme::S3, Self::List) => "allow s3:ListBucket",
            (Scheme::S3, Self::Delete) => {
                "allow s3:DeleteObject to whoever runs prune and gc; uploads do without it"
            }
            (Scheme::S3, Self::Abort) => "allow s3:AbortMultipartUpload and s3:ListBucketMultipartUploads",
            (Scheme::S3, _) => "allow s3:PutObject (and kms:GenerateDataKey and kms:Decrypt for a kms-key)",
            (Scheme::Gcs, Self::Get) => "grant storage.objects.get",
            (Scheme::Gcs, Self::List) => "grant storage.objects.list",
            (Scheme::Gcs, Self::Delete) => {
                "grant storage.objects.delete to whoever runs prune and gc; uploads do without it"
            }
            (Scheme::Gcs, Self::Abort) => {
                "grant storage.multipartUploads.abort and storage.multipartUploads.list"
            }
            (Scheme::Gcs, Self::Multipart) => {
                "grant storage.multipartUploads.create and storage.objects.create"
            }
            (Scheme::Gcs, _) => "grant storage.objects.create",
            (Scheme::Azure, _) => "grant the role Storage Blob Data Contributor on the container",
            (Scheme::File | Scheme::Memory, _) => {
                "give the user that runs stepvault the right to read and write there"
            }
        }
    }
}

/// The finding on one promise: kept, broken, or an error instead of an answer.
pub fn promise(subject: &Subject, promise: Promise, outcome: &Result<bool, Error>) -> Finding {
    let words = promise.words();
    match outcome {
        Ok(true) => Finding::pass(words.check, &subject.name, words.kept),
        Ok(false) if words.needed => Finding::fail(words.check, &subject.name, words.broken, words.advice),
        Ok(false) => Finding::warn(words.check, &subject.name, words.broken, words.advice),
        Err(error) if error.kind() == ErrorKind::Denied => {
            let advice = promise.right(subject.scheme);
            let measured = error.to_string();
            // Uploads go on without these two.
            if matches!(promise, Promise::Delete | Promise::Abort) {
                Finding::warn(words.check, &subject.name, measured, advice)
            } else {
                Finding::fail(words.check, &subject.name, measured, advice)
            }
        }
        Err(error) => {
            let otherwise = match promise {
                Promise::Multipart => "use a store that takes uploads in parts: files over 8 MiB go so",
                _ => "repeat it; if it stays so, ask whoever runs the store",
            };
            let advice = remedy(error, otherwise);
            Finding::fail(words.check, &subject.name, error.to_string(), advice)
        }
    }
}

/// Instead of [`Promise::RefuseWrongBytes`], for a kind of store that is given no checksum.
pub fn takes_no_checksums(subject: &Subject) -> Finding {
    Finding::pass(
        Promise::RefuseWrongBytes.words().check,
        &subject.name,
        "this kind of store takes no checksum: every upload is read back and hashed before it counts",
    )
}

/// Objects of the examination itself that could not be removed.
pub fn left_behind(subject: &Subject, place: &str, error: &Error) -> Finding {
    Finding::warn(
        "clean-up",
        &subject.name,
        format!("objects of this examination may be left below {place}: {error}"),
        "delete them, or let `stepvault gc` do so; they belong to no step",
    )
}

/// The examination as a whole took too long.
pub fn out_of_time(subject: &Subject, limit_seconds: u64) -> Finding {
    Finding::fail(
        "network",
        &subject.name,
        format!(
            "the checks were not done within {limit_seconds} seconds: what is missing here was not tried"
        ),
        "check the network to the store; uploads would be as slow",
    )
}

#[cfg(test)]
mod tests {
    use super::super::subject;
    use super::*;
    use crate::doctor::Outcome;

    const ALL: [Promise; 8] = [
        Promise::Put,
        Promise::CreateOnce,
        Promise::RefuseWrongBytes,
        Promise::Get,
        Promise::List,
        Promise::Multipart,
        Promise::Abort,
        Promise::Delete,
    ];

    fn denied() -> Error {
        Error::new(ErrorKind::Denied, "cannot delete the object")
            .on("s3://b/k")
            .hint("general advice")
    }

    #[test]
    fn what_is_kept_passes_and_what_the_service_cannot_do_without_fails() {
        let subject = subject("s3://b/p");
        for one in ALL {
            assert_eq!(promise(&subject, one, &Ok(true)).outcome, Outcome::Pass);
            let wanted = match one {
                Promise::CreateOnce | Promise::RefuseWrongBytes | Promise::Abort | Promise::Delete => {
                    Outcome::Warn
                }
                _ => Outcome::Fail,
            };
            let broken = promise(&subject, one, &Ok(false));
            assert_eq!(broken.outcome, wanted, "{one:?}");
            assert!(broken.remedy.is_some());
        }
    }

    #[test]
    fn a_store_that_takes_any_checksum_is_named_in_plain_words() {
        let finding = promise(&subject("s3://b/p"), Promise::RefuseWrongBytes, &Ok(false));
        assert_eq!(finding.check, "checksum rejection");
        assert_eq!(
            finding.measured,
            "the store accepted bytes that do not match the checksum sent with them: what is damaged on its way is \
             stored and called good"
        );
    }

    #[test]
    fn a_right_that_is_missing_is_named_by_the_providers_name() {
        for (url, one, outcome, right) in [
            ("s3://b", Promise::Put, Outcome::Fail, "s3:PutObject"),
            ("s3://b", Promise::Get, Outcome::Fail, "s3:GetObject"),
            ("s3://b", Promise::Delete, Outcome::Warn, "s3:DeleteObject"),
            ("s3://b", Promise::Abort, Outcome::Warn, "s3:AbortMultipartUpload"),
            ("gs://b", Promise::List, Outcome::Fail, "storage.objects.list"),
            (
                "gs://b",
                Promise::Multipart,
                Outcome::Fail,
                "storage.multipartUploads.create",
            ),
            (
                "az://b",
                Promise::Put,
                Outcome::Fail,
                "Storage Blob Data Contributor",
            ),
            (
                "file:///b",
                Promise::Put,
                Outcome::Fail,
                "the user that runs stepvault",
            ),
        ] {
            let finding = promise(&subject(url), one, &Err(denied()));
            assert_eq!(finding.outcome, outcome, "{url} {one:?}");
            assert!(finding.remedy.unwrap().contains(right), "{url} {one:?}");
        }
    }

    #[test]
    fn any_other_error_fails_with_its_own_words() {
        let error = Error::new(ErrorKind::NoSpace, "cannot write the object").hint("free some space");
        let finding = promise(&subject("s3://b"), Promise::Delete, &Err(error));
        assert_eq!(finding.outcome, Outcome::Fail);
        assert_eq!(finding.measured, "cannot write the object");
        assert_eq!(finding.remedy.as_deref(), Some("free some space"));
    }
}
