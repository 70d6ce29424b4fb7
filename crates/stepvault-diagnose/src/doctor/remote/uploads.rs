//! Reports incomplete multipart uploads, in the same form as leftovers in directories.

use std::time::Duration;

use super::{check, provider};
use crate::doctor::Finding;
use crate::doctor::leftovers::{CHECK, named};
use stepvault_core::store_facts::LeftBytes;
use stepvault_core::words;
use stepvault_core::{Error, ErrorKind, RemoteSettings};

/// If an upload is younger than this, `stepvault gc` does not abort it by default: it may still be in progress.
pub const GC_UPLOADS_AFTER_SECONDS: u64 = 24 * 60 * 60;

/// An upload that was started and neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftUpload {
    /// The key of the object that it would become.
    pub key: String,
    /// Seconds since it was started; `None` if the store does not report it.
    pub age_seconds: Option<u64>,
    /// The size of its parts, if it was requested.
    pub bytes: Option<LeftBytes>,
}

/// The incomplete uploads of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftUploads {
    /// The uploads of stepvault's key layout.
    pub uploads: Vec<LeftUpload>,
    /// Whether the listing was read to its end.
    pub all: bool,
    /// Why sizes are unknown, if the store refused to report them.
    pub sizes_refused: Option<String>,
}

/// Returns the finding on incomplete uploads of one run; `command` is the `stepvault gc` that removes them.
pub fn left_uploads(remote: &RemoteSettings, found: &LeftUploads, command: &str) -> Finding {
    let check = check(CHECK, remote);
    if found.uploads.is_empty() {
        return check.pass(if found.all {
            "no upload is pending"
        } else {
            "too many uploads are pending to check all; none of those checked belongs to a run of stepvault"
        });
    }
    let mut oldest_first: Vec<&LeftUpload> = found.uploads.iter().collect();
    oldest_first.sort_by_key(|upload| std::cmp::Reverse(upload.age_seconds));
    let keys: Vec<&str> = oldest_first.iter().map(|upload| upload.key.as_str()).collect();
    let (paths, more) = named(&keys);
    let more_than = if found.all { "" } else { "more than " };
    let oldest = oldest_first.first().and_then(|upload| upload.age_seconds);
    let age = oldest.map_or_else(
        || "of unknown age".to_owned(),
        |seconds| format!("the oldest {} old", words::duration(Duration::from_secs(seconds))),
    );
    let measured = format!(
        "{more_than}{}, {}, {age}: {paths}{more}",
        words::count(found.uploads.len() as u64, "pending upload"),
        size(found),
    );
    if oldest.is_none_or(|seconds| seconds < GC_UPLOADS_AFTER_SECONDS) {
        return check.pass(format!("{measured}; a process may still be writing them"));
    }
    check.warn(
        measured,
        format!("delete those that are older than a day, whose parts are stored and billed: {command}"),
    )
}

/// Returns `12.0 GiB in total`, as far as the sizes are known.
fn size(found: &LeftUploads) -> String {
    let told: Vec<LeftBytes> = found.uploads.iter().filter_map(|upload| upload.bytes).collect();
    let bytes = told.iter().fold(0_u64, |sum, left| sum.saturating_add(left.bytes));
    let whole = found.all && told.len() == found.uploads.len() && told.iter().all(|left| left.all);
    match (&found.sizes_refused, told.is_empty(), whole) {
        (Some(why), true, _) => format!("of unknown size ({why})"),
        (None, true, _) => "of unknown size".to_owned(),
        (_, false, true) => format!("{} in total", words::bytes(bytes)),
        (_, false, false) => format!("at least {} in total", words::bytes(bytes)),
    }
}

/// Returns the finding for a store that does not list pending uploads.
pub fn uploads_not_listed(remote: &RemoteSettings) -> Finding {
    check(CHECK, remote)
        .pass("this store does not list pending uploads: only a rule of the bucket removes abandoned ones")
}

/// Returns the finding for pending uploads that could not be listed.
pub fn uploads_unread(remote: &RemoteSettings, error: &Error) -> Finding {
    let advice = if error.kind() == ErrorKind::Denied {
        format!("check it yourself, or {}", provider::uploads_right(remote.url.scheme))
    } else {
        "run the check again: incomplete uploads of lost nodes are stored and billed".to_owned()
    };
    check(CHECK, remote).warn(error.to_string(), advice)
}

#[cfg(test)]
mod tests {
    use super::super::subject;
    use super::*;
    use crate::doctor::Outcome;

    const COMMAND: &str = "stepvault gc --run grpo --remote main";
    const DAY: u64 = 86_400;

