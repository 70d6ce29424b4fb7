//! Adapts a payload to Google's SDK.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use bytes::Bytes;
use google_cloud_storage::streaming_source::{Seek, SizeHint, StreamingSource};
use http_body::Body as _;

use crate::http::lent::{LentBody, TakeBack, lend};
use crate::payload::{Payload, PayloadBody};

/// Returns the payload block by block until it is taken back.
#[derive(Debug)]
pub(super) struct Source(LentBody<PayloadBody>);

impl Source {
    pub(super) fn lend(payload: Payload) -> (Self, TakeBack<PayloadBody>) {
        let (body, take_back) = lend(payload.into_body());
        (Self(body), take_back)
    }
}

impl StreamingSource for Source {
    type Error = io::Error;

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let frame = poll_fn(|context| Pin::new(&mut self.0).poll_frame(context)).await?;
        // There are no trailers.
        frame.map_err(io::Error::other).map(|frame| frame.into_data().ok()).transpose()
    }

    async fn size_hint(&self) -> io::Result<SizeHint> {
        Ok(self.0.size_hint())
    }
}

impl Seek for Source {
    type Error = io::Error;

    async fn seek(&mut self, offset: u64) -> io::Result<()> {
        // Only resumable uploads start elsewhere, and they are not used.
        if offset != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.0.rewind();
        Ok(())
    }
}
