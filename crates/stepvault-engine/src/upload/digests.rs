//! Digests of a step's parts, shared by the uploads of the step to all remotes: its bytes are hashed once, however many
//! remotes it goes to and however often it is tried.
//!
//! A shared digest proves nothing by itself. It is what the bytes that are sent are held against, by the store or by
//! reading them back.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use stepvault_core::{
    DigestAlgorithm, Error, ErrorKind, PartDigest, RelativePath, RunName, StepId, Timestamp,
};
use stepvault_local::seal_record::SealedFile;
use tokio::sync::OnceCell;

/// Number of steps whose digests are kept, the most recent ones.
const MOST_STEPS: usize = 4;
/// Number of parts of a step whose digests are kept: some ten megabytes of memory, for 512 GiB in parts of 8 MiB.
const MOST_PARTS: usize = 1 << 16;
/// Files below this size are hashed for each remote: that costs less than their request.
const SMALLEST_FILE_BYTES: u64 = 1 << 20;

/// The digests of the steps that a process uploads. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SharedDigests {
    steps: Arc<Mutex<VecDeque<(SealedAs, StepDigests)>>>,
}

/// A step, and the algorithm of its digests: a step that is sealed again may have another one.
type SealedAs = (RunName, StepId, DigestAlgorithm);

/// The digests of one step. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct StepDigests {
    parts: Arc<Mutex<BTreeMap<PartOfFile, PartCell>>>,
}

/// The digest of one part: the first remote that needs it computes it, and the others wait for that.
pub(super) type PartCell = Arc<OnceCell<PartDigest>>;

/// A part of a file as it was sealed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PartOfFile {
    path: RelativePath,
    size_bytes: u64,
    mtime: Timestamp,
    index: u32,
}

impl SharedDigests {
    /// Returns the digests of a step.
    pub(super) fn of_step(&self, run: &RunName, id: StepId, algorithm: DigestAlgorithm) -> StepDigests {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let sealed_as = (run.clone(), id, algorithm);
        let known = steps.iter().find(|(step, _)| *step == sealed_as);
        if let Some((_, digests)) = known {
            return digests.clone();
        }
        let digests = StepDigests::default();
        if steps.len() == MOST_STEPS {
            steps.pop_front();
        }
        steps.push_back((sealed_as, digests.clone()));
        digests
    }

    /// Forgets the digests of a step that was not sealed.
    pub(super) fn forget(&self, digests: &StepDigests) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.retain(|(_, known)| !Arc::ptr_eq(&known.parts, &digests.parts));
    }
}

impl PartOfFile {
    fn of(file: &SealedFile, index: u32) -> Self {
        Self { path: file.path.clone(), size_bytes: file.size_bytes, mtime: file.mtime, index }
    }
}

impl StepDigests {
    /// Returns the place of a part's digest; `None` if it is not shared.
    pub(super) fn part(&self, file: &SealedFile, index: u32) -> Option<PartCell> {
        if file.size_bytes < SMALLEST_FILE_BYTES {
            return None;
        }
        let part = PartOfFile::of(file, index);
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = parts.get(&part) {
            return Some(Arc::clone(cell));
        }
        if parts.len() >= MOST_PARTS {
            return None;
        }
        Some(Arc::clone(parts.entry(part).or_default()))
    }
    /// Forgets a digest that is not, or no longer, that of the part.
    pub(super) fn forget(&self, file: &SealedFile, index: u32) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.remove(&PartOfFile::of(file, index));
    }
}

/// Returns the error for files at `place` that two uploads found different.
pub(super) fn changed_between_uploads(place: &dyn Display) -> Error {
    Error::new(ErrorKind::SourceChanged, "a sealed step changed between two uploads")
        .on(place)
        .because("the digests of the bytes sent to two remotes differ")
        .hint("set local.links = \"copy\": a process rewrites the checkpoint's files in place")
}
