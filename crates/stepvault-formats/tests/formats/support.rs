//! Real checkpoints, and deterministic ways to damage them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use stepvault_core::timestamp::Timestamp;
use stepvault_formats::soundness::{Fault, Soundness, judged};
use stepvault_formats::tree::ReadAt;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};

pub(crate) use crate::directory::archive::Fixture;

/// Files in memory, as a tree.
#[derive(Clone)]
pub(crate) struct Files(pub(crate) BTreeMap<String, Vec<u8>>);

impl Files {
    pub(crate) fn of(fixture: &Fixture) -> Self {
        let paths = fixture.files().into_iter();
        Self(paths.map(|path| (path.clone(), fixture.read(&path))).collect())
    }

    /// Returns the files below a directory, by their path from there.
    pub(crate) fn below(&self, directory: &str) -> Self {
        let prefix = format!("{directory}/");
        let files = self.0.iter();
        Self(
            files
                .filter_map(|(path, bytes)| Some((path.strip_prefix(&prefix)?.to_owned(), bytes.clone())))
                .collect(),
        )
    }

    pub(crate) fn tree(&self) -> Tree {
        let mut entries = BTreeMap::new();
        let entry = |kind| Entry { kind, mtime: Timestamp::from_seconds(0) };
        for (path, bytes) in &self.0 {
            let size_bytes = bytes.len() as u64;
            let kind = EntryKind::File { size_bytes, allocated_bytes: None };
            entries.insert(path.clone(), entry(kind));
            for (end, _) in path.match_indices('/') {
                entries.insert(path[..end].to_owned(), entry(EntryKind::Directory));
            }
        }
        Tree::new(entries)
    }
}

impl OpenFile for Files {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let bytes = self.0.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Counting::new(bytes.clone())))
    }
}

/// Returns the result of a check of bytes, and asserts that it read no more than it may.
pub(crate) fn judge(bytes: &[u8], check: fn(&dyn ReadAt) -> Result<(), Fault>) -> Soundness {
    let counting = Counting::new(bytes.to_vec());
    let said = judged(check(&counting)).unwrap();
    counting.assert_bounded();
    said
}

/// Bytes that count how much of them is read.
pub(crate) struct Counting {
    bytes: Vec<u8>,
    read_bytes: AtomicU64,
    largest_read_bytes: AtomicUsize,
}

impl Counting {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, read_bytes: AtomicU64::new(0), largest_read_bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Asserts that nothing was read more than a few times, and only in small pieces, whatever headers claim.
    pub(crate) fn assert_bounded(&self) {
        let size_bytes = self.bytes.len() as u64;
        let read_bytes = self.read_bytes();
        assert!(read_bytes <= 4 * size_bytes + 4096, "{read_bytes} of {size_bytes}");
        assert!(self.largest_read_bytes.load(Ordering::Relaxed) <= 1024 * 1024);
    }
}

impl ReadAt for Counting {
    fn size_bytes(&self) -> u64 {
        self.bytes.size_bytes()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.largest_read_bytes.fetch_max(buffer.len(), Ordering::Relaxed);
        self.bytes.read_exact_at(offset, buffer)
    }
}

/// Pseudo-random numbers that are the same in every run.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        // splitmix64's step and mix.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % limit as u64).unwrap()
    }
}

/// Returns the bytes with one bit flipped.
pub(crate) fn flipped(bytes: &[u8], offset: usize, bit: u32) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    damaged[offset] ^= 1 << bit;
    damaged
}

/// Returns every length at which to cut: the given boundaries, their neighbors, and 200 others.
pub(crate) fn cuts(length: usize, boundaries: &[usize]) -> Vec<usize> {
    let mut numbers = Numbers::new(length as u64);
    let mut cuts: Vec<_> = (0..200).map(|_| numbers.below(length)).collect();
    for boundary in boundaries {
        cuts.extend([boundary.saturating_sub(1), *boundary, boundary + 1]);
    }
    cuts.retain(|cut| *cut < length);
    cuts
}

/// Returns why a result is broken, which it has to be.
#[track_caller]
pub(crate) fn why_broken(said: Soundness) -> String {
    match said {
        Soundness::Broken { why, .. } => why,
        other => panic!("not broken: {other:?}"),
    }
}

pub(crate) fn assert_broken(said: &Soundness, what: &str) {
    assert!(matches!(said, Soundness::Broken { .. }), "{what}: {said:?}");
}

/// Returns a small file that is kept beside the tests; samples/README.md names the program that wrote it.
pub(crate) fn sample(name: &str) -> Vec<u8> {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    std::fs::read(samples.join(name)).unwrap()
}

/// Flips every bit of every field, and lists for each field how many flips are not detected: found sound, and found
/// unknown. Fields in which every flip is detected are not listed.
pub(crate) fn unnoticed<'a>(
    bytes: &[u8],
    fields: &[(&'a str, std::ops::Range<usize>)],
    check: fn(&dyn ReadAt) -> Result<(), Fault>,
) -> Vec<(&'a str, usize, usize)> {
    let mut unnoticed = Vec::new();
    for (field, range) in fields {
        let (mut sound, mut unknown) = (0, 0);
        for offset in range.clone() {
            for bit in 0..8 {
                match judge(&flipped(bytes, offset, bit), check) {
                    Soundness::Sound => sound += 1,
                    Soundness::Unknown { .. } => unknown += 1,
                    Soundness::Broken { .. } => {}
                }
            }
        }
        if sound + unknown > 0 {
            unnoticed.push((*field, sound, unknown));
        }
    }
    unnoticed
}
