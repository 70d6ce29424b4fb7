//! Reads the body of an answer that is one document, within the stall time and at no less than the least rate.

use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, timeout};

use crate::arrival_rate::{ArrivalRate, TooSlow};

/// Maximum number of bytes of an error document that are read.
const MAXIMUM_REFUSAL_BYTES: usize = 16 << 10;

/// Why a document could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyFault<E> {
    #[error("no byte of the answer arrived for {} seconds", .0.as_secs())]
    Silent(Duration),
    #[error(transparent)]
    TooSlow(#[from] TooSlow),
    #[error("the answer is larger than expected")]
    TooLong,
    /// The connection broke.
    #[error("the answer ended early")]
    Lost(E),
}

/// Returns a document of at most `most_bytes`.
pub(crate) async fn whole<E>(
    pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
    stall_timeout: Duration,
    most_bytes: usize,
) -> Result<Vec<u8>, BodyFault<E>> {
    let (mut pieces, mut document, mut rate) = (pieces, Vec::new(), ArrivalRate::default());
    loop {
        let since = Instant::now();
        let next = timeout(stall_timeout, pieces.next()).await;
        let Some(piece) = next.map_err(|_| BodyFault::Silent(stall_timeout))? else {
            return Ok(document);
        };
        let piece = piece.map_err(BodyFault::Lost)?;
        rate.count(piece.len(), since.elapsed(), stall_timeout)?;
        document.extend_from_slice(&piece);
        if document.len() > most_bytes {
            return Err(BodyFault::TooLong);
        }
    }
}

/// Returns the beginning of an error document. A refusal remains one even when its explanation is lost.
pub(crate) async fn beginning<E>(
    mut pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
    stall_timeout: Duration,
) -> Vec<u8> {
    let mut document = Vec::new();
    let reading = async {
        while let Some(Ok(piece)) = pieces.next().await {
            let free = MAXIMUM_REFUSAL_BYTES - document.len();
            document.extend_from_slice(&piece[..piece.len().min(free)]);
            if document.len() == MAXIMUM_REFUSAL_BYTES {
                break;
            }
        }
    };
    // What arrived in time is enough to explain it.
    let _ = timeout(stall_timeout, reading).await;
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of five bytes a second that never ends.
    fn dripping() -> impl Stream<Item = Result<Bytes, std::io::Error>> + Unpin {
        Box::pin(futures::stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok(Bytes::from_static(b"12345")), ()))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_document_that_drips_ends() {
        let stall_timeout = Duration::from_secs(30);
        let fault = whole(dripping(), stall_timeout, usize::MAX).await.unwrap_err();
        assert_eq!(fault.to_string(), "only 155 bytes of the answer arrived in 31 seconds");
        let length = beginning(dripping(), stall_timeout).await.len();
        assert!((29 * 5..=30 * 5).contains(&length), "{length}");
    }
}
