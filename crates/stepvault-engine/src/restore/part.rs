//! One part of one file on its way back: from the first source that has it right.

use std::sync::Arc;

use futures::StreamExt;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::file_parts::FileParts;
use stepvault_core::manifest::FileEntry;
use stepvault_core::observe::Event;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::SealedStep;
use stepvault_local::source::SourceFile;
use stepvault_local::staging::StagedFile;

use super::RestoreContext;
use super::resolve::{Resolved, Source};
use crate::blocking::blocking;
use crate::memory::Buffer;
use crate::run_remote::RunRemote;

/// Tries in a row that brought no byte before a source counts as unreachable for a part. Each try is retried and
/// paced below as well, while it is being opened.
const TRIES_WITHOUT_PROGRESS: usize = 4;

/// Where one part came from, or why it came from nowhere.
#[derive(Debug)]
pub(super) enum PartOutcome {
    /// What an interrupted restore left was right.
    Kept,
    /// Fetched from the source with this index.
    From(usize),
    /// No source has it right; one reason each.
    Damaged(Vec<String>),
}

/// Brings part `index` of `file` into the staged file, verified.
///
/// # Errors
/// When no source has it right and at least one could not be asked, or when the disk fails.
pub(super) async fn fetch_part(
    context: &RestoreContext,
    resolved: &Resolved,
    file: &FileEntry,
    index: u32,
    staged: &Arc<StagedFile>,
    may_be_present: bool,
) -> Result<PartOutcome> {
    let range = file.parts()?.range(index);
    let size = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let expected = *file
        .parts_sha256
        .get(index as usize)
        .ok_or_else(|| Error::new(ErrorKind::Damaged, "a part without a digest").on(&file.path))?;
    let mut buffer = context.budget.take(size).await?;
    if may_be_present {
        let staged = Arc::clone(staged);
        let start = range.start;
        let (back, present) = blocking(move || {
            let mut whole = true;
            buffer.fill(|position, block| {
                whole = whole && staged.read_at(start + position, block)?;
                Ok(())
            })?;
            let right = whole && Sha256Digest::of_blocks(buffer.blocks()) == expected;
            Ok((buffer, right))
        })
        .await?;
        if present {
            return Ok(PartOutcome::Kept);
        }
        buffer = back;
    }
    let mut reasons = Vec::new();
    let mut outage = None;
    for (position, source) in resolved.sources.iter().enumerate() {
        let (back, read) = match source {
            Source::Local(step) => read_local(step, file, range.start, buffer).await?,
            Source::Remote(remote) => read_remote(context, resolved, remote, file, index, buffer).await,
        };
        buffer = back;
        match read {
            Ok(()) => {
                let staged = Arc::clone(staged);
                let start = range.start;
                let (back, right) = blocking(move || {
                    let right = Sha256Digest::of_blocks(buffer.blocks()) == expected;
                    let mut position = start;
                    for block in buffer.blocks().filter(|_| right) {
                        staged.write_at(position, block)?;
                        position += block.len() as u64;
                    }
                    Ok((buffer, right))
                })
                .await?;
                if right {
                    return Ok(PartOutcome::From(position));
                }
                buffer = back;
                reasons.push(format!(
                    "{}: {}: bytes {} to {} are not those that were saved",
                    source.tier(),
                    file.path,
                    range.start,
                    range.end
                ));
            }
            Err(error) if crate::catalog::is_outage(&error) => outage = Some(error),
            Err(error) => reasons.push(format!("{}: {error}", source.tier())),
        }
    }
    match outage {
        Some(error) => Err(error),
        None => Ok(PartOutcome::Damaged(reasons)),
    }
}

async fn read_local(
    step: &SealedStep,
    file: &FileEntry,
    start: u64,
    mut buffer: Buffer,
) -> Result<(Buffer, Result<()>)> {
    let (path, sealed) = (
        step.file_path(&file.path),
        step.record()
            .files
            .iter()
            .find(|sealed| sealed.path == file.path)
            .cloned(),
    );
    let Some(sealed) = sealed else {
        let missing = Error::new(ErrorKind::Damaged, "a file is not in the sealed step").on(&file.path);
        return Ok((buffer, Err(missing)));
    };
    blocking(move || {
        let read = SourceFile::open(&path, &sealed)
            .and_then(|source| buffer.fill(|position, block| source.read_at(start + position, block)));
        Ok((buffer, read))
    })
    .await
}

/// Reads a part by ranges; a connection that breaks is taken up where it broke.
async fn read_remote(
    context: &RestoreContext,
    resolved: &Resolved,
    remote: &RunRemote,
    file: &FileEntry,
    index: u32,
    mut buffer: Buffer,
) -> (Buffer, Result<()>) {
    let read = read_remote_into(context, resolved, remote, file, index, &mut buffer).await;
    (buffer, read)
}

async fn read_remote_into(
    context: &RestoreContext,
    resolved: &Resolved,
    remote: &RunRemote,
    file: &FileEntry,
    index: u32,
    buffer: &mut Buffer,
) -> Result<()> {
    let key = remote.keys.data(&resolved.name, resolved.id, &file.path)?;
    if buffer.size_bytes() == 0 {
        return match remote.store.head(&key).await? {
            Some(head) if head.info.size_bytes == 0 => Ok(()),
            Some(_) => {
                Err(Error::new(ErrorKind::Damaged, "an object has the wrong length")
                    .on(remote.describe(&key)))
            }
            None => Err(Error::new(ErrorKind::NotFound, "an object is missing").on(remote.describe(&key))),
        };
    }
    let range = FileParts::of(file.size_bytes)?.range(index);
    let mut filled = 0;
    let mut fruitless = 0;
    loop {
        let before = filled;
        let rest = range.start + filled as u64..range.end;
        let broken = match remote.store.read(&key, Some(rest)).await {
            Ok(mut stream) => loop {
                match stream.next().await {
                    Some(Ok(piece)) => {
                        if !buffer.write_at(filled, &piece) {
                            return Err(Error::new(
                                ErrorKind::Damaged,
                                "a store sent more bytes than were asked for",
                            )
                            .on(remote.describe(&key)));
                        }
                        filled += piece.len();
                        context.observer.on_event(&Event::BytesMoved {
                            tier: &remote.tier,
                            bytes: piece.len() as u64,
                        });
                    }
                    Some(Err(error)) => break error,
                    None if filled == buffer.size_bytes() => return Ok(()),
                    None => {
                        break Error::new(ErrorKind::Unreachable, "a read ended early")
                            .on(remote.describe(&key));
                    }
                }
            },
            // Opening is retried below; what comes through has been tried for long enough.
            Err(error) => return Err(error),
        };
        fruitless = if filled > before { 0 } else { fruitless + 1 };
        if broken.kind() != ErrorKind::Unreachable || fruitless >= TRIES_WITHOUT_PROGRESS {
            return Err(broken);
        }
    }
}
