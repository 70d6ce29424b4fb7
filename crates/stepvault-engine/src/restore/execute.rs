//! Executes a restore: stages all parts, then publishes with one rename.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stepvault_core::observe::{Event, Tier};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::space;
use stepvault_local::staging::{Existing, Staging};
use tokio::time::Instant;

use super::handoff::{HandedOver, Handoff};
use super::part::{PartOutcome, Unfit, fetch_part};
use super::resolve::{Resolved, Source};
use super::staged_file::FileRestore;
use super::target::Left;
use super::{RestoreContext, RestoreDecision, RestoreRequest};
use crate::blocking::blocking;
use crate::leases::HeldLease;
use crate::workers::run_bounded;

/// Where the restored bytes came from.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes by tier.
    pub bytes_by_tier: BTreeMap<Tier, u64>,
    /// Valid bytes that an interrupted restore had left.
    pub kept_bytes: u64,
}

/// State shared by all workers of one restore.
struct Shared {
    context: RestoreContext,
    resolved: Arc<Resolved>,
    staging: Arc<Staging>,
    fetched: Mutex<Fetched>,
    unfit: Mutex<Unfit>,
    is_unfit: AtomicBool,
}

/// Where the bytes came from and what was done for the trainer, or the reasons against the step.
type Outcome = std::result::Result<(Fetched, Option<HandedOver>), Unfit>;

/// Restores the remainder of a resolved step; returns the reasons against it if no tier has valid bytes.
pub(super) async fn execute(
    context: &RestoreContext,
    left: &Left,
    decision: &RestoreDecision,
    handoff: Option<Handoff>,
) -> Result<Outcome> {
    let leases = take_leases(context, &left.resolved).await;
    let outcome = fetch_and_place(context, left, decision, handoff).await;
    for lease in leases {
        // Read-only credentials cannot release it.
        let _ = lease.release().await;
    }
    outcome
}

/// Takes leases that keep pruners away. Read-only credentials cannot write one: the restore then continues without, and
/// a step that is pruned meanwhile is skipped like a damaged one.
async fn take_leases(context: &RestoreContext, resolved: &Resolved) -> Vec<HeldLease> {
    let mut leases = Vec::new();
    for source in &resolved.sources {
        let Source::Remote(remote) = source else { continue };
        match HeldLease::on_step(remote, resolved.id).await {
            Ok(lease) => leases.push(lease),
            Err(error) => context.observer.on_event(&Event::Warning {
                message: &format!("{}: restoring without a lease: {error}", remote.name()),
            }),
        }
    }
    leases
}

async fn fetch_and_place(
    context: &RestoreContext,
    left: &Left,
    decision: &RestoreDecision,
    handoff: Option<Handoff>,
) -> Result<Outcome> {
    let resolved = &left.resolved;
    let staging = open_staging(context, resolved, decision).await?;
    check_space(&staging, resolved).await?;
    let tier = &resolved.sources.first().map_or(Tier::Local, Source::tier);
    let place = &decision.path.to_string_lossy();
    let (id, bytes, begun) = (resolved.id, resolved.data_bytes(), Instant::now());
    context.observer.on_event(&Event::TransferStarted {
        tier,
        id,
        place,
        files: resolved.files.len() as u64,
        bytes,
    });
    let outcome = fetch(context, left, staging, handoff).await;
    let seconds = begun.elapsed().as_secs_f64();
    match &outcome {
        Ok(Ok(_)) => context.observer.on_event(&Event::TransferFinished {
            tier,
            id,
            place,
            bytes,
            copied_bytes: 0,
            seconds,
        }),
        // The step is skipped, and the reasons are reported with that.
        Ok(Err(_)) => {}
        Err(error) => context.observer.on_event(&Event::TransferFailed {
            tier,
            id,
            place,
            bytes,
            seconds,
            error,
        }),
    }
    outcome
}

async fn fetch(
    context: &RestoreContext,
    left: &Left,
    staging: Staging,
    handoff: Option<Handoff>,
) -> Result<Outcome> {
    let resolved = &left.resolved;
    let shared = Arc::new(Shared {
        context: context.clone(),
        resolved: Arc::clone(resolved),
        staging: Arc::new(staging),
        fetched: Mutex::default(),
        unfit: Mutex::default(),
        is_unfit: AtomicBool::new(false),
    });
    let limit = context
        .remotes
        .iter()
        .map(|remote| remote.settings.max_concurrent_requests)
        .max()
        .unwrap_or(16);
    run_bounded(jobs(&shared)?, limit).await?;
    let shared = Arc::into_inner(shared)
        .ok_or_else(|| Error::new(ErrorKind::Failed, "a restore's worker is still running"))?;
    let staging = Arc::into_inner(shared.staging)
        .ok_or_else(|| Error::new(ErrorKind::Failed, "a restore's worker is still running"))?;
    let unfit = shared.unfit.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !unfit.is_empty() {
        // If a retry may complete the step, its staged data is kept for that.
        if unfit.unread.is_empty() {
            blocking(move || staging.discard()).await?;
        }
        return Ok(Err(unfit));
    }
    let (symlinks, directories, shape, existing) = (
        resolved.symlinks.clone(),
        resolved.directories.clone(),
        resolved.shape,
        left.existing,
    );
    let done = blocking(move || {
        for link in &symlinks {
            staging.symlink(&link.path, &link.target)?;
        }
        let place = |staging: Staging| staging.finish(shape, &directories, existing);
        match handoff {
            Some(handoff) => handoff.around(staging, place).map(Some),
            None => place(staging).map(|()| None),
        }
    })
    .await?;
    let fetched = shared
        .fetched
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(Ok((fetched, done)))
}

