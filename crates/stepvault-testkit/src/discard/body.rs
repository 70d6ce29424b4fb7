//! Answers' bodies: small documents, and bytes made up as they are sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

const PATTERN_BYTES: usize = 1 << 20;
/// Large enough that few system calls are made, small enough to stay in cache.
const FRAME_BYTES: usize = 256 << 10;

/// Noise, so that neither compression nor a test for zeros can make it look faster than real data.
static PATTERN: LazyLock<Bytes> = LazyLock::new(|| {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut pattern = Vec::with_capacity(PATTERN_BYTES);
    while pattern.len() < PATTERN_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pattern.extend(state.to_le_bytes());
    }
    Bytes::from(pattern)
});

/// What every generated object consists of: the byte at `offset` is `pattern()[offset % pattern().len()]`.
///
/// A benchmark that makes its source file of the same bytes can verify what it downloads.
pub fn pattern() -> &'static [u8] {
    &PATTERN
}

/// Body of an answer.
#[derive(Debug)]
pub(crate) enum Reply {
    Document(Bytes),
    Generated { offset: u64, remaining_bytes: u64 },
}

impl Reply {
    pub(crate) fn empty() -> Self {
        Self::Document(Bytes::new())
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match &mut *self {
            Self::Document(document) => std::mem::take(document),
            Self::Generated {
                offset,
                remaining_bytes,
            } => {
                let first = usize::try_from(*offset % PATTERN_BYTES as u64).unwrap_or(0);
                let wanted = usize::try_from(*remaining_bytes)
                    .unwrap_or(FRAME_BYTES)
                    .min(FRAME_BYTES);
                let end = (first + wanted).min(PATTERN_BYTES);
                *offset += (end - first) as u64;
                *remaining_bytes -= (end - first) as u64;
                PATTERN.slice(first..end)
            }
        };
        Poll::Ready(if data.is_empty() {
            None
        } else {
            Some(Ok(Frame::data(data)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Document(document) => document.len() as u64,
            Self::Generated { remaining_bytes, .. } => *remaining_bytes,
        })
    }
}
