//! Chooses the algorithm of a step's digests where the configuration leaves it open.

use std::sync::OnceLock;
use std::time::Instant;

use futures::future::select_ok;
use stepvault_core::{DigestAlgorithm, Error, ErrorKind, Result, Sha256Digest};
use stepvault_local::sealed::SealedStep;

use crate::blocking::blocking;
use crate::tier::catalog::{committed_ids, read_commit};
use crate::tier::run_remote::RunRemote;

/// Bytes hashed at once to measure the rate: they fit in the processor's cache.
const SAMPLE_BYTES: usize = 256 << 10;
/// Number of measurements. The fastest counts: the others were interrupted.
const SAMPLES: usize = 8;

/// Returns the algorithm for the next step of a run: that of its newest step in the vault, else on the first remote that
/// answers, else the one that suits this processor.
pub(crate) async fn choose(sealed: &[SealedStep], remotes: &[RunRemote]) -> Result<DigestAlgorithm> {
    if let Some(newest) = sealed.iter().max_by_key(|step| step.id()) {
        return Ok(newest.record().digest);
    }
    let asked: Vec<_> =
        remotes.iter().map(|remote| Box::pin(remote.answers_soon(newest_committed(remote)))).collect();
    // Without an answer the run counts as new: each step records its own algorithm.
    let answer = if asked.is_empty() { None } else { select_ok(asked).await.ok() };
    match answer.and_then(|(committed, _)| committed) {
        Some(algorithm) => Ok(algorithm),
        None => blocking(|| Ok(DigestAlgorithm::for_new_run(sha256_rate()))).await,
    }
}

async fn newest_committed(remote: &RunRemote) -> Result<Option<DigestAlgorithm>> {
    let Some(newest) = committed_ids(remote).await?.into_keys().max() else {
        return Ok(None);
    };
    let commit = read_commit(remote, newest).await?;
    let part = commit.parts.first().ok_or_else(|| {
        Error::new(ErrorKind::Damaged, "a commit lists no part")
            .on(remote.describe(&remote.keys.commit(newest)))
    })?;
    Ok(Some(part.digest))
}

/// Returns the bytes per second of SHA-256 on one core, measured once. Blocks for a few milliseconds.
fn sha256_rate() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let sample = vec![0; SAMPLE_BYTES];
        let times = (0..SAMPLES).map(|_| {
            let begun = Instant::now();
            std::hint::black_box(Sha256Digest::of(std::hint::black_box(&sample)));
            begun.elapsed()
        });
        let nanoseconds = times.min().map_or(1, |time| time.as_nanos().max(1));
        u64::try_from(SAMPLE_BYTES as u128 * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX)
    })
}
