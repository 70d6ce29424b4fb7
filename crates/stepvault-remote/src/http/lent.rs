//! Request bodies that are lent to a connection and taken back when their request ends.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::payload::PayloadBody;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The request ended before its body was sent.
#[derive(Debug, thiserror::Error)]
#[error("the request was cancelled")]
struct GivenUp;

#[derive(Debug)]
struct Lent<B>(Arc<Mutex<Option<B>>>);

impl<B> Lent<B> {
    fn lock(&self) -> MutexGuard<'_, Option<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that is available while its request lasts and returns an error afterwards.
#[derive(Debug)]
pub(crate) struct LentBody<B>(Lent<B>);

/// Frees the rest of a request's body when the request ends for any reason. A connection to a peer that has stopped
/// reading outlives the request, for a quarter of an hour or forever, and would keep the memory of the body. It still
/// keeps the few blocks that it has queued.
#[derive(Debug)]
pub(crate) struct TakeBack<B>(Lent<B>);

/// Lends `body` until the other half is dropped.
pub(crate) fn lend<B>(body: B) -> (LentBody<B>, TakeBack<B>) {
    let lent = Arc::new(Mutex::new(Some(body)));
    (LentBody(Lent(Arc::clone(&lent))), TakeBack(Lent(lent)))
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
    use super::*;
    use crate::payload::Payload;
    use std::task::Waker;

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
