//! Upload payloads: bytes in separately allocated blocks, or read from their source while they are sent: block by block from a
//! file, or as they arrive from another store.
//!
//! A connection to a peer that has stopped reading outlives its request, with whatever it has queued. Of a payload in
//! blocks it keeps only the few queued ones, and nothing has to be copied to achieve that.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::store::BodyStream;

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

/// Where the bytes of a payload come from as they arrive, again for each request: a range of an object of another store.
pub trait BodySource: Debug + Send + Sync {
    /// Returns the bytes, as many as the payload has, or an error after some of them.
    fn open(self: Arc<Self>) -> BodyStream;
}

/// A block of a payload.
#[derive(Debug, Clone)]
enum Block {
    Held(Bytes),
    Read { source: Arc<dyn BlockSource>, offset: u64, length: usize },
    Streamed(Arc<Streamed>),
}

/// Bytes that arrive while they are sent.
#[derive(Debug)]
struct Streamed {
    source: Arc<dyn BodySource>,
    /// Why the newest request could not be sent to its end.
    fault: Mutex<Option<Error>>,
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

    /// Returns a payload whose `size_bytes` bytes arrive from `source` whenever they are sent. Only for a store that
    /// [streams bodies](crate::store::StoreCapabilities::streams_bodies).
    pub fn streamed_from(source: Arc<dyn BodySource>, size_bytes: u64) -> Self {
        let streamed = Streamed { source, fault: Mutex::default() };
        Self { blocks: [Block::Streamed(Arc::new(streamed))].into(), size_bytes, sending: None }
    }

    /// Returns the error of the source for which the newest request could not be sent to its end. The store to which it was
    /// sent has failed in nothing then, whatever became of the request.
    pub fn source_fault(&self) -> Option<Error> {
        self.streamed().find_map(|streamed| streamed.fault.lock().clone())
    }

    fn streamed(&self) -> impl Iterator<Item = &Streamed> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Streamed(streamed) => Some(&**streamed),
            Block::Held(_) | Block::Read { .. } => None,
        })
    }

    /// Returns the blocks in order, none of them empty. May block where they are read. Those that arrive as they are sent
    /// are an error.
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
        for streamed in self.streamed() {
            *streamed.fault.lock() = None;
        }
        PayloadBody {
            remaining_bytes: self.size_bytes,
            payload: self,
            next: 0,
            rest: Bytes::new(),
            reading: None,
            arriving: Mutex::default(),
        }
    }
}

impl Block {
    fn bytes(&self) -> io::Result<Bytes> {
        match self {
            Self::Held(bytes) => Ok(bytes.clone()),
            Self::Read { source, offset, length } => source.read(*offset, *length),
            Self::Streamed(_) => Err(io::Error::other("the bytes are only known while they are sent")),
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

impl Streamed {
    fn failed(&self, error: Error) -> io::Error {
        let shown = io::Error::other(error.clone());
        *self.fault.lock() = Some(error);
        shown
    }
}

/// A payload that is being sent, slice by slice.
pub(crate) struct PayloadBody {
    payload: Payload,
    next: usize,
    /// Rest of the block before `next`.
    rest: Bytes,
    /// The block `next`, being read on a thread that may block.
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    /// The bytes of the block `next`, as they arrive. Never locked: a stream cannot be shared between threads otherwise.
    arriving: Mutex<Option<BodyStream>>,
    remaining_bytes: u64,
}

impl Debug for PayloadBody {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { payload, next, remaining_bytes, .. } = self;
        let mut shown = out.debug_struct("PayloadBody");
        shown.field("payload", payload).field("next", next).field("remaining_bytes", remaining_bytes);
        shown.finish_non_exhaustive()
    }
}

impl PayloadBody {
    /// Returns to the first byte.
    pub(crate) fn rewind(&mut self) {
        *self = std::mem::take(&mut self.payload).into_body();
    }

    /// Returns the next bytes; `None` at the end.
    fn poll_block(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        while let Some(Block::Streamed(streamed)) = self.payload.blocks.get(self.next) {
            let arriving = self.arriving.get_mut().get_or_insert_with(|| Arc::clone(&streamed.source).open());
            match ready!(arriving.poll_next_unpin(context)) {
                Some(Ok(piece)) => return Poll::Ready(Some(Ok(piece))),
                Some(Err(error)) => return Poll::Ready(Some(Err(streamed.failed(error)))),
                // Frees its request at once.
                None => *self.arriving.get_mut() = None,
            }
            self.next += 1;
        }
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
                None if this.remaining_bytes > 0 => {
                    return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                }
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(block)) => this.rest = block,
            }
        }
        let slice = this.rest.split_to(this.rest.len().min(SLICE_BYTES));
        let remaining = this.remaining_bytes.checked_sub(slice.len() as u64);
        this.remaining_bytes =
            remaining.ok_or_else(|| io::Error::other("more bytes arrived than are sent"))?;
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

