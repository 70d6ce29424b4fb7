//! The memory budget: hands out blocks from a pool, and makes callers wait when it is exhausted.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use stepvault_core::digest::PartHasher;
use stepvault_core::file_parts::MINIMUM_PART_SIZE_BYTES;
use stepvault_core::{DigestAlgorithm, Error, ErrorKind, PartDigest, Result};
use stepvault_remote::payload::{BLOCK_BYTES, Payload};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits are counted in KiB, because a semaphore's count has to fit in 32 bits.
const PERMIT_BYTES: usize = 1 << 10;

/// Hands out buffers whose total never exceeds the budget. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    permits: Arc<Semaphore>,
    total_permits: usize,
    /// Whole free blocks, kept because fresh memory causes page faults; smaller ones are returned to the allocator.
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl MemoryBudget {
    /// Creates a budget of `budget_bytes`, at least one part of the usual size.
    pub fn new(budget_bytes: u64) -> Self {
        let bytes = usize::try_from(budget_bytes.max(MINIMUM_PART_SIZE_BYTES)).unwrap_or(usize::MAX);
        let total_permits = (bytes / PERMIT_BYTES).min(u32::MAX as usize / 16);
        Self { permits: Arc::new(Semaphore::new(total_permits)), total_permits, idle: Arc::default() }
    }

    /// Reserves `size_bytes` for memory allocated elsewhere, until the return value is dropped.
    pub async fn reserve(&self, size_bytes: usize) -> Result<OwnedSemaphorePermit> {
        let wanted = permits_of(size_bytes).min(self.total_permits);
        Arc::clone(&self.permits)
            .acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX))
            .await
            .map_err(|_| Error::new(ErrorKind::Interrupted, "the transfer was shut down"))
    }

    /// Returns a buffer of exactly `size_bytes` once there is room for all of it: two callers that each had half of
    /// theirs would wait for each other. A single buffer larger than the whole budget is granted when it is alone, so
    /// that a small budget slows a transfer but never blocks it permanently.
    pub async fn take(&self, size_bytes: usize) -> Result<Buffer> {
        let permits = self.reserve(size_bytes).await?;
        Ok(self.buffer(size_bytes, permits))
    }

    /// Returns whether the budget holds so many buffers of this size.
    pub fn holds(&self, count: usize, size_bytes: usize) -> bool {
        permits_of(size_bytes).saturating_mul(count) <= self.total_permits
    }

    /// Returns a buffer of exactly `size_bytes` if half of the budget is still free beside it, so that callers which need
    /// little memory always find some.
    pub fn take_if_plenty(&self, size_bytes: usize) -> Option<Buffer> {
        let wanted = permits_of(size_bytes);
        let needed = wanted + self.total_permits / 2;
        if self.permits.available_permits() < needed {
            return None;
        }
        let permits = Arc::clone(&self.permits);
        let permits = permits.try_acquire_many_owned(u32::try_from(wanted).ok()?).ok()?;
        Some(self.buffer(size_bytes, permits))
    }

    fn buffer(&self, size_bytes: usize, mut permits: OwnedSemaphorePermit) -> Buffer {
        let mut reused = self.take_idle(size_bytes / BLOCK_BYTES);
        let blocks = (0..size_bytes)
            .step_by(BLOCK_BYTES)
            .map(|position| {
                let length = BLOCK_BYTES.min(size_bytes - position);
                let bytes = match reused.pop() {
                    Some(bytes) if length == BLOCK_BYTES => bytes,
                    _ => vec![0; length],
                };
                // Only the bytes beyond the whole budget are not covered by permits.
                let share = permits_of(length).min(permits.num_permits());
                Block { bytes, budget: self.clone(), _permit: permits.split(share) }
            })
            .collect();
        Buffer { blocks, size_bytes }
    }

    fn take_idle(&self, most: usize) -> Vec<Vec<u8>> {
        let mut idle = self.idle.lock();
        let rest = idle.len().saturating_sub(most);
        idle.split_off(rest)
    }
}

fn permits_of(size_bytes: usize) -> usize {
    size_bytes.div_ceil(PERMIT_BYTES)
}

