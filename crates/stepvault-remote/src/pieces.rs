//! The bytes of an object in small pieces, with a stall timeout, a least rate and a check of their number.

use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::store::BodyStream;

/// Maximum length of a returned piece.
pub(crate) const MAXIMUM_PIECE_BYTES: usize = 256 << 10;
/// A request gets the stall time once more for each of these bytes in its body. The HTTP client does not report when a
/// byte is sent, so a slower request counts as stalled.
const BYTES_PER_STALL_TIME: u64 = 1 << 20;

/// Expected properties of a body.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// URL and key, for messages.
    pub(crate) subject: String,
    /// Exact length of the body.
    pub(crate) size_bytes: u64,
    /// Maximum time without a byte.
    pub(crate) stall_timeout: Duration,
}

struct State {
    source: BodyStream,
    /// Rest of a received chunk that was too large to return at once.
    pending: Bytes,
    received_bytes: u64,
    rate: ArrivalRate,
    expected: Expected,
}

/// Splits `source` into pieces of at most 256 KiB. The stream ends after exactly the expected bytes, or with an error.
pub(crate) fn watched(source: BodyStream, expected: Expected) -> BodyStream {
    let state =
        State { source, pending: Bytes::new(), received_bytes: 0, rate: ArrivalRate::default(), expected };
    stream::try_unfold(state, |mut state| async move {
        while state.pending.is_empty() {
            let (stall_timeout, since) = (state.expected.stall_timeout, Instant::now());
            let next = tokio::time::timeout(stall_timeout, state.source.next());
            match next.await.map_err(|_| state.expected.stalled())? {
                Some(piece) => {
                    let piece = piece?;
                    let counted = state.rate.count(piece.len(), since.elapsed(), stall_timeout);
                    counted.map_err(|slow| state.expected.too_slow(slow))?;
                    state.take(piece)?;
                }
                None if state.received_bytes == state.expected.size_bytes => return Ok(None),
                None => {
                    let (received, wanted) = (state.received_bytes, state.expected.size_bytes);
                    let why = format!("the body ended after {received} of {wanted} bytes");
                    return Err(state.expected.fault(ErrorKind::Unreachable, why));
                }
            }
        }
        let piece = state.pending.split_to(state.pending.len().min(MAXIMUM_PIECE_BYTES));
        Ok(Some((piece, state)))
    })
    .boxed()
}

impl State {
    fn take(&mut self, piece: Bytes) -> Result<()> {
        self.received_bytes += piece.len() as u64;
        if self.received_bytes > self.expected.size_bytes {
            let why = format!("more than the requested {} bytes arrived", self.expected.size_bytes);
            return Err(self.expected.fault(ErrorKind::Failed, why));
        }
        self.pending = piece;
        Ok(())
    }
}

impl Expected {
    fn fault(&self, kind: ErrorKind, why: impl Display) -> Error {
        Error::new(kind, "cannot read the object").on(&self.subject).because(why)
    }

    fn too_slow(&self, why: impl Display) -> Error {
        self.fault(ErrorKind::Unreachable, why).hint("check the network, or raise stall-timeout")
    }

    fn stalled(&self) -> Error {
        let seconds = self.stall_timeout.as_secs();
        self.too_slow(format!("no byte arrived for {seconds} seconds"))
    }
}

/// Returns no bytes of an object of `size_bytes` for an empty range; `None` where the object does not exist.
pub(crate) fn no_bytes(subject: &str, size_bytes: Option<u64>, range: &Range<u64>) -> Result<BodyStream> {
    match size_bytes {
        None => Err(Error::new(ErrorKind::NotFound, "cannot read the object")
            .on(subject)
            .because("it does not exist")),
        Some(size_bytes) if size_bytes < range.end => Err(shorter_than_asked(subject, size_bytes, range)),
        Some(_) => Ok(stream::empty().boxed()),
    }
}

pub(crate) fn shorter_than_asked(subject: &str, size_bytes: u64, wanted: &Range<u64>) -> Error {
    Error::new(ErrorKind::Damaged, "cannot read the object").on(subject).because(format!(
        "it has {size_bytes} bytes, and bytes {} to {} were asked for",
        wanted.start, wanted.end
    ))
}

