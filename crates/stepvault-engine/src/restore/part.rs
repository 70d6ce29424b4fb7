//! One part of one file on its way back: from the first source that has it right.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use stepvault_core::observe::Event;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::SealedStep;
use stepvault_local::source::SourceFile;

use super::RestoreContext;
use super::arrival::{Arrival, Progress, Verdict};
use super::resolve::{Resolved, Source};
use super::staged_file::FileRestore;
use crate::blocking::blocking;
use crate::broken_body::Breaks;
use crate::run_remote::RunRemote;

/// How much of what a store sends is hashed and written in one go. Larger, and the cache has lost its beginning.
const BATCH_BYTES: usize = 512 << 10;
/// What a part under way holds of the memory's budget: a batch, and what the connection has read ahead.
const HELD_BYTES: usize = 2 * BATCH_BYTES;

/// Where one part came from, or why it came from nowhere.
#[derive(Debug)]
pub(super) enum PartOutcome {
    /// It is there, and right.
    There {
        /// The index of the source that had it; `None` for what an interrupted restore left.
        from: Option<usize>,
        /// Whether its file is whole now.
        file_is_done: bool,
    },
    /// No source has it right; one reason each.
    Damaged(Vec<String>),
}

/// Brings part `index` of `file` into the staged file, verified; with the last part the file is durable.
///
/// # Errors
/// When no source has it right and at least one could not be asked, or when the disk fails.
pub(super) async fn fetch_part(
    context: &RestoreContext,
    resolved: &Resolved,
    file: &Arc<FileRestore>,
    index: u32,
) -> Result<PartOutcome> {
    let (range, _) = file.part(index)?;
    let path = &file.entry.path;
    let _held = context.budget.reserve(HELD_BYTES).await?;
    if file.may_be_present() {
        let arrival = Arrival::of(file, index)?;
        if let Verdict::Right { file_is_done } = blocking(move || arrival.look_at_present()).await? {
            return Ok(PartOutcome::There {
                from: None,
                file_is_done,
            });
        }
    }
    let mut reasons = Vec::new();
    let mut outage = None;
    for (position, source) in resolved.sources.iter().enumerate() {
        let arrival = Arrival::of(file, index)?;
        let read = match source {
            Source::Local(step) => read_local(step, file, arrival).await?,
            Source::Remote(remote) => read_remote(context, resolved, remote, file, arrival).await?,
        };
        match read {
            Ok(Verdict::Right { file_is_done }) => {
                return Ok(PartOutcome::There {
                    from: Some(position),
                    file_is_done,
                });
            }
            Ok(Verdict::Wrong) => reasons.push(format!(
                "{}: {path}: bytes {} to {} are not those that were saved",
                source.tier(),
                range.start,
                range.end
            )),
            Err(error) if crate::catalog::is_outage(&error) => outage = Some(error),
            Err(error) => reasons.push(format!("{}: {error}", source.tier())),
        }
    }
    match outage {
        Some(error) => Err(error),
        None => Ok(PartOutcome::Damaged(reasons)),
    }
}

/// What a source gave, or why it could not be had.
type Read = Result<Verdict>;

async fn read_local(step: &SealedStep, file: &FileRestore, arrival: Arrival) -> Result<Read> {
    let path = &file.entry.path;
    let mut sealed = step.record().files.iter();
    let Some(sealed) = sealed.find(|sealed| sealed.path == *path).cloned() else {
        return Ok(Err(Error::new(
            ErrorKind::Damaged,
            "a file is not in the sealed step",
        )
        .on(path)));
    };
    let path = step.file_path(path);
    blocking(move || match SourceFile::open(&path, &sealed) {
        Ok(source) => arrival.copy(&source),
        Err(error) => Ok(Err(error)),
    })
    .await
}

/// Reads a part by ranges; a connection that breaks is taken up where it broke.
async fn read_remote(
    context: &RestoreContext,
    resolved: &Resolved,
    remote: &RunRemote,
    file: &FileRestore,
    mut arrival: Arrival,
) -> Result<Read> {
    let key = match remote.keys.data(&resolved.name, resolved.id, &file.entry.path) {
        Ok(key) => key,
        Err(error) => return Ok(Err(error)),
    };
    if arrival.missing().is_empty() {
        if let Err(error) = is_empty(remote, &key).await {
            return Ok(Err(error));
        }
        return blocking(move || arrival.judge()).await.map(Ok);
    }
    let mut breaks = Breaks::default();
    loop {
        let before = arrival.missing();
        let stream = match remote.store.read(&key, Some(before.clone())).await {
            Ok(stream) => stream,
            // Opening is retried below; what comes through has been tried for long enough.
            Err(error) => return Ok(Err(error)),
        };
        let broken;
        (arrival, broken) = match receive(context, remote, &key, stream, arrival).await? {
            Received::Whole(verdict) => return Ok(Ok(verdict)),
            Received::Broken(arrival, error) => (arrival, error),
        };
        if let Err(error) = breaks.wait(broken, arrival.missing() != before).await {
            return Ok(Err(error));
        }
    }
}

/// An object without a byte has nothing to read.
async fn is_empty(remote: &RunRemote, key: &str) -> Result<()> {
    match remote.store.head(key).await? {
        Some(head) if head.info.size_bytes == 0 => Ok(()),
        Some(_) => {
            Err(Error::new(ErrorKind::Damaged, "an object has the wrong length").on(remote.describe(key)))
        }
        None => Err(Error::new(ErrorKind::NotFound, "an object is missing").on(remote.describe(key))),
    }
}

/// What an answer of the store came to.
enum Received {
    /// The last byte came.
    Whole(Verdict),
    /// It broke off.
    Broken(Arrival, Error),
}

/// Takes what one answer brings. An error is the disk's.
async fn receive(
    context: &RestoreContext,
    remote: &RunRemote,
    key: &str,
    mut stream: BoxStream<'static, Result<Bytes>>,
    mut arrival: Arrival,
) -> Result<Received> {
    let missing = arrival.missing();
    let mut left = missing.end - missing.start;
    let fault = |kind, what: &str| Error::new(kind, what).on(remote.describe(key));
    let too_many = || fault(ErrorKind::Damaged, "a store sent more bytes than were asked for");
    loop {
        let (mut pieces, mut batch_bytes, mut broken) = (Vec::new(), 0, None);
        while batch_bytes < BATCH_BYTES && left > 0 && broken.is_none() {
            match stream.next().await {
                Some(Ok(piece)) if piece.len() as u64 > left => {
                    return Ok(Received::Broken(arrival, too_many()));
                }
                Some(Ok(piece)) => {
                    left -= piece.len() as u64;
                    batch_bytes += piece.len();
                    pieces.push(piece);
                }
                Some(Err(error)) => broken = Some(error),
                None => broken = Some(fault(ErrorKind::Unreachable, "a read ended early")),
            }
        }
        // Its connection serves another request once its end was seen. After the last byte only the digest counts.
        if left == 0
            && let Some(Ok(more)) = stream.next().await
            && !more.is_empty()
        {
            return Ok(Received::Broken(arrival, too_many()));
        }
        if !pieces.is_empty() {
            let progress = blocking(move || arrival.take_all(&pieces)).await?;
            context.observer.on_event(&Event::BytesMoved {
                tier: &remote.tier,
                bytes: batch_bytes as u64,
            });
            arrival = match progress {
                Progress::Whole(verdict) => return Ok(Received::Whole(verdict)),
                Progress::Partial(arrival) => arrival,
            };
        }
        if let Some(broken) = broken {
            return Ok(Received::Broken(arrival, broken));
        }
    }
}