async fn open_staging(
    context: &RestoreContext,
    resolved: &Arc<Resolved>,
    decision: &RestoreDecision,
) -> Result<Staging> {
    let (target, vault, resolved) = (decision.path.clone(), context.vault.clone(), Arc::clone(resolved));
    blocking(move || {
        if resolved.members.is_empty() {
            Staging::open(&target, vault.as_ref(), &resolved.identity)
        } else {
            Staging::open_members(&target, &resolved.members, vault.as_ref(), &resolved.identity)
        }
    })
    .await
}

/// Deletes what a killed restore replaced by a multi-path step whose paths are all in place now.
pub(super) async fn end_replacement(
    context: &RestoreContext,
    request: &RestoreRequest,
    resolved: &Arc<Resolved>,
    decision: &RestoreDecision,
) -> Result<()> {
    if resolved.members.is_empty() || request.existing == Existing::Refuse {
        return Ok(());
    }
    let staging = open_staging(context, resolved, decision).await?;
    blocking(move || staging.end_replacement()).await
}

/// Returns the allocated bytes that an interrupted restore left: files that were only preallocated hold no data yet.
fn present_bytes(directory: &std::path::Path) -> u64 {
    stepvault_local::tree::scan(directory).map_or(0, |tree| {
        tree.files
            .iter()
            .map(|file| file.allocated_bytes.min(file.size_bytes))
            .sum()
    })
}

/// Fails before the first byte is fetched if the disk cannot hold the step.
async fn check_space(staging: &Staging, resolved: &Resolved) -> Result<()> {
    let directory = staging.directory().to_owned();
    let (bytes, inodes) = (
        resolved.room_bytes(),
        (resolved.files.len() + resolved.directories.len() + resolved.symlinks.len()) as u64,
    );
    blocking(move || {
        let space = space::free(&directory)?;
        let needed = bytes.saturating_sub(present_bytes(&directory));
        let short = |what: &str, needed: u64, free: u64| {
            Error::new(ErrorKind::NoSpace, "the disk cannot hold the step")
                .on(directory.display())
                .because(format!("it needs {needed} {what}, and {free} are free"))
                .hint("free some space, restore to another disk, or take fewer files with --include")
        };
        if needed > space.free_bytes {
            return Err(short("bytes", needed, space.free_bytes));
        }
        // File systems without fixed inodes report no number.
        if let Some(free) = space.free_inodes.filter(|free| *free < inodes) {
            return Err(short("inodes", inodes, free));
        }
        Ok(())
    })
    .await
}

fn jobs(
    shared: &Arc<Shared>,
) -> Result<impl Iterator<Item = impl Future<Output = Result<()>> + Send + 'static>> {
    let files = &shared.resolved.files;
    let mut order: Vec<(usize, u32)> = Vec::with_capacity(files.len());
    for (position, entry) in files.iter().enumerate() {
        order.push((position, entry.parts()?.count()));
    }
    order.sort_by_key(|(position, _)| std::cmp::Reverse(files[*position].size_bytes));
    let shared = Arc::clone(shared);
    // A file's state exists only from its first part to its last: a step may have very many files.
    Ok(order.into_iter().flat_map(move |(position, count)| {
        let shared = Arc::clone(&shared);
        let file = Arc::new(FileRestore::new(
            shared.resolved.files[position].clone(),
            count,
            &shared.staging,
        ));
        (0..count).map(move |index| restore_part(Arc::clone(&shared), Arc::clone(&file), index))
    }))
}

async fn restore_part(shared: Arc<Shared>, file: Arc<FileRestore>, index: u32) -> Result<()> {
    if shared.is_unfit.load(Ordering::Relaxed) {
        return Ok(());
    }
    let outcome = fetch_part(&shared.context, &shared.resolved, &file, index).await?;
    let (from, file_is_done) = match outcome {
        PartOutcome::There { from, file_is_done } => (from, file_is_done),
        PartOutcome::Nowhere(unfit) => {
            shared.is_unfit.store(true, Ordering::Relaxed);
            shared
                .unfit
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(unfit);
            return Ok(());
        }
    };
    let (range, _) = file.part(index)?;
    let bytes = range.end - range.start;
    let observer = &shared.context.observer;
    let first = shared.resolved.sources.first().map_or(Tier::Local, Source::tier);
    {
        let mut fetched = shared.fetched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(position) = from {
            let source = shared.resolved.sources.get(position);
            let tier = source.map_or(Tier::Local, Source::tier);
            if matches!(source, Some(Source::Local(_))) {
                observer.on_event(&Event::BytesMoved { tier: &tier, bytes });
            }
            *fetched.bytes_by_tier.entry(tier).or_default() += bytes;
        } else {
            fetched.kept_bytes += bytes;
            observer.on_event(&Event::BytesReused { tier: &first, bytes });
        }
    }
    if file_is_done {
        observer.on_event(&Event::FileDone {
            tier: &first,
            path: &file.entry.path,
        });
    }
    Ok(())
}
