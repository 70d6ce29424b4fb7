//! Passes parts of another remote's files on as they arrive: each request to the target reads its bytes from the source, and
//! only a window of them is in memory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use stepvault_core::digest::PartHasher;
use stepvault_core::{PartDigest, Result};
use stepvault_remote::payload::{BLOCK_BYTES, BodySource};
use stepvault_remote::store::BodyStream;
use tokio::sync::Notify;

use super::origin::RemoteFile;
use crate::remote_file::RangeBody;

/// The memory of a part that is passed on: the piece that was received last, which waits for the digest, and the one before
/// it, which is being sent.
pub(super) const PASSED_BYTES: usize = 2 * BLOCK_BYTES;

/// A part of a remote file, as the body of requests.
#[derive(Debug)]
pub(super) struct PassedPart {
    file: Arc<RemoteFile>,
    range: Range<u64>,
    expected: PartDigest,
    found: Mutex<Option<PartDigest>>,
    _turn: Turn,
}

impl PassedPart {
    pub(super) fn new(file: Arc<RemoteFile>, range: Range<u64>, expected: PartDigest, turn: Turn) -> Self {
        Self { file, range, expected, found: Mutex::default(), _turn: turn }
    }

    /// Returns the digests of the bytes that the newest request has sent; `None` if it has not sent all of them.
    pub(super) fn found(&self) -> Option<PartDigest> {
        *self.found.lock()
    }
}

/// The bytes of one request.
struct Passing {
    part: Arc<PassedPart>,
    body: RangeBody,
    /// `None` at the end.
    hasher: Option<PartHasher>,
    /// What was received last.
    last: Bytes,
}

impl BodySource for PassedPart {
    fn open(self: Arc<Self>) -> BodyStream {
        *self.found.lock() = None;
        let body = self.file.body(self.range.clone());
        let hasher = Some(PartHasher::new(self.expected.content.algorithm()));
        stream::try_unfold(Passing { part: self, body, hasher, last: Bytes::new() }, Passing::next).boxed()
    }
}

impl Passing {
    /// Returns the next bytes.
    ///
    /// # Invariants
    /// S2: the last bytes are returned only if all of them are those of the manifest, so that the target never gets a whole
    /// part of other bytes.
    async fn next(mut self) -> Result<Option<(Bytes, Self)>> {
        let Some(hasher) = &mut self.hasher else { return Ok(None) };
        let (file, expected) = (&self.part.file, self.part.expected.content);
        loop {
            match self.body.next().await {
                Ok(Some(piece)) => {
                    hasher.update(&piece);
                    let before = std::mem::replace(&mut self.last, piece);
                    if !before.is_empty() {
                        return Ok(Some((before, self)));
                    }
                }
                Ok(None) => break,
                Err(error) => return Err(file.unread(error).await),
            }
        }
        let found = self.hasher.take().map(PartHasher::finish);
        if found.is_none_or(|found| found.content != expected) {
            return Err(file.differs_in(&self.part.range));
        }
        *self.part.found.lock() = found;
        Ok(Some((std::mem::take(&mut self.last), self)))
    }
}

/// The parts of a session that are passed on at once.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<Taken>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    under_way: usize,
    ended: usize,
}

/// Number of parts that are passed on at once in the beginning; each that ends lets one more begin. More at once only fill the
/// buffers of their connections where the network is fast, and are reached soon where each request is slow.
const FIRST_TURNS: usize = 32;

/// One of them.
#[derive(Debug)]
pub(super) struct Turn(Arc<Turns>);

impl Turns {
    /// Waits for a turn. `may_begin` says whether one more may begin beside so many; if there are none, it always may.
    pub(super) async fn take(self: &Arc<Self>, may_begin: impl Fn(usize) -> bool) -> Turn {
        loop {
            {
                let mut taken = self.taken.lock();
                let under_way = taken.under_way;
                if under_way == 0 || under_way < FIRST_TURNS + taken.ended && may_begin(under_way) {
                    taken.under_way += 1;
                    // More may have become possible than the one that has ended.
                    self.changed.notify_one();
                    return Turn(Arc::clone(self));
                }
            }
            self.changed.notified().await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.0.taken.lock();
        taken.under_way -= 1;
        taken.ended += 1;
        drop(taken);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn as_many_parts_are_passed_on_as_are_worth_it_now() {
        let (turns, most) = (Arc::new(Turns::default()), AtomicUsize::new(1));
        let next = || Box::pin(turns.take(|under_way| under_way < most.load(Ordering::Relaxed)));
        let first = next().await;
        let (mut second, mut third, mut fourth) = (next(), next(), next());
        assert!(
            poll!(&mut second).is_pending()
                && poll!(&mut third).is_pending()
                && poll!(&mut fourth).is_pending()
        );
        most.store(2, Ordering::Relaxed);
        drop(first);
        let second = second.await;
        let _third = third.await;
        assert!(poll!(&mut fourth).is_pending());
        drop(second);
        let _fourth = fourth.await;
    }

    #[tokio::test]
    async fn each_part_that_ends_lets_one_more_begin() {
        let turns = Arc::new(Turns::default());
        let next = || Box::pin(turns.take(|_| true));
        let mut first = Vec::new();
        for _ in 0..FIRST_TURNS {
            first.push(next().await);
        }
        assert!(poll!(&mut next()).is_pending());
        drop(first.pop());
        // In its place, and one more.
        let (_second, _third) = (next().await, next().await);
        assert!(poll!(&mut next()).is_pending());
    }

    #[tokio::test]
    async fn one_part_is_passed_on_always() {
        let turns = Arc::new(Turns::default());
        drop(turns.take(|_| false).await);
        let _again = turns.take(|_| false).await;
    }
}