    fn left(number: u32, age_seconds: Option<u64>, bytes: Option<(u64, bool)>) -> LeftUpload {
        LeftUpload {
            key: format!("grpo/{number:012}.a1/step_{number}/model.bin"),
            age_seconds,
            bytes: bytes.map(|(bytes, all)| LeftBytes { bytes, all }),
        }
    }

    fn found(uploads: Vec<LeftUpload>) -> LeftUploads {
        LeftUploads { uploads, all: true, sizes_refused: None }
    }

    #[test]
    fn an_old_one_is_warned_of_with_what_removes_it() {
        let uploads =
            vec![left(1, Some(60), Some((1 << 20, true))), left(2, Some(3 * DAY), Some((5 << 30, true)))];
        let finding = left_uploads(&subject("s3://b/p"), &found(uploads), COMMAND);
        assert_eq!((finding.check, finding.subject.as_str()), ("leftovers", "main"));
        assert_eq!(finding.outcome, Outcome::Warn);
        assert_eq!(
            finding.measured,
            "2 pending uploads, 5.0 GiB in total, the oldest 3days old: \
             grpo/000000000002.a1/step_2/model.bin grpo/000000000001.a1/step_1/model.bin"
        );
        assert_eq!(
            finding.remedy.as_deref(),
            Some(
                "delete those that are older than a day, whose parts are stored and billed: stepvault gc --run grpo \
                 --remote main"
            )
        );
    }

    #[test]
    fn young_ones_are_counted() {
        let none = left_uploads(&subject("s3://b"), &found(Vec::new()), COMMAND);
        assert_eq!((none.outcome, none.measured.as_str()), (Outcome::Pass, "no upload is pending"));
        let young = found(vec![left(1, Some(DAY - 1), Some((3 << 20, true)))]);
        let finding = left_uploads(&subject("s3://b"), &young, COMMAND);
        assert_eq!(
            (finding.outcome, finding.measured.as_str()),
            (
                Outcome::Pass,
                "1 pending upload, 3.0 MiB in total, the oldest 23h 59m old: \
                 grpo/000000000001.a1/step_1/model.bin; a process may still be writing them"
            )
        );
        let of_no_age = found(vec![left(1, None, None)]);
        let finding = left_uploads(&subject("gs://b"), &of_no_age, COMMAND);
        assert_eq!(finding.outcome, Outcome::Pass, "gc leaves those alone too");
        assert!(finding.measured.contains("of unknown size, of unknown age"), "{finding:?}");
    }

    #[test]
    fn what_was_not_asked_is_not_made_up() {
        let measured = |found: &LeftUploads| left_uploads(&subject("s3://b"), found, COMMAND).measured;
        let some = found(vec![left(1, Some(DAY), Some((2 << 20, true))), left(2, Some(DAY), None)]);
        assert!(measured(&some).contains(", at least 2.0 MiB in total,"), "{some:?}");
        let more_parts = found(vec![left(1, Some(DAY), Some((2 << 20, false)))]);
        assert!(measured(&more_parts).contains(", at least 2.0 MiB in total,"));
        let refused = LeftUploads {
            sizes_refused: Some("cannot list the parts: refused".to_owned()),
            ..found(vec![left(1, Some(DAY), None)])
        };
        assert!(measured(&refused).contains(", of unknown size (cannot list the parts: refused),"));
        let cut = LeftUploads {
            all: false,
            ..found((0..5).map(|number| left(number, Some(DAY), Some((1, true)))).collect())
        };
        let text = measured(&cut);
        assert!(text.starts_with("more than 5 pending uploads, at least 5 B in total,"), "{text}");
        assert!(text.ends_with(" and 2 more"), "{text}");
        let none_of_ours = LeftUploads::default();
        assert!(measured(&none_of_ours).contains("too many uploads are pending to check all"));
    }

    #[test]
    fn a_listing_that_is_refused_is_said_and_fails_nothing() {
        let denied = Error::new(ErrorKind::Denied, "cannot list pending uploads");
        for (url, right) in
            [("s3://b", "s3:ListBucketMultipartUploads"), ("gs://b", "storage.multipartUploads.list")]
        {
            let finding = uploads_unread(&subject(url), &denied);
            assert_eq!(finding.outcome, Outcome::Warn);
            assert!(finding.remedy.unwrap().contains(right));
            assert_eq!(finding.measured, "cannot list pending uploads");
        }
        let silent = Error::new(ErrorKind::Unreachable, "cannot list pending uploads");
        let finding = uploads_unread(&subject("s3://b"), &silent);
        assert!(finding.remedy.unwrap().starts_with("run the check again"));
        assert_eq!(uploads_not_listed(&subject("s3://b")).outcome, Outcome::Pass);
    }
}
