//! Carrying a restore out: all parts into staging, then one rename.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stepvault_core::manifest::FileEntry;
use stepvault_core::observe::{Event, Tier};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::space;
use stepvault_local::staging::{Existing, Staging};
use tokio::time::Instant;

use super::handover::{HandedOver, Handover};
use super::part::{PartOutcome, fetch_part};
use super::resolve::{Resolved, Source};
use super::staged_file::FileRestore;
use super::target::Left;
use super::{RestoreContext, RestoreDecision, RestoreRequest};
use crate::blocking::blocking;
use crate::leases::HeldLease;
use crate::workers::run_bounded;

/// What came from where.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes by tier.
    pub bytes_by_tier: BTreeMap<Tier, u64>,
    /// Bytes that an interrupted restore had left, and that were right.
    pub kept_bytes: u64,
}

/// What all workers of one restore share.
struct Shared {
    context: RestoreContext,
    resolved: Arc<Resolved>,
    staging: Arc<Staging>,
    fetched: Mutex<Fetched>,
    damage: Mutex<Vec<String>>,
    damaged: AtomicBool,
}

/// What came from where, and what was done for the trainer; or the reasons against the step.
type Outcome = std::result::Result<(Fetched, Option<HandedOver>), Vec<String>>;

/// Restores what is left of a resolved step; the reasons against it when its bytes turn out wrong on every tier that has it.
pub(super) async fn execute(
    context: &RestoreContext,
    left: &Left,
    decision: &RestoreDecision,
    handover: Option<Handover>,
) -> Result<Outcome> {
    let leases = take_leases(context, &left.resolved).await;
    let outcome = fetch_and_place(context, left, decision, handover).await;
    for lease in leases {
        // Who may only read cannot.
        let _ = lease.release().await;
    }
    outcome
}

/// Leases keep pruners away. Credentials that may only read cannot write one: then the restore goes on without,
/// and a step that is pruned under it is passed over like a damaged one.
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
    handover: Option<Handover>,
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
    let outcome = fetch(context, left, staging, handover).await;
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
        // The step is passed over, which is said with the reasons.
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
    handover: Option<Handover>,
) -> Result<Outcome> {
    let resolved = &left.resolved;
    let shared = Arc::new(Shared {
        context: context.clone(),
        resolved: Arc::clone(resolved),
        staging: Arc::new(staging),
        fetched: Mutex::default(),
        damage: Mutex::default(),
        damaged: AtomicBool::new(false),
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
    let damage = shared.damage.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !damage.is_empty() {
        blocking(move || staging.discard()).await?;
        return Ok(Err(damage));
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
        match handover {
            Some(handover) => handover.around(staging, place).map(Some),
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

/// Deletes what a killed restore has replaced by a step of several paths, all of which are in place.
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

/// What an interrupted restore left, by allocated blocks: files that were only preallocated hold nothing yet.
fn present_bytes(directory: &std::path::Path) -> u64 {
    stepvault_local::tree::scan(directory).map_or(0, |tree| {
        tree.files
            .iter()
            .map(|file| file.allocated_bytes.min(file.size_bytes))
            .sum()
    })
}

/// A disk that cannot hold the step is named before the first byte, with the numbers.
async fn check_space(staging: &Staging, resolved: &Resolved) -> Result<()> {
    let directory = staging.directory().to_owned();
    let (bytes, inodes) = (
        resolved.data_bytes(),
        (resolved.files.len() + resolved.directories.len() + resolved.symlinks.len()) as u64,
    );
    blocking(move || {
        let space = space::free(&directory)?;
        let needed = bytes.saturating_sub(present_bytes(&directory));
        let short = |what: &str, needed: u64, free: u64| {
            Error::new(ErrorKind::NoSpace, "the disk cannot hold the step")
                .on(directory.display())
                .because(format!("it takes {needed} {what} and {free} are free"))
                .hint("free some space, restore to another disk, or take fewer files with --include")
        };
        if needed > space.free_bytes {
            return Err(short("bytes", needed, space.free_bytes));
        }
        // File systems without fixed inodes report none at all.
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
    let mut work = Vec::new();
    let mut entries: Vec<&FileEntry> = shared.resolved.files.iter().collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.size_bytes));
    for entry in entries {
        let file = FileRestore::new(entry, &shared.staging)?;
        work.push((Arc::new(file), entry.parts()?.count()));
    }
    let shared = Arc::clone(shared);
    Ok(work.into_iter().flat_map(move |(file, count)| {
        let shared = Arc::clone(&shared);
        (0..count).map(move |index| restore_part(Arc::clone(&shared), Arc::clone(&file), index))
    }))
}

async fn restore_part(shared: Arc<Shared>, file: Arc<FileRestore>, index: u32) -> Result<()> {
    if shared.damaged.load(Ordering::Relaxed) {
        return Ok(());
    }
    let outcome = fetch_part(&shared.context, &shared.resolved, &file, index).await?;
    let (from, file_is_done) = match outcome {
        PartOutcome::There { from, file_is_done } => (from, file_is_done),
        PartOutcome::Damaged(reasons) => {
            shared.damaged.store(true, Ordering::Relaxed);
            shared
                .damage
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(reasons);
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
