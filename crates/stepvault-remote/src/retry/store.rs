//! The decorator: which methods are simply repeated, and which have to find out what the lost answer was.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use stepvault_core::digest::{FileDigest, PartDigest, Sha256Digest};
use stepvault_core::ids::RemoteName;
use stepvault_core::observe::{Event, Observer, Tier};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::gate::{Gate, backoff};
use super::listing;
use crate::payload::Payload;
use crate::store::{
    Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore, StoreAbilities,
};

/// Wait of a single request before its first retry, before jitter.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Longest wait of a single request; a remote that fails as a whole is given more time by the gate.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// Who is retried, and for how long.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    /// The remote, for messages and events.
    pub name: RemoteName,
    /// Time after which a request that keeps failing is given up.
    pub deadline: Duration,
}

impl RetryPolicy {
    /// What `settings` ask for.
    pub fn of(settings: &RemoteSettings) -> Self {
        Self {
            name: settings.name.clone(),
            deadline: Duration::from_secs(settings.retry_deadline_seconds),
        }
    }
}

/// Retries the requests of the store it wraps.
#[derive(Debug)]
pub struct RetryStore {
    pub(super) inner: Arc<dyn RemoteStore>,
    pub(super) retries: Retries,
}

/// One failing request's course.
#[derive(Debug)]
pub(super) struct Retries {
    gate: Arc<Gate>,
    observer: Arc<dyn Observer>,
    tier: Tier,
    subject: String,
    deadline: Duration,
}

impl RetryStore {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn RemoteStore>, policy: RetryPolicy, observer: Arc<dyn Observer>) -> Self {
        let retries = Retries {
            gate: Gate::new(policy.deadline),
            observer,
            subject: format!("{} ({})", policy.name, inner.url()),
            tier: Tier::Remote(policy.name),
            deadline: policy.deadline,
        };
        Self { inner, retries }
    }
}

impl Retries {
    /// Runs `attempt` until it succeeds, fails for good, or the deadline has passed. `attempt` is told whether an
    /// earlier one may have been carried out without an answer.
    pub(super) async fn run<Value, Attempting>(
        &self,
        mut attempt: impl FnMut(bool) -> Attempting + Send,
    ) -> Result<Value>
    where
        Attempting: Future<Output = Result<Value>> + Send,
    {
        let mut began = None;
        let mut tries = 0_u32;
        let mut waits = backoff(FIRST_WAIT, LONGEST_WAIT);
        let mut last: Option<Error> = None;
        loop {
            let pass = match self.gate.enter(tries > 0).await {
                Ok(pass) => pass,
                Err(shared) => {
                    return Err(self.unreachable(tries, self.deadline, last.as_ref().or(shared.as_ref())));
                }
            };
            // Waiting for others does not count; only what this request tried does.
            let began = *began.get_or_insert_with(Instant::now);
            tries += 1;
            let error = match attempt(tries > 1).await {
                Err(error) if error.is_transient() => error,
                answer => {
                    pass.succeeded();
                    return answer;
                }
            };
            if error.kind() == ErrorKind::Conflict {
                // Two writers met; the remote itself is well.
                pass.succeeded();
            } else {
                pass.failed(&error);
            }
            let wait = waits.next().unwrap_or(LONGEST_WAIT);
            let wait = error.retry_after_wait().map_or(wait, |asked| asked.max(wait));
            if began.elapsed() + wait > self.deadline {
                return Err(self.unreachable(tries, began.elapsed(), Some(&error)));
            }
            self.observer.on_event(&Event::Retrying {
                tier: &self.tier,
                error: &error,
                wait_seconds: wait.as_secs_f64(),
            });
            last = Some(error);
            tokio::time::sleep(wait).await;
        }
    }

    fn unreachable(&self, tries: u32, time: Duration, last: Option<&Error>) -> Error {
        let seconds = time.as_secs_f64();
        let (kind, cause, hint) = match last {
            Some(last) => (
                last.kind(),
                format!("the last error: {last}"),
                last.hint_text().unwrap_or_default(),
            ),
            None => (
                ErrorKind::Unreachable,
                "it answered no other request either".to_owned(),
                "",
            ),
        };
        let course = match tries {
            0 => format!("waited {seconds:.1} seconds for it to answer any request"),
            1 => format!("tried once in {seconds:.1} seconds"),
            _ => format!("tried {tries} times in {seconds:.1} seconds"),
        };
        let mut error = Error::new(kind, "the remote does not serve requests")
            .on(&self.subject)
            .because(format!("{course}; {cause}"));
        if !hint.is_empty() {
            error = error.hint(hint);
        }
        // A conflict or a refusal that lasted is still worth a try later.
        error.transient()
    }
}

#[async_trait]
impl RemoteStore for RetryStore {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn abilities(&self) -> StoreAbilities {
        self.inner.abilities()
    }

    /// A lost answer looks like `Exists`: the caller compares, as the contract asks for anyway.
    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        self.retries
            .run(|_| self.inner.create(key, body.clone(), digest))
            .await
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        self.retries
            .run(|_| self.inner.replace(key, body.clone(), digest))
            .await
    }

    /// A lost answer leaves an upload behind that the sweep for pending uploads finds.
    async fn start_upload(&self, key: &str, size_bytes: u64) -> Result<String> {
        self.retries
            .run(|_| self.inner.start_upload(key, size_bytes))
            .await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        self.retries
            .run(|_| self.inner.upload_part(key, upload, index, body.clone(), digest))
            .await
    }

    /// An upload that is gone, or a key that is taken after an answer was lost, may be this very completion's doing.
    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        let ambiguous = std::sync::atomic::AtomicBool::new(false);
        let answer = self
            .retries
            .run(|again| {
                ambiguous.store(again, std::sync::atomic::Ordering::Relaxed);
                self.inner.complete_upload(key, upload, parts, digest)
            })
            .await;
        let ambiguous = ambiguous.into_inner();
        let gone = matches!(&answer, Err(error) if error.kind() == ErrorKind::NotFound);
        if !(gone || ambiguous && matches!(answer, Ok(Created::Exists))) {
            return answer;
        }
        let Some(head) = self.head(key).await? else {
            return answer;
        };
        let digests: Vec<Sha256Digest> = parts.iter().map(|part| part.digest.sha256).collect();
        let proven =
            head.info.size_bytes == digest.size_bytes && head.checksum.proves(digest, &digests) == Some(true);
        Ok(if proven {
            Created::Written(head)
        } else {
            Created::Exists
        })
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        self.retries.run(|_| self.inner.abort_upload(key, upload)).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        self.retries.run(|_| self.inner.pending_uploads(prefix)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        self.retries.run(|_| self.inner.head(key)).await
    }

    /// Only the opening is retried: what came before a cut is with the caller, who asks for the rest.
    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.retries.run(|_| self.inner.read(key, range.clone())).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        listing::list(self, prefix)
    }

    async fn sync(&self, keys: &[String]) -> Result<()> {
        self.retries.run(|_| self.inner.sync(keys)).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.retries.run(|_| self.inner.delete(keys)).await
    }

    /// A lost answer looks like `Exists`, as with `create`.
    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        self.retries.run(|_| self.inner.copy(from, to)).await
    }

    async fn copy_part(
        &self,
        from: &str,
        key: &str,
        upload: &str,
        index: u32,
        start: u64,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        self.retries
            .run(|_| self.inner.copy_part(from, key, upload, index, start, digest))
            .await
    }
}
