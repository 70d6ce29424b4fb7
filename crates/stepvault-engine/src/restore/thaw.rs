//! Makes the archived objects of a step readable, and waits for it.

use std::time::Duration;

use futures::stream::{StreamExt as _, TryStreamExt as _, iter};
use stepvault_core::words::count;
use stepvault_core::{Error, ErrorKind, Result, StepId};
use stepvault_remote::store::{ThawSpeed, Thawed};
use tokio::time::{Instant, sleep};

use super::candidates::Candidate;
use super::fetch::take_leases;
use super::request::{RestoreContext, ThawOptions};
use super::resolve::{ResolvedStep, Source};
use crate::tier::run_remote::RunRemote;

/// Number of objects that are requested at once.
const AT_ONCE: usize = 32;
/// First and longest interval at which the store is asked whether they are readable.
const INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// Objects of one step that cannot be read yet.
struct Pending {
    keys: Vec<String>,
    /// The class of one of them.
    class: String,
}

/// Requests every archived file of a step from the remote that is read first, and returns when all of them are readable. A
/// lease keeps the step meanwhile.
///
/// # Errors
/// [`ErrorKind::Archived`] if some are not readable in time; they stay requested, and a later call goes on from there.
pub(super) async fn thaw_files(
    context: &RestoreContext,
    step: &ResolvedStep,
    options: ThawOptions,
) -> Result<()> {
    let remote = step.sources.iter().find_map(|source| match source {
        Source::Remote(remote) => Some(remote),
        Source::Local(_) => None,
    });
    let Some(remote) = remote else { return Ok(()) };
    let keys = step.files.iter().map(|file| step.keys.key(&file.path));
    let keys = keys.collect::<Result<Vec<_>>>()?;
    let leases = take_leases(context, step).await;
    let thawed = wait_until_readable(context, remote, step.id, keys, options).await;
    for lease in leases {
        // Read-only credentials cannot release it.
        let _ = lease.release().await;
    }
    thawed
}

/// As [`thaw_files`], the commit and the part manifests of a step, which a lifecycle rule for the whole bucket archives too.
///
/// # Errors
/// As for [`thaw_files`].
pub(super) async fn thaw_records(
    context: &RestoreContext,
    candidate: &Candidate,
    options: ThawOptions,
) -> Result<()> {
    let (Some(remote), id) = (candidate.remotes.first(), candidate.id) else { return Ok(()) };
    let parts = remote.list(&remote.keys.step_parts_prefix(id)).await?.into_iter();
    let keys = parts.map(|part| part.key).chain([remote.keys.commit(id)]);
    wait_until_readable(context, remote, id, keys.collect(), options).await
}

async fn wait_until_readable(
    context: &RestoreContext,
    remote: &RunRemote,
    id: StepId,
    mut keys: Vec<String>,
    ThawOptions { speed, patience }: ThawOptions,
) -> Result<()> {
    let (give_up, (mut interval, longest)) = (Instant::now() + patience, INTERVALS);
    let mut told = None;
    loop {
        let Pending { keys: left, class } = request(remote, keys, speed).await?;
        if left.is_empty() {
            return Ok(());
        }
        let text = format!(
            "{} on {} in the archive ({class}), requested with {} retrieval, which takes {} and is charged by the store",
            count(left.len() as u64, "object"),
            remote.name(),
            speed.name(),
            speed.expected(&class),
        );
        if Instant::now() + interval > give_up {
            return Err(Error::new(ErrorKind::Archived, "cannot read the step yet")
                .on(format!("{id} of run '{}'", remote.keys.run()))
                .because(format!("it has {text}"))
                .hint("run the same command again later, or let it wait: --timeout 12h")
                .lasting());
        }
        if told.replace(left.len()) != Some(left.len()) {
            context.observer.info(format!("{id} waits for {text}"));
        }
        sleep(interval).await;
        (keys, interval) = (left, (interval * 2).min(longest));
    }
}

/// Requests each object, and returns those that are not readable yet.
async fn request(remote: &RunRemote, keys: Vec<String>, speed: ThawSpeed) -> Result<Pending> {
    let asked = iter(keys).map(|key| async move {
        let thawed = remote.store.thaw(&key, speed).await?;
        Ok::<_, Error>((key, thawed))
    });
    let mut pending = Pending { keys: Vec::new(), class: String::new() };
    let mut answers = asked.buffer_unordered(AT_ONCE);
    while let Some((key, thawed)) = answers.try_next().await? {
        if let Thawed::Pending { class } = thawed {
            pending.keys.push(key);
            pending.class = class;
        }
    }
    Ok(pending)
}