/// A block of a buffer, which returns to its budget by itself, so that a connection that holds one holds no other.
#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    budget: MemoryBudget,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.len() == BLOCK_BYTES {
            let mut idle = self.budget.idle.lock();
            if idle.len() < self.budget.total_permits / permits_of(BLOCK_BYTES) {
                idle.push(bytes);
            }
        }
    }
}

/// Memory of the budget, in blocks of [`BLOCK_BYTES`] each, except for the last.
#[derive(Debug, Default)]
pub struct Buffer {
    blocks: Vec<Block>,
    size_bytes: usize,
}

impl Buffer {
    /// Returns the total length of all blocks.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Calls `read` to fill one block after another, with the offset of each.
    pub fn fill(&mut self, mut read: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<()> {
        let mut position = 0;
        for block in &mut self.blocks {
            read(position, &mut block.bytes)?;
            position += block.bytes.len() as u64;
        }
        Ok(())
    }

    /// Writes `bytes` from `offset` on. What would not fit is ignored.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) {
        let mut position = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut left = bytes;
        while let Some(block) = self.blocks.get_mut(position / BLOCK_BYTES) {
            let place = block.bytes.get_mut(position % BLOCK_BYTES..).unwrap_or_default();
            let (now, later) = left.split_at(left.len().min(place.len()));
            if now.is_empty() {
                return;
            }
            place[..now.len()].copy_from_slice(now);
            (position, left) = (position + now.len(), later);
        }
    }

    /// Returns the digests of all bytes.
    pub fn digest(&self, algorithm: DigestAlgorithm) -> PartDigest {
        let mut hasher = PartHasher::new(algorithm);
        self.blocks.iter().for_each(|block| hasher.update(&block.bytes));
        hasher.finish()
    }

    /// Returns the bytes as a request body; each block returns to its budget when its last user drops it.
    pub fn into_payload(self) -> Payload {
        let blocks: Vec<Bytes> = self.blocks.into_iter().map(Bytes::from_owner).collect();
        blocks.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART_BYTES: usize = 8 << 20;

    #[tokio::test]
    async fn waits_when_the_budget_is_spent_and_goes_on_when_it_returns() {
        let budget = MemoryBudget::new(MINIMUM_PART_SIZE_BYTES);
        let first = budget.take(PART_BYTES).await.unwrap();
        let second = budget.take(1);
        tokio::pin!(second);
        assert!(futures::poll!(&mut second).is_pending());
        drop(first.into_payload());
        assert_eq!(second.await.unwrap().size_bytes(), 1);
    }

    #[tokio::test]
    async fn a_block_that_is_kept_takes_its_own_bytes_and_no_more() {
        let budget = MemoryBudget::new(MINIMUM_PART_SIZE_BYTES);
        let payload = budget.take(PART_BYTES).await.unwrap().into_payload();
        let kept = payload.blocks().nth(3).unwrap().unwrap();
        drop(payload);
        let rest = budget.take(PART_BYTES - BLOCK_BYTES).await.unwrap();
        let one_more = budget.take(1);
        tokio::pin!(one_more);
        assert!(futures::poll!(&mut one_more).is_pending());
        drop(kept);
        one_more.await.unwrap();
        drop(rest);
    }

    #[tokio::test]
    async fn a_buffer_larger_than_the_budget_is_let_through_alone() {
        let budget = MemoryBudget::new(0);
        let large = budget.take(3 * PART_BYTES).await.unwrap();
        assert!(futures::poll!(Box::pin(budget.take(1))).is_pending());
        let payload = large.into_payload();
        assert_eq!(payload.size_bytes(), 3 * PART_BYTES as u64);
        drop(payload);
        budget.take(PART_BYTES).await.unwrap();
    }

    #[tokio::test]
    async fn whole_blocks_are_used_again_and_small_bodies_take_what_they_need() {
        let budget = MemoryBudget::new(0);
        let first = budget.take(BLOCK_BYTES + 5).await.unwrap();
        let place = first.blocks[0].bytes.as_ptr();
        assert_eq!(first.blocks[1].bytes.capacity(), 5);
        drop(first);
        let small = budget.take(7).await.unwrap();
        assert_eq!(small.blocks[0].bytes.capacity(), 7);
        assert_eq!(budget.take(BLOCK_BYTES).await.unwrap().blocks[0].bytes.as_ptr(), place);
        assert_eq!(budget.take(0).await.unwrap().into_payload().size_bytes(), 0);
    }
}