    /// Pieces, and how often they were asked for.
    #[derive(Debug)]
    struct Pieces(Vec<Result<Bytes>>, std::sync::atomic::AtomicUsize);

    impl BodySource for Pieces {
        fn open(self: Arc<Self>) -> BodyStream {
            self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            futures::stream::iter(self.0.clone()).boxed()
        }
    }

    fn streamed(pieces: Vec<Result<Bytes>>, size_bytes: u64) -> (Arc<Pieces>, Payload) {
        let source = Arc::new(Pieces(pieces, std::sync::atomic::AtomicUsize::default()));
        (Arc::clone(&source), Payload::streamed_from(source, size_bytes))
    }

    /// Sends a body; returns how many bytes it gave, and how it ended.
    fn sent(body: &mut PayloadBody) -> (usize, Option<io::Error>) {
        let mut context = Context::from_waker(Waker::noop());
        let mut bytes = 0;
        loop {
            match Pin::new(&mut *body).poll_frame(&mut context) {
                Poll::Ready(Some(Ok(frame))) => bytes += frame.into_data().unwrap().len(),
                Poll::Ready(Some(Err(error))) => return (bytes, Some(error)),
                Poll::Ready(None) | Poll::Pending => return (bytes, None),
            }
        }
    }

    #[test]
    fn what_arrives_while_it_is_sent_is_asked_for_again_by_each_request() {
        let (source, payload) =
            streamed(vec![Ok(vec![1; 40 << 10].into()), Ok(vec![2; 9].into())], (40 << 10) + 9);
        let mut body =
            payload.clone().between(Bytes::from_static(b"<"), Bytes::from_static(b">")).into_body();
        for asked in 1..=2 {
            let (bytes, error) = sent(&mut body);
            assert_eq!((bytes, error.is_none()), ((40 << 10) + 11, true));
            assert!(body.is_end_stream() && payload.source_fault().is_none());
            assert_eq!(source.1.load(std::sync::atomic::Ordering::Relaxed), asked);
            body.rewind();
        }
        assert!(payload.held("cannot send", "it").is_err(), "nothing holds it");
    }

    #[test]
    fn the_error_of_a_source_is_kept_until_the_next_request() {
        let error = Error::new(ErrorKind::Damaged, "other bytes");
        let (_, payload) = streamed(vec![Ok(vec![1; 5].into()), Err(error)], 10);
        let mut body = payload.clone().into_body();
        let (bytes, shown) = sent(&mut body);
        assert_eq!((bytes, shown.unwrap().to_string()), (5, "other bytes".to_owned()));
        assert!(!body.is_end_stream());
        assert_eq!(payload.source_fault().unwrap().kind(), ErrorKind::Damaged);
        let _next = payload.clone().into_body();
        assert!(payload.source_fault().is_none());
    }

    #[test]
    fn a_source_with_too_few_or_too_many_bytes_ends_the_request() {
        for size_bytes in [4, 6] {
            let (_, payload) = streamed(vec![Ok(vec![1; 3].into()), Ok(vec![1; 2].into())], size_bytes);
            let mut body = payload.into_body();
            let (bytes, error) = sent(&mut body);
            assert!(error.is_some() && bytes as u64 != size_bytes && !body.is_end_stream(), "{size_bytes}");
        }
    }
}
