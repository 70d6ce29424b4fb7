//! The bytes of an object in small pieces, with a stall timeout and a check of their number.

use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::arrival_rate::ArrivalRate;
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt as _;

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
}
