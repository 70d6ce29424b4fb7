//! Measures the speed of a remote, with a few MiB and within seconds.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::future::try_join_all;
use stepvault_core::keys::RunKeys;
use stepvault_core::{Error, ErrorKind, PartDigest, RemoteSettings, Result};
use stepvault_diagnose::doctor::remote::{self as judge, Measured};
use stepvault_remote::payload::{BLOCK_BYTES, Payload};
use stepvault_remote::random;
use stepvault_remote::store::RemoteStore;
use tokio::time::{Instant, timeout};

use super::remote::RemoteReport;

/// Number of concurrent objects.
const AT_ONCE: usize = 4;
/// Size of the first object, which determines the size of the others.
const FIRST_BYTES: u64 = BLOCK_BYTES as u64;
/// Maximum size of the others.
const MAX_BYTES: u64 = 4 << 20;
/// Target duration for the others together, estimated from the first one.
const WANTED: Duration = Duration::from_secs(1);
/// Time limit for one measurement.
const LIMIT: Duration = Duration::from_secs(8);
/// Number of requests, whose median is used.
const ANSWERS: usize = 5;

/// Objects to measure with, under their own keys.
#[derive(Debug)]
pub(super) struct Speed<'a> {
    store: &'a dyn RemoteStore,
    /// The first one, then the concurrent ones.
    keys: Vec<String>,
}

impl<'a> Speed<'a> {
    pub(super) fn new(store: &'a dyn RemoteStore, keys: &RunKeys) -> Self {
        let keys = (0..=AT_ONCE).map(|_| keys.probe(&format!("{}-rate", random::identity()))).collect();
        Self { store, keys }
    }

    /// Measures latency, then upload rate, then download rate of the uploaded objects.
    pub(super) async fn measure(&self, remote: &RemoteSettings, report: &mut RemoteReport) {
        if let Ok(milliseconds) = self.latency().await {
            report.rates.latency_milliseconds = Some(milliseconds);
            report.add(judge::latency(remote, milliseconds));
        }
        let up = self.up().await;
        report.rates.up_bytes_per_second = rate_of(&up);
        report.add(judge::rate(remote, "upload rate", &up));
        if let Ok(up) = up {
            let (first, others) = self.keys.split_at(1);
            let down = self.down(if up.at_once == 1 { first } else { others }).await;
            report.rates.down_bytes_per_second = rate_of(&down);
            report.add(judge::rate(remote, "download rate", &down));
        }
    }

    /// Returns the median latency of requests for an object that does not exist.
    async fn latency(&self) -> Result<u64> {
        let mut taken = Vec::with_capacity(ANSWERS);
        for _ in 0..ANSWERS {
            let (_, milliseconds) = timed("cannot look up an object", self.store.head(&self.keys[0])).await?;
            taken.push(milliseconds);
        }
        taken.sort_unstable();
        Ok(taken[ANSWERS / 2])
    }

    async fn up(&self) -> Result<Measured> {
        let first = self.send(&self.keys[..1], FIRST_BYTES).await?;
        let wanted = WANTED.as_millis() * u128::from(first.bytes_per_second()) / 1_000;
        let each = u64::try_from(wanted / AT_ONCE as u128).unwrap_or(u64::MAX).min(MAX_BYTES);
        if each < FIRST_BYTES {
            return Ok(first);
        }
        self.send(&self.keys[1..], each).await
    }

    /// Writes an object of `each_bytes` under each key, concurrently.
    async fn send(&self, keys: &[String], each_bytes: u64) -> Result<Measured> {
        let (payload, digest) = filled(each_bytes);
        let writes = keys.iter().map(|key| self.store.create(key, payload.clone(), &digest));
        let (_, milliseconds) = timed("cannot write the objects", try_join_all(writes)).await?;
        Ok(Measured { bytes: each_bytes * keys.len() as u64, milliseconds, at_once: keys.len() })
    }

    /// Reads all objects concurrently, and counts the received bytes.
    async fn down(&self, keys: &[String]) -> Result<Measured> {
        let reads = keys.iter().map(|key| async move {
            let pieces = self.store.read(key, None).await?;
            pieces.try_fold(0, |bytes, piece| async move { Ok(bytes + piece.len() as u64) }).await
        });
        let (lengths, milliseconds) = timed("cannot read the objects", try_join_all(reads)).await?;
        Ok(Measured { bytes: lengths.iter().sum(), milliseconds, at_once: keys.len() })
    }

    pub(super) async fn clean_up(&self) -> Result<()> {
        self.store.delete(&self.keys).await
    }
}

fn rate_of(measured: &Result<Measured>) -> Option<u64> {
    measured.as_ref().ok().map(Measured::bytes_per_second)
}

/// Returns the result of `work` and the milliseconds that it took.
async fn timed<T>(what: &str, work: impl Future<Output = Result<T>>) -> Result<(T, u64)> {
    let began = Instant::now();
    let value = timeout(LIMIT, work).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unreachable, what)
            .because(format!("not done within {} seconds", LIMIT.as_secs()))
            .hint("check the network to the store: uploads would be equally slow"))
    })?;
    let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok((value, milliseconds))
}

/// Returns incompressible bytes, in blocks like those of uploads.
fn filled(size_bytes: u64) -> (Payload, PartDigest) {
    let mut numbers = fastrand::Rng::with_seed(size_bytes);
    let mut bytes = vec![0; usize::try_from(size_bytes).unwrap_or(BLOCK_BYTES)];
    numbers.fill(&mut bytes);
    let bytes = Bytes::from(bytes);
    let digest = PartDigest::of(&bytes);
    let blocks: Vec<Bytes> = (0..bytes.len())
        .step_by(BLOCK_BYTES)
        .map(|start| bytes.slice(start..bytes.len().min(start + BLOCK_BYTES)))
        .collect();
    (blocks.into(), digest)
}
