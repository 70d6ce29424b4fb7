//! Fetches one part of one file from the first source that has it valid.

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
use crate::catalog::is_outage;
use crate::run_remote::RunRemote;

/// Number of bytes that are hashed and written together. A larger batch would no longer fit in the cache.
const BATCH_BYTES: usize = 512 << 10;
/// Memory that a part in transfer holds of the budget: a batch, and the connection's read-ahead.
const HELD_BYTES: usize = 2 * BATCH_BYTES;

/// Where one part came from, or why no source had it.
#[derive(Debug)]
pub(super) enum PartOutcome {
    /// The part is staged and valid.
    There {
        /// The index of the source; `None` for data that an interrupted restore left.
        from: Option<usize>,
        /// Whether its file is now complete.
        file_is_done: bool,
    },
    /// No source has it valid.
    Nowhere(Unfit),
}

/// Why bytes of a step could not be restored.
#[derive(Debug, Default)]
pub(super) struct Unfit {
    /// The proven faults, one for each tier.
    pub(super) reasons: Vec<String>,
    /// Whether the local copy is among the proven faults.
    pub(super) is_local: bool,
    /// The tiers that may have valid bytes but could not be read.
    pub(super) unread: Vec<String>,
}

impl Unfit {
    pub(super) fn is_empty(&self) -> bool {
        self.reasons.is_empty() && self.unread.is_empty()
    }

    /// Adds the faults of another part of the step.
    pub(super) fn extend(&mut self, other: Self) {
        self.reasons.extend(other.reasons);
        self.unread.extend(other.unread);
        self.is_local |= other.is_local;
    }
}

/// Writes part `index` of `file` into the staged file and verifies it; with the last part, the file becomes durable.
///
/// # Errors
/// When the disk that the step is restored to fails, or the restore is interrupted.
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
    let mut unfit = Unfit::default();
    for (position, source) in resolved.sources.iter().enumerate() {
        let read = match source {
            Source::Local(step) => read_local(step, file, index).await?,
            Source::Remote(remote) => {
                read_remote(context, resolved, remote, file, Arrival::of(file, index)?).await?
            }
        };
        let is_local = matches!(source, Source::Local(_));
        match read {
            Ok(Verdict::Right { file_is_done }) => {
                return Ok(PartOutcome::There {
                    from: Some(position),
                    file_is_done,
                });
            }
            Ok(Verdict::Wrong) => {
                unfit.is_local |= is_local;
                unfit.reasons.push(format!(
                    "{}: {path}: bytes {} to {} differ from those saved",
                    source.tier(),
                    range.start,
                    range.end
                ));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) if is_outage(&error) => {
                let why = format!("{}: {}", source.tier(), error.text_with_hint());
                unfit.unread.push(why);
            }
            Err(error) => {
                unfit.is_local |= is_local;
                unfit.reasons.push(format!("{}: {error}", source.tier()));
            }
        }
    }
    Ok(PartOutcome::Nowhere(unfit))
}

/// The verdict on a source's bytes, or the error that prevented reading them.
type Read = Result<Verdict>;

async fn read_local(step: &SealedStep, file: &Arc<FileRestore>, index: u32) -> Result<Read> {
    let path = &file.entry.path;
    let Some(sealed) = step.record().file(path).cloned() else {
        return Ok(Err(Error::new(
            ErrorKind::Damaged,
            "the sealed step lacks a file",
        )
        .on(path)));
    };
    let path = step.file_path(path);
    let arrival = Arrival::of(file, index)?;
    blocking(move || match SourceFile::open(&path, &sealed) {
        Ok(source) => arrival.copy(&source),
        Err(error) => Ok(Err(error)),
    })
    .await
}

/// Reads a part by ranges; resumes after a broken connection where it broke.
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
            // Opening is retried by the store; an error that gets here has exhausted the retries.
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

/// Checks that the object is empty: there are no bytes to read.
async fn is_empty(remote: &RunRemote, key: &str) -> Result<()> {
    match remote.store.head(key).await? {
        Some(head) if head.info.size_bytes == 0 => Ok(()),
        Some(_) => {
            Err(Error::new(ErrorKind::Damaged, "an object has the wrong length").on(remote.describe(key)))
        }
        None => Err(Error::new(ErrorKind::NotFound, "an object is missing").on(remote.describe(key))),
    }
}

/// The outcome of one response of the store.
enum Received {
    /// The last byte was received.
    Whole(Verdict),
    /// The body broke off.
    Broken(Arrival, Error),
}

/// Receives the body of one response. An outer error is the disk's.
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
    let too_many = || fault(ErrorKind::Damaged, "a store sent more bytes than requested");
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
                None => broken = Some(fault(ErrorKind::Unreachable, "a read ended before its last byte")),
            }
        }
        // The connection is reused only after its end was seen. After the last byte, only the digest counts.
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
