//! Upload payloads: bytes in separately allocated blocks, or read from their source block by block while they are sent.
//!
//! A connection to a peer that has stopped reading outlives its request, with whatever it has queued. Of a payload in
//! blocks it keeps only the few queued ones, and nothing has to be copied to achieve that.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::task::{JoinHandle, spawn_blocking};

/// Block size of large payloads: large enough to be read and hashed at once, small enough for the cache and to be
/// retained by a dead connection.
pub const BLOCK_BYTES: usize = 256 << 10;
/// A block is passed to the HTTP client in slices of this size, so that progress is visible within it.
const SLICE_BYTES: usize = 32 << 10;

/// Change of the sent bytes from which on it is reported.
const REPORTED_CHANGE_BYTES: u64 = 256 << 10;

/// Size of the blocks in which a payload is read while it is sent: with 256 requests under way, each holds two or three.
pub const READ_BLOCK_BYTES: usize = 128 << 10;

/// Where the bytes of a payload are read from, again for each request: a file that does not change.
pub trait BlockSource: Debug + Send + Sync {
    /// Returns the `length` bytes from `offset` on. May block.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read(&self, offset: u64, length: usize) -> io::Result<Bytes>;
}

/// A block of a payload.
#[derive(Debug, Clone)]
enum Block {
    Held(Bytes),
    Read { source: Arc<dyn BlockSource>, offset: u64, length: usize },
}

/// Bytes in blocks. Cheap to clone; a block is freed when no clone and no connection holds it any more.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    blocks: Arc<[Block]>,
    size_bytes: u64,
    sending: Option<Arc<Sending>>,
}

impl Payload {
    /// Returns the total length of all blocks.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns a payload whose `size_bytes` bytes are read from `source` whenever they are sent.
    pub fn read_from(source: &Arc<dyn BlockSource>, size_bytes: u64) -> Self {
        let blocks = (0..size_bytes).step_by(READ_BLOCK_BYTES).map(|offset| Block::Read {
            source: Arc::clone(source),
            offset,
            length: usize::try_from(size_bytes - offset).unwrap_or(READ_BLOCK_BYTES).min(READ_BLOCK_BYTES),
        });
        Self { blocks: blocks.collect(), size_bytes, sending: None }
    }

    /// Returns the blocks in order, none of them empty. May block where they are read.
    pub fn blocks(&self) -> impl Iterator<Item = io::Result<Bytes>> {
        self.blocks.iter().map(Block::bytes)
    }

    /// Returns all blocks at once, for a store that does not stream bodies. May block where they are read.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) fn held(&self, what: &str, subject: &str) -> Result<Vec<Bytes>> {
        let blocks: io::Result<Vec<Bytes>> = self.blocks().collect();
        blocks.map_err(|error| Error::new(ErrorKind::Failed, what).on(subject).caused_by(error))
    }

    /// Reports to `sending` how much of it the requests take.
    #[must_use]
    pub fn reporting_to(self, sending: &Arc<Sending>) -> Self {
        let sending = Some(Arc::clone(sending));
        Self { sending, ..self }
    }

    /// Returns the payload with other bytes around it, which count as sent with it.
    #[must_use]
    pub(crate) fn between(self, before: Bytes, after: Bytes) -> Self {
        let size_bytes = self.size_bytes + before.len() as u64 + after.len() as u64;
        let around = |bytes: Bytes| (!bytes.is_empty()).then_some(Block::Held(bytes));
        let blocks = around(before).into_iter().chain(self.blocks.iter().cloned()).chain(around(after));
        Self { blocks: blocks.collect(), size_bytes, sending: self.sending.clone() }
    }

    /// Returns the body of one request.
    pub(crate) fn into_body(self) -> PayloadBody {
        PayloadBody {
            remaining_bytes: self.size_bytes,
            payload: self,
            next: 0,
            rest: Bytes::new(),
            reading: None,
        }
    }
}

impl Block {
    fn bytes(&self) -> io::Result<Bytes> {
        match self {
            Self::Held(bytes) => Ok(bytes.clone()),
            Self::Read { source, offset, length } => source.read(*offset, *length),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        vec![bytes].into()
    }
}

impl From<Vec<Bytes>> for Payload {
    fn from(mut blocks: Vec<Bytes>) -> Self {
        blocks.retain(|block| !block.is_empty());
        Self {
            size_bytes: blocks.iter().map(|block| block.len() as u64).sum(),
            blocks: blocks.into_iter().map(Block::Held).collect(),
            sending: None,
        }
    }
}

/// Reports the bytes of one payload that its newest request has passed to the connection, until the payload is
/// acknowledged or given up.
pub struct Sending {
    state: Mutex<SendingState>,
    on_change: Box<dyn Fn(i64) + Send + Sync>,
}

#[derive(Debug, Default)]
struct SendingState {
    reported_bytes: u64,
    has_ended: bool,
}

impl Sending {
    /// Calls `on_change` with the change in bytes since its last call, at most once in 256 KiB.
    pub fn new(on_change: impl Fn(i64) + Send + Sync + 'static) -> Self {
        Self { state: Mutex::default(), on_change: Box::new(on_change) }
    }

