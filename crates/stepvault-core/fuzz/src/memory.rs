//! How much memory something takes: a bound that goes with its input.
#![allow(unsafe_code, reason = "an allocator is")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes for each byte of a record: its text is read into a value, that is turned into a tree of JSON, and that is
/// written again.
const BYTES_PER_BYTE: usize = 80;
/// Bytes beside them.
const BASE_BYTES: usize = 64 << 10;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

/// The system's allocator, counted.
struct Counting;

// SAFETY: every call is handed on as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs it, and fails if it took more memory than its input may ask for.
pub fn bounded<T>(input_bytes: usize, run: impl FnOnce() -> T) -> T {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let done = run();
    let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    let most = BASE_BYTES + BYTES_PER_BYTE * input_bytes;
    assert!(taken <= most, "{taken} bytes for {input_bytes}");
    done
}
