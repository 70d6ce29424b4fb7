//! Fetches a step: reads its file parts from the tiers into the staging directory, and verifies each.

mod part;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use part::{FileRestore, fetch_part};
use stepvault_core::{Error, ErrorKind, Event, Result, Tier};
use stepvault_local::space;
use stepvault_local::staging::Staging;

use super::candidates::{Faults, OrFaults};
use super::request::RestoreContext;
use super::resolve::{ResolvedStep, Source};
use crate::blocking::{blocking, run_bounded};
use crate::tier::leases::HeldLease;
use crate::tier::measured::{recall_concurrency, remember_concurrency};

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
    resolved: Arc<ResolvedStep>,
    staging: Arc<Staging>,
    fetched: Mutex<Fetched>,
    /// `None` while every part was found valid.
    faults: Mutex<Option<Faults>>,
}

/// Takes leases that keep pruners away. Read-only credentials cannot write one: the restore then continues without, and
/// a step that is pruned meanwhile is skipped like a damaged one.
pub(super) async fn take_leases(context: &RestoreContext, resolved: &ResolvedStep) -> Vec<HeldLease> {
    let mut leases = Vec::new();
    for source in &resolved.sources {
        let Source::Remote(remote) = source else { continue };
        match HeldLease::on_step(remote, resolved.id).await {
            Ok(lease) => leases.push(lease),
            Err(error) => {
                context.observer.warn(format!("{}: restoring without a lease: {error}", remote.name()));
            }
        }
    }
    leases
}

/// Opens the staging directory in which a restore of the step to `target` collects its files.
pub(super) async fn open_staging(
    context: &RestoreContext,
    resolved: &Arc<ResolvedStep>,
    target: &Path,
) -> Result<Staging> {
    let (target, vault, resolved) = (target.to_owned(), context.vault.clone(), Arc::clone(resolved));
    let sync = context.sync;
    blocking(move || {
        let staging = if resolved.members.is_empty() {
            Staging::open(&target, vault.as_ref(), &resolved.identity)?
        } else {
            Staging::open_members(&target, &resolved.members, vault.as_ref(), &resolved.identity)?
        };
        Ok(staging.synced(sync))
    })
    .await
}

/// Fetches all files of the step: afterwards they are staged, verified and durable, unless no tier has all bytes valid.
///
/// # Errors
/// When the disk that the step is restored to fails, or the restore is interrupted.
pub(super) async fn fetch(
    context: &RestoreContext,
    resolved: &Arc<ResolvedStep>,
    staging: Staging,
) -> Result<OrFaults<(Staging, Fetched)>> {
    let shared = Arc::new(Shared {
        context: context.clone(),
        resolved: Arc::clone(resolved),
        staging: Arc::new(staging),
        fetched: Mutex::default(),
        faults: Mutex::default(),
    });
    let remotes = context.remotes.iter();
    let limit = remotes.map(|remote| remote.settings.max_concurrent_requests).max();
    let with_vault = || {
        let vault = context.vault.as_ref();
        vault.into_iter().flat_map(|vault| context.remotes.iter().map(move |remote| (remote, vault)))
    };
    for (remote, vault) in with_vault() {
        recall_concurrency(remote, vault).await;
    }
    run_bounded(jobs(Arc::clone(&shared))?, limit.unwrap_or(16)).await?;
    for (remote, vault) in with_vault() {
        remember_concurrency(remote, vault).await;
    }
    let still_running = || Error::new(ErrorKind::Failed, "a restore's worker is still running");
    let shared = Arc::into_inner(shared).ok_or_else(still_running)?;
    let staging = Arc::into_inner(shared.staging).ok_or_else(still_running)?;
    let faults = shared.faults.into_inner();
    if let Some(faults) = faults {
        // If a retry may complete the step, its staged data is kept for that.
        if faults.unread.is_empty() {
            blocking(move || staging.discard()).await?;
        }
        return Ok(Err(faults));
    }
    let fetched = shared.fetched.into_inner();
    Ok(Ok((staging, fetched)))
}

/// Returns the allocated bytes that an interrupted restore left: files that were only preallocated hold no data yet.
fn present_bytes(directory: &Path) -> u64 {
    stepvault_local::tree::scan(directory)
        .map_or(0, |tree| tree.files.iter().map(|file| file.allocated_bytes.min(file.size_bytes)).sum())
}

/// Fails before the first byte is fetched if the disk cannot hold the step.
pub(super) async fn check_space(staging: &Staging, resolved: &ResolvedStep) -> Result<()> {
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
    shared: Arc<Shared>,
) -> Result<impl Iterator<Item = impl Future<Output = Result<()>> + Send + 'static> + Send + 'static> {
    let files = &shared.resolved.files;
    let mut order: Vec<(usize, u32)> = Vec::with_capacity(files.len());
    for (position, entry) in files.iter().enumerate() {
        order.push((position, entry.parts()?.count()));
    }
    order.sort_by_key(|(position, _)| std::cmp::Reverse(files[*position].size_bytes));
    // A file's state exists only from its first part to its last: a step may have very many files.
    Ok(order.into_iter().flat_map(move |(position, count)| {
        let shared = Arc::clone(&shared);
        let file =
            Arc::new(FileRestore::new(shared.resolved.files[position].clone(), count, &shared.staging));
        (0..count).map(move |index| restore_part(Arc::clone(&shared), Arc::clone(&file), index))
    }))
}

async fn restore_part(shared: Arc<Shared>, file: Arc<FileRestore>, index: u32) -> Result<()> {
    let faults = || shared.faults.lock();
    if faults().is_some() {
        return Ok(());
    }
    let (from, file_is_done) = match fetch_part(&shared.context, &shared.resolved, &file, index).await? {
        Ok(fetched) => fetched,
        Err(more) => {
            faults().get_or_insert_default().extend(more);
            return Ok(());
        }
    };
    let range = file.range(index)?;
    let bytes = range.end - range.start;
    let observer = &shared.context.observer;
    let first = shared.resolved.first_tier();
    {
        let mut fetched = shared.fetched.lock();
        if let Some(tier) = from {
            if tier == Tier::Local {
                observer.on_event(&Event::BytesMoved { tier: &tier, bytes });
            }
            *fetched.bytes_by_tier.entry(tier).or_default() += bytes;
        } else {
            fetched.kept_bytes += bytes;
            observer.on_event(&Event::BytesReused { tier: &first, bytes });
        }
    }
    if file_is_done {
        observer.on_event(&Event::FileDone { tier: &first, path: &file.entry.path });
    }
    Ok(())
}
