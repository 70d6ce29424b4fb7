//! The memory budget: buffers from a pool, and waiting instead of growing.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use stepvault_core::file_parts::MINIMUM_PART_SIZE_BYTES;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits are counted in KiB: a semaphore's count has to fit 32 bits.
const PERMIT_BYTES: usize = 1 << 10;

/// Hands out buffers whose total never exceeds the budget. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    permits: Arc<Semaphore>,
    total_permits: u32,
    /// Buffers of the common part size, kept because fresh memory costs page faults; larger and smaller ones go
    /// back to the allocator.
    idle: Mutex<Vec<Vec<u8>>>,
}

impl MemoryBudget {
    /// A budget of `budget_bytes`, at least one part of the common size.
    pub fn new(budget_bytes: u64) -> Self {
        let bytes = usize::try_from(budget_bytes.max(MINIMUM_PART_SIZE_BYTES)).unwrap_or(usize::MAX);
        let total_permits = u32::try_from(bytes / PERMIT_BYTES)
            .unwrap_or(u32::MAX / 16)
            .min(u32::MAX / 16);
        let permits = Arc::new(Semaphore::new(total_permits as usize));
        Self {
            inner: Arc::new(Inner {
                permits,
                total_permits,
                idle: Mutex::default(),
            }),
        }
    }

    /// A buffer of exactly `size_bytes`, when there is room. A single buffer larger than the whole budget is let
    /// through alone, so that a small budget slows a transfer and never blocks it for good.
    pub async fn take(&self, size_bytes: usize) -> Result<Buffer> {
        let wanted = u32::try_from(size_bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let wanted = wanted.clamp(1, self.inner.total_permits);
        let permit = Arc::clone(&self.inner.permits)
            .acquire_many_owned(wanted)
            .await
            .map_err(|_| Error::new(ErrorKind::Interrupted, "the transfer was shut down"))?;
        let reused = if size_bytes > common_size() / 2 && size_bytes <= common_size() {
            self.inner
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop()
        } else {
            None
        };
        let mut bytes = reused.unwrap_or_default();
        bytes.resize(size_bytes, 0);
        Ok(Buffer {
            bytes,
            budget: Arc::clone(&self.inner),
            _permit: permit,
        })
    }
}

fn common_size() -> usize {
    usize::try_from(MINIMUM_PART_SIZE_BYTES).unwrap_or(usize::MAX)
}

/// A buffer that returns to its budget when dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    budget: Arc<Inner>,
    _permit: OwnedSemaphorePermit,
}

impl Buffer {
    /// The bytes, to fill.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The bytes as a shared body; the buffer returns to its budget when the last clone is dropped.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() >= common_size() / 2 && bytes.capacity() <= common_size() {
            let mut idle = self.budget.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let room = self.budget.total_permits as usize * PERMIT_BYTES / common_size();
            if idle.len() < room {
                idle.push(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_when_the_budget_is_spent_and_goes_on_when_it_returns() {
        let budget = MemoryBudget::new(MINIMUM_PART_SIZE_BYTES);
        let first = budget.take(common_size()).await.unwrap();
        let second = budget.take(1);
        tokio::pin!(second);
        assert!(futures::poll!(&mut second).is_pending());
        drop(first.into_bytes());
        assert_eq!(second.await.unwrap().as_ref().len(), 1);
    }

    #[tokio::test]
    async fn a_buffer_larger_than_the_budget_is_let_through_alone() {
        let budget = MemoryBudget::new(0);
        let large = budget.take(3 * common_size()).await.unwrap();
        assert_eq!(large.as_ref().len(), 3 * common_size());
    }
}
