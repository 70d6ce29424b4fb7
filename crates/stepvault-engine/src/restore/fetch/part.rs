//! Fetches one part of one file from the first source that has it valid.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use stepvault_core::observe::{Event, Tier};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::SealedStep;
use stepvault_local::source::SourceFile;

use super::file::FileRestore;
use super::part_writer::{PartOutcome, PartWriter};
use crate::blocking::blocking;
use crate::broken_body::BodyRetries;
use crate::restore::candidates::{Faults, OrFaults};
use crate::restore::request::RestoreContext;
use crate::restore::resolve::{ResolvedStep, Source};
use crate::tier::run_remote::RunRemote;

/// Number of bytes that are hashed and written together. A larger batch would no longer fit in the cache.
const BATCH_BYTES: usize = 512 << 10;
/// Memory that a part in transfer holds of the budget: a batch, and the connection's read-ahead.
const HELD_BYTES: usize = 2 * BATCH_BYTES;

/// A part that is staged and valid.
#[derive(Debug)]
pub(super) struct FetchedPart {
    /// The tier that it was read from; `None` for data that an interrupted restore left.
    pub(super) from: Option<Tier>,
    /// Whether its file is now complete.
    pub(super) file_is_done: bool,
}

/// Writes part `index` of `file` into the staged file and verifies it; with the last part, the file becomes durable.
/// Faults are returned if no source has it valid.
///
/// # Errors
/// When the disk that the step is restored to fails, or the restore is interrupted.
pub(super) async fn fetch_part(
    context: &RestoreContext,
    resolved: &ResolvedStep,
    file: &Arc<FileRestore>,
    index: u32,
) -> Result<OrFaults<FetchedPart>> {
    let (range, _) = file.part(index)?;
    let path = &file.entry.path;
    let _held = context.budget.reserve(HELD_BYTES).await?;
    if file.may_be_present() {
        let writer = PartWriter::new(file, index)?;
        if let PartOutcome::Valid { file_is_done } = blocking(move || writer.verify_present()).await? {
            let from = None;
            return Ok(Ok(FetchedPart { from, file_is_done }));
        }
    }
    let mut faults = Faults::default();
    for source in &resolved.sources {
        let (tier, writer) = (source.tier(), PartWriter::new(file, index)?);
        let outcome = match source {
            Source::Local(step)
                if step.record().is_one_of_several() && step.record().file(path).is_none() =>
            {
                // Another node's file: its absence is no damage of this node's part.
                faults.proven.push(format!("{tier}: it holds only the part of {}", step.record().node));
                continue;
            }
            Source::Local(step) => read_local(step, file, writer).await?,
            Source::Remote(remote) => read_remote(context, resolved, remote, file, writer).await?,
        };
        match outcome {
            PartOutcome::Valid { file_is_done } => {
                let from = Some(tier);
                return Ok(Ok(FetchedPart { from, file_is_done }));
            }
            PartOutcome::Wrong => {
                let (start, end) = (range.start, range.end);
                let damage = format!("{path}: bytes {start} to {end} differ from those saved");
                faults.add_proven(&tier, damage);
            }
            PartOutcome::Unreadable(error) => faults.add(&tier, error)?,
        }
    }
    Ok(Err(faults))
}

async fn read_local(step: &SealedStep, file: &FileRestore, writer: PartWriter) -> Result<PartOutcome> {
    let path = &file.entry.path;
    let Some(sealed) = step.record().file(path).cloned() else {
        let error = Error::new(ErrorKind::Damaged, "the sealed step lacks a file");
        return Ok(PartOutcome::Unreadable(error.on(path)));
    };
    let path = step.file_path(path);
    blocking(move || match SourceFile::open(&path, &sealed) {
        Ok(source) => writer.copy_from(&source),
        Err(error) => Ok(PartOutcome::Unreadable(error)),
    })
    .await
}

/// Reads a part by ranges; resumes after a broken connection where it broke.
async fn read_remote(
    context: &RestoreContext,
    resolved: &ResolvedStep,
    remote: &RunRemote,
    file: &FileRestore,
    mut writer: PartWriter,
) -> Result<PartOutcome> {
    let key = match remote.keys.data(&resolved.name, resolved.id, &file.entry.path) {
        Ok(key) => key,
        Err(error) => return Ok(PartOutcome::Unreadable(error)),
    };
    if writer.missing().is_empty()
        && let Err(error) = check_empty(remote, &key).await
    {
        return Ok(PartOutcome::Unreadable(error));
    }
    let mut breaks = BodyRetries::default();
    while !writer.missing().is_empty() {
        let before = writer.missing();
        let stream = match remote.store.read(&key, Some(before.clone())).await {
            Ok(stream) => stream,
            // Opening is retried by the store; an error that gets here has exhausted the retries.
            Err(error) => {
                let error = remote.confirmed(&key, None, error).await;
                return Ok(PartOutcome::Unreadable(error));
            }
        };
        let broken;
        (writer, broken) = receive(context, remote, &key, stream, writer).await?;
        if let Some(error) = broken
            && let Err(error) = breaks.wait(error, writer.missing() != before).await
        {
            return Ok(PartOutcome::Unreadable(error));
        }
    }
    blocking(move || writer.verify()).await
}

/// Checks that the object is empty: there are no bytes to read.
async fn check_empty(remote: &RunRemote, key: &str) -> Result<()> {
    match remote.store.head(key).await? {
        Some(head) if head.info.size_bytes == 0 => Ok(()),
        Some(_) => {
            Err(Error::new(ErrorKind::Damaged, "an object has the wrong length").on(remote.describe(key)))
        }
        None => {
            let missing = Error::new(ErrorKind::NotFound, "an object is missing").on(remote.describe(key));
            Err(remote.confirmed(key, None, missing).await)
        }
    }
}

/// Writes the body of one response. Returns the error with which the body broke off, if it did.
async fn receive(
    context: &RestoreContext,
    remote: &RunRemote,
    key: &str,
    mut stream: BoxStream<'static, Result<Bytes>>,
    mut writer: PartWriter,
) -> Result<(PartWriter, Option<Error>)> {
    let missing = writer.missing();
    let mut left = missing.end - missing.start;
    let fault = |kind, what: &str| Error::new(kind, what).on(remote.describe(key));
    let too_many = || fault(ErrorKind::Damaged, "a store sent more bytes than requested");
    let mut broken = None;
    while left > 0 && broken.is_none() {
        let (mut pieces, mut batch_bytes) = (Vec::new(), 0);
        while batch_bytes < BATCH_BYTES && left > 0 && broken.is_none() {
            match stream.next().await {
                Some(Ok(piece)) if piece.len() as u64 > left => return Ok((writer, Some(too_many()))),
                Some(Ok(piece)) => {
                    left -= piece.len() as u64;
                    batch_bytes += piece.len();
                    pieces.push(piece);
                }
                Some(Err(error)) => broken = Some(error),
                None => broken = Some(fault(ErrorKind::Unreachable, "a read ended before its last byte")),
            }
        }
        // The connection is reused only after its end was seen. After the last byte, only the digest counts.
        if left == 0
            && let Some(Ok(more)) = stream.next().await
            && !more.is_empty()
        {
            return Ok((writer, Some(too_many())));
        }
        if !pieces.is_empty() {
            writer = blocking(move || writer.write_all(&pieces)).await?;
            context.observer.on_event(&Event::BytesMoved { tier: &remote.tier, bytes: batch_bytes as u64 });
        }
    }
    Ok((writer, broken))
}