/// Returns how long a request that sends `body_bytes` may take until the first byte of its answer.
pub(crate) fn patience(stall_timeout: Duration, body_bytes: u64) -> Duration {
    let times = u32::try_from(1 + body_bytes.div_ceil(BYTES_PER_STALL_TIME)).unwrap_or(u32::MAX);
    stall_timeout.saturating_mul(times)
}

/// At a lower rate a listing would take an hour. It is low, because many answers may share a slow line.
const LEAST_BYTES_PER_SECOND: u64 = 64;

/// A shorter answer is not judged: its first bytes may be slow.
const LEAST_WAIT: Duration = Duration::from_secs(15);

/// An answer that arrived too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("only {bytes} bytes of the answer arrived in {} seconds", .waited.as_secs())]
pub(crate) struct TooSlow {
    bytes: u64,
    waited: Duration,
}

/// What has arrived of an answer, and how long its reader has waited for it.
#[derive(Debug, Default)]
pub(crate) struct ArrivalRate {
    bytes: u64,
    waited: Duration,
}

impl ArrivalRate {
    /// Counts a piece. The rate is judged once the reader has waited for longer than `stall_timeout` in all, and than 15 s.
    ///
    /// # Errors
    /// [`TooSlow`] if it is below the least rate.
    pub(crate) fn count(
        &mut self,
        piece_bytes: usize,
        waited: Duration,
        stall_timeout: Duration,
    ) -> std::result::Result<(), TooSlow> {
        self.bytes += piece_bytes as u64;
        self.waited += waited;
        let (bytes, waited) = (self.bytes, self.waited);
        if waited > stall_timeout.max(LEAST_WAIT) && bytes / LEAST_BYTES_PER_SECOND < waited.as_secs() {
            return Err(TooSlow { bytes, waited });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt as _;

    use super::*;

    fn expected(size_bytes: u64) -> Expected {
        Expected { subject: "gs://b/k".to_owned(), size_bytes, stall_timeout: Duration::from_secs(5) }
    }

    fn source(pieces: Vec<usize>) -> BodyStream {
        stream::iter(pieces.into_iter().map(|length| Ok(Bytes::from(vec![7; length])))).boxed()
    }

    #[tokio::test]
    async fn large_pieces_are_cut_and_empty_ones_left_out() {
        let pieces: Vec<Bytes> =
            watched(source(vec![0, 600 << 10, 0, 5]), expected((600 << 10) + 5)).try_collect().await.unwrap();
        let lengths: Vec<usize> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [256 << 10, 256 << 10, 88 << 10, 5]);
    }

    #[tokio::test]
    async fn short_and_long_bodies_are_errors() {
        let short = watched(source(vec![3]), expected(4)).try_collect::<Vec<_>>().await.expect_err("short");
        assert_eq!(short.kind(), ErrorKind::Unreachable);
        assert_eq!(short.to_string(), "cannot read the object: gs://b/k: the body ended after 3 of 4 bytes");
        let long = watched(source(vec![5]), expected(4)).try_collect::<Vec<_>>().await.expect_err("long");
        assert_eq!(long.kind(), ErrorKind::Failed);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends() {
        let silent = watched(stream::pending().boxed(), expected(4))
            .try_collect::<Vec<_>>()
            .await
            .expect_err("silent");
        assert_eq!(silent.to_string(), "cannot read the object: gs://b/k: no byte arrived for 5 seconds");
    }

    #[test]
    fn patience_grows_with_the_body_and_has_an_end() {
        let stall = Duration::from_secs(30);
        assert_eq!(patience(stall, 0), stall);
        assert_eq!(patience(stall, 8 << 20), Duration::from_secs(270));
        assert!(patience(stall, u64::MAX) < Duration::MAX);
    }

    #[test]
    fn a_drip_ends_and_a_slow_line_does_not() {
        let stall_timeout = Duration::from_secs(30);
        let counted = |piece_bytes: usize, pieces: u32| {
            let mut rate = ArrivalRate::default();
            (0..pieces).try_for_each(|_| rate.count(piece_bytes, Duration::from_secs(1), stall_timeout))
        };
        assert_eq!(counted(5, 30), Ok(()));
        let error = counted(5, 31).unwrap_err();
        assert_eq!(error.to_string(), "only 155 bytes of the answer arrived in 31 seconds");
        assert_eq!(counted(64, 10_000), Ok(()));
    }
}
