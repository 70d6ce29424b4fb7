//! Finds pending uploads left by lost nodes, in a few requests.

use std::cmp::Reverse;
use std::time::Duration;

use futures::StreamExt as _;
use stepvault_core::keys::RunKeys;
use stepvault_core::{Error, ErrorKind, RemoteSettings, Result, Timestamp};
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::remote::{self as judge, LeftUpload, LeftUploads};
use stepvault_remote::examine::Examined;
use stepvault_remote::store::PendingUpload;
use tokio::time::timeout;

/// Maximum number of listing pages for each run: 3,000 uploads.
const MAX_PAGES: usize = 3;
/// Number of uploads whose parts are counted: the oldest ones.
const COUNTED: usize = 16;
const AT_ONCE: usize = 8;
/// Time limit for counting; the rest stays uncounted.
const COUNTING_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for the whole check.
const LIMIT: Duration = Duration::from_secs(12);

/// The gc command of one run, whose pending uploads are searched.
#[derive(Debug, Clone)]
pub struct GcCommand {
    /// Its layout; `None` if no run was given, for everything below the remote's prefix.
    pub keys: Option<RunKeys>,
    /// The `stepvault gc` that removes what is found.
    pub command: String,
}

/// Returns one finding for each run that has pending uploads, at `now` by the store's clock.
pub(super) async fn left_uploads(
    examined: &Examined,
    remote: &RemoteSettings,
    runs: &[GcCommand],
    now: Timestamp,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut nothing = None;
    let looking = async {
        for run in runs {
            match of_run(examined, run, now).await {
                Ok(Some(found)) => {
                    let finding = judge::left_uploads(remote, &found, &run.command);
                    if found.uploads.is_empty() {
                        nothing = Some(finding);
                    } else {
                        findings.push(finding);
                    }
                }
                Ok(None) => {
                    findings.push(judge::uploads_not_listed(remote));
                    break;
                }
                // It would be the same for the other runs.
                Err(error) => {
                    findings.push(judge::uploads_unread(remote, &error));
                    break;
                }
            }
        }
    };
    if timeout(LIMIT, looking).await.is_err() {
        let error = Error::new(ErrorKind::Unreachable, "cannot list pending uploads")
            .because(format!("not done within {} seconds", LIMIT.as_secs()));
        findings.push(judge::uploads_unread(remote, &error));
    }
    if findings.is_empty() {
        findings.extend(nothing);
    }
    findings
}

async fn of_run(examined: &Examined, run: &GcCommand, now: Timestamp) -> Result<Option<LeftUploads>> {
    let prefix = run.keys.as_ref().map_or_else(String::new, RunKeys::prefix);
    let Some(listed) = examined.pending_uploads(&prefix, MAX_PAGES).await? else {
        return Ok(None);
    };
    // As in `gc`: uploads outside stepvault's layout belong to someone else.
    let ours = |upload: &PendingUpload| {
        let keys = run.keys.as_ref();
        keys.is_none_or(|keys| keys.classify(&upload.key).is_some())
    };
    let mut pending: Vec<PendingUpload> = listed.uploads.into_iter().filter(ours).collect();
    pending.sort_by_key(|upload| Reverse(age_seconds(upload, now)));
    let mut found = LeftUploads {
        uploads: pending.iter().map(|upload| left(upload, now)).collect(),
        all: listed.all,
        sizes_refused: None,
    };
    // What was counted before the timeout is kept.
    let _ = timeout(COUNTING_LIMIT, count(examined, &pending, &mut found)).await;
    Ok(Some(found))
}

async fn count(examined: &Examined, pending: &[PendingUpload], found: &mut LeftUploads) {
    let asked = pending.iter().enumerate().take(COUNTED);
    let mut answers = futures::stream::iter(asked)
        .map(|(index, upload)| async move { (index, examined.uploaded_bytes(upload).await) })
        .buffer_unordered(AT_ONCE);
    while let Some((index, answer)) = answers.next().await {
        match answer {
            Ok(bytes) => {
                if let Some(upload) = found.uploads.get_mut(index) {
                    upload.bytes = bytes;
                }
            }
            Err(error) => {
                found.sizes_refused = Some(error.to_string());
                return;
            }
        }
    }
}

fn left(upload: &PendingUpload, now: Timestamp) -> LeftUpload {
    LeftUpload { key: upload.key.clone(), age_seconds: age_seconds(upload, now), bytes: None }
}

fn age_seconds(upload: &PendingUpload, now: Timestamp) -> Option<u64> {
    upload.initiated.map(|begun| now.seconds_since(begun.into()))
}
