//! A body split into small pieces, with a stall timeout and a check of its length.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::arrival_rate::{ArrivalRate, TooSlow};

/// Maximum length of a returned piece.
pub(crate) const MAXIMUM_PIECE_BYTES: usize = 256 << 10;

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
    source: BoxStream<'static, Result<Bytes>>,
    /// Rest of a received chunk that was too large to return at once.
    pending: Bytes,
    received_bytes: u64,
    rate: ArrivalRate,
    expected: Expected,
}

/// Splits `source` into pieces of at most 256 KiB. The stream ends after exactly the expected bytes, or with an error.
pub(crate) fn watched(
    source: BoxStream<'static, Result<Bytes>>,
    expected: Expected,
) -> BoxStream<'static, Result<Bytes>> {
    let state = State {
        source,
        pending: Bytes::new(),
        received_bytes: 0,
        rate: ArrivalRate::default(),
        expected,
    };
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
                None => return Err(state.expected.cut_off(state.received_bytes)),
            }
        }
        let piece = state
            .pending
            .split_to(state.pending.len().min(MAXIMUM_PIECE_BYTES));
        Ok(Some((piece, state)))
    })
    .boxed()
}

impl State {
    fn take(&mut self, piece: Bytes) -> Result<()> {
        self.received_bytes += piece.len() as u64;
        if self.received_bytes > self.expected.size_bytes {
            return Err(Error::new(ErrorKind::Failed, "cannot read the object")
                .on(&self.expected.subject)
                .because(format!(
                    "more than the requested {} bytes arrived",
                    self.expected.size_bytes
                )));
        }
        self.pending = piece;
        Ok(())
    }
}

impl Expected {
    fn stalled(&self) -> Error {
        Error::new(ErrorKind::Unreachable, "cannot read the object")
            .on(&self.subject)
            .because(format!(
                "no byte arrived for {} seconds",
                self.stall_timeout.as_secs()
            ))
            .hint("check the network, or raise stall-timeout")
    }

    fn too_slow(&self, slow: TooSlow) -> Error {
        Error::new(ErrorKind::Unreachable, "cannot read the object")
            .on(&self.subject)
            .because(slow)
            .hint("check the network, or raise stall-timeout")
    }

    fn cut_off(&self, received_bytes: u64) -> Error {
        Error::new(ErrorKind::Unreachable, "cannot read the object")
            .on(&self.subject)
            .because(format!(
                "the body ended after {received_bytes} of {} bytes",
                self.size_bytes
            ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt as _;

    fn expected(size_bytes: u64) -> Expected {
        Expected {
            subject: "gs://b/k".to_owned(),
            size_bytes,
            stall_timeout: Duration::from_secs(5),
        }
    }

    fn source(pieces: Vec<usize>) -> BoxStream<'static, Result<Bytes>> {
        stream::iter(pieces.into_iter().map(|length| Ok(Bytes::from(vec![7; length])))).boxed()
    }

    #[tokio::test]
    async fn large_pieces_are_cut_and_empty_ones_left_out() {
        let pieces: Vec<Bytes> = watched(source(vec![0, 600 << 10, 0, 5]), expected((600 << 10) + 5))
            .try_collect()
            .await
            .unwrap();
        let lengths: Vec<usize> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [256 << 10, 256 << 10, 88 << 10, 5]);
    }

    #[tokio::test]
    async fn short_and_long_bodies_are_errors() {
        let short = watched(source(vec![3]), expected(4))
            .try_collect::<Vec<_>>()
            .await
            .expect_err("short");
        assert_eq!(short.kind(), ErrorKind::Unreachable);
        assert_eq!(
            short.to_string(),
            "cannot read the object: gs://b/k: the body ended after 3 of 4 bytes"
        );
        let long = watched(source(vec![5]), expected(4))
            .try_collect::<Vec<_>>()
            .await
            .expect_err("long");
        assert_eq!(long.kind(), ErrorKind::Failed);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends() {
        let silent = watched(stream::pending().boxed(), expected(4))
            .try_collect::<Vec<_>>()
            .await
            .expect_err("silent");
        assert_eq!(
            silent.to_string(),
            "cannot read the object: gs://b/k: no byte arrived for 5 seconds"
        );
    }
}