    /// Returns the sum of the reported changes. A connection that still holds the payload reports nothing any more.
    pub fn end(&self) -> u64 {
        let mut state = self.state.lock();
        state.has_ended = true;
        std::mem::take(&mut state.reported_bytes)
    }

    fn advance_to(&self, sent_bytes: u64) {
        let mut state = self.state.lock();
        if state.has_ended || sent_bytes.abs_diff(state.reported_bytes) < REPORTED_CHANGE_BYTES {
            return;
        }
        let before = std::mem::replace(&mut state.reported_bytes, sent_bytes);
        (self.on_change)(sent_bytes.cast_signed().wrapping_sub(before.cast_signed()));
    }
}

impl Debug for Sending {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Sending").field("state", &self.state).finish_non_exhaustive()
    }
}

/// A payload that is being sent, slice by slice.
#[derive(Debug)]
pub(crate) struct PayloadBody {
    payload: Payload,
    next: usize,
    /// Rest of the block before `next`.
    rest: Bytes,
    /// The block `next`, being read on a thread that may block.
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    remaining_bytes: u64,
}

impl PayloadBody {
    /// Returns to the first byte.
    pub(crate) fn rewind(&mut self) {
        *self = std::mem::take(&mut self.payload).into_body();
    }

    /// Returns the next block; `None` at the end.
    fn poll_block(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.reading.is_none() {
            let Some(block) = self.payload.blocks.get(self.next) else {
                return Poll::Ready(None);
            };
            if let Block::Held(bytes) = block {
                let bytes = bytes.clone();
                self.next += 1;
                return Poll::Ready(Some(Ok(bytes)));
            }
            let block = block.clone();
            self.reading = Some(spawn_blocking(move || block.bytes()));
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Ready(None);
        };
        let read = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        self.next += 1;
        Poll::Ready(Some(read.map_err(io::Error::other).flatten()))
    }
}

impl Body for PayloadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            match ready!(this.poll_block(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(block)) => this.rest = block,
            }
        }
        let slice = this.rest.split_to(this.rest.len().min(SLICE_BYTES));
        this.remaining_bytes -= slice.len() as u64;
        if let Some(sending) = &this.payload.sending {
            sending.advance_to(this.payload.size_bytes - this.remaining_bytes);
        }
        Poll::Ready(Some(Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining_bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn slices(body: &mut PayloadBody) -> Vec<Bytes> {
        let mut context = Context::from_waker(Waker::noop());
        let mut slices = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut *body).poll_frame(&mut context) {
            slices.push(frame.into_data().unwrap());
        }
        slices
    }

    #[test]
    fn a_body_is_its_blocks_in_slices_that_are_no_copies() {
        let large = Bytes::from(vec![7; SLICE_BYTES + 5]);
        let blocks = vec![Bytes::new(), large.clone(), Bytes::from_static(b"end")];
        let payload = Payload::from(blocks);
        assert_eq!(payload.size_bytes(), SLICE_BYTES as u64 + 8);
        assert_eq!(payload.blocks().count(), 2);
        let mut body = payload.into_body();
        for _ in 0..2 {
            assert_eq!(body.size_hint().exact(), Some(SLICE_BYTES as u64 + 8));
            let slices = slices(&mut body);
            let lengths: Vec<usize> = slices.iter().map(Bytes::len).collect();
            assert_eq!(lengths, [SLICE_BYTES, 5, 3]);
            assert_eq!(slices[0].as_ptr(), large.as_ptr());
            assert!(body.is_end_stream());
            body.rewind();
        }
    }

    #[test]
    fn reports_what_the_newest_request_has_taken_and_nothing_after_the_end() {
        let in_flight = Arc::new(std::sync::atomic::AtomicI64::new(0));
        let counted = Arc::clone(&in_flight);
        let sending = Arc::new(Sending::new(move |change| {
            counted.fetch_add(change, std::sync::atomic::Ordering::Relaxed);
        }));
        let taken = || usize::try_from(in_flight.load(std::sync::atomic::Ordering::Relaxed)).unwrap();
        let payload = Payload::from(vec![Bytes::from(vec![7; BLOCK_BYTES]); 3]).reporting_to(&sending);
        let mut body = payload.clone().into_body();
        slices(&mut body);
        assert_eq!(taken(), 3 * BLOCK_BYTES);
        // A repeated request starts again.
        body.rewind();
        let mut context = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut body).poll_frame(&mut context);
        assert_eq!(taken(), SLICE_BYTES);
        assert_eq!(sending.end(), SLICE_BYTES as u64);
        slices(&mut body);
        assert_eq!(taken(), SLICE_BYTES, "an abandoned connection");
    }

    #[test]
    fn nothing_is_at_its_end_from_the_beginning() {
        let body = Payload::from(Bytes::new()).into_body();
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
    }
}
