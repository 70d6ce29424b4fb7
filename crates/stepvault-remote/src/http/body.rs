//! Reads the body of an answer that is one document, within the stall time and at no less than the least rate; lends
//! the buffers of bodies that are sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::payload::PayloadBody;
use crate::pieces::{ArrivalRate, TooSlow};

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

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The request ended before its body was sent.
#[derive(Debug, thiserror::Error)]
#[error("the request was cancelled")]
struct GivenUp;

/// A body that is available while its request lasts and returns an error afterwards.
#[derive(Debug)]
pub(crate) struct LentBody<B>(Arc<Mutex<Option<B>>>);

/// Frees the rest of a request's body when the request ends for any reason. A connection to a peer that has stopped
/// reading outlives the request, for a quarter of an hour or forever, and would keep the memory of the body. It still
/// keeps the few blocks that it has queued.
#[derive(Debug)]
pub(crate) struct TakeBack<B>(Arc<Mutex<Option<B>>>);

/// Lends `body` until the other half is dropped.
pub(crate) fn lend<B>(body: B) -> (LentBody<B>, TakeBack<B>) {
    let lent = Arc::new(Mutex::new(Some(body)));
    (LentBody(Arc::clone(&lent)), TakeBack(lent))
}

impl<B> Drop for TakeBack<B> {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

impl LentBody<PayloadBody> {
    /// Returns to the first byte.
    pub(crate) fn rewind(&self) {
        if let Some(body) = self.0.lock().as_mut() {
            body.rewind();
        }
    }
}

impl<B> Body for LentBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut lent = self.0.lock();
        let Some(body) = lent.as_mut() else {
            return Poll::Ready(Some(Err(GivenUp.into())));
        };
        Pin::new(body).poll_frame(context).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().as_ref().map_or_else(SizeHint::new, Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::payload::Payload;

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

    #[test]
    fn what_is_taken_back_is_free_but_for_the_slices_that_are_out() {
        let (first, second) = (Bytes::from(vec![1; 10]), Bytes::from(vec![2; 10]));
        let payload = Payload::from(vec![first.clone(), second.clone()]);
        let (mut body, take_back) = lend(payload.into_body());
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(Ok(slice))) = Pin::new(&mut body).poll_frame(&mut context) else {
            panic!("a slice");
        };
        drop(take_back);
        assert!(second.is_unique() && !first.is_unique());
        drop(slice);
        assert!(first.is_unique());
        let Poll::Ready(Some(Err(error))) = Pin::new(&mut body).poll_frame(&mut context) else {
            panic!("an error");
        };
        assert_eq!(error.to_string(), "the request was cancelled");
        assert!(!body.is_end_stream(), "it was cut off, and must not look whole");
    }
}
