//! Judges whether an entry is finished, by the configured rule and by how long it has been unchanged.

use std::time::Duration;

use stepvault_core::config::Completion;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::completeness::{FileFacts, Rule, StepFacts, Verdict, verdict};
use stepvault_local::tree::Tree;

use super::entry::Sighting;

/// The judgement about an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It is finished.
    Finished,
    /// It is not finished, or nothing proves it yet.
    NotYet {
        /// The cause, as text.
        why: String,
        /// When it may be finished, if it is not modified.
        look_again_in: Option<Duration>,
    },
}

pub(super) fn judge(
    completion: &Completion,
    name: &str,
    tree: &Tree,
    sighting: Sighting,
    now: Timestamp,
) -> Judgement {
    let rule = match completion {
        Completion::Rename => Rule::Rename,
        Completion::Marker(file) => Rule::Marker {
            file: file.as_str().to_owned(),
        },
        Completion::Quiet(time) | Completion::Auto(time) => Rule::Quiet {
            seconds: whole_seconds(*time),
        },
    };
    let quiet_time = match completion {
        Completion::Quiet(time) | Completion::Auto(time) => *time,
        _ => Duration::ZERO,
    };
    let watched = sighting.since.elapsed();
    let newest = tree.newest_mtime();
    // Files dated in the future were stamped by another clock (a file server's). Then only the watched time counts.
    let now = if newest > now && watched >= quiet_time {
        later(newest, quiet_time)
    } else {
        now
    };
    let files: Vec<FileFacts<'_>> = tree
        .files
        .iter()
        .map(|file| FileFacts {
            path: file.path.as_str(),
            mtime: file.mtime,
        })
        .collect();
    let proof = verdict(&rule, &StepFacts { name, files: &files }, now);
    let (Completion::Quiet(_) | Completion::Auto(_)) = completion else {
        return match proof {
            Verdict::Complete => Judgement::Finished,
            Verdict::NotYet { why } => Judgement::NotYet {
                why,
                look_again_in: None,
            },
        };
    };
    let still_to_watch = quiet_time.saturating_sub(watched);
    let still_too_young =
        Duration::from_secs(whole_seconds(quiet_time).saturating_sub(now.seconds_since(newest)));
    let look_again_in = Some(still_to_watch.max(still_too_young));
    match proof {
        Verdict::NotYet { why } => Judgement::NotYet { why, look_again_in },
        Verdict::Complete if sighting.looks < 2 || !still_to_watch.is_zero() => Judgement::NotYet {
            why: format!(
                "it was watched for {} s and must be unchanged for {} s",
                watched.as_secs(),
                whole_seconds(quiet_time)
            ),
            look_again_in,
        },
        Verdict::Complete => Judgement::Finished,
    }
}

/// Rounded up, so that half a second is not shown as zero.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    let seconds = i64::try_from(whole_seconds(by)).unwrap_or(i64::MAX);
    Timestamp {
        seconds: time.seconds.saturating_add(seconds),
        ..time
    }
}
