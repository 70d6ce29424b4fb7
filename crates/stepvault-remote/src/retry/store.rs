//! The retry decorator. Most methods are repeated unchanged; some must determine the result of an attempt whose answer
//! was lost.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt as _, try_unfold};
use parking_lot::Mutex;
use stepvault_core::clock::gap_seconds;
use stepvault_core::{
    ContentDigest, Error, ErrorKind, Event, FileDigest, Observer, RemoteName, RemoteSettings, Result,
    Sha256Digest, Tier, Timestamp,
};
use stepvault_local::clock;
use tokio::time::Instant;

use super::gate::{Gate, backoff};
use crate::decorator::{Answer, Call, Request, StoreDecorator};
use crate::store::{ArchivePlace, Created, ObjectInfo, PartReceipt, RemoteStore};

/// Wait of a request before its first retry, before jitter.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Longest wait of a request. The gate adds longer waits for a remote that fails as a whole.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// Time for the first answer of a remote to a command that can be repeated. One connection may take as long.
const UNANSWERED: Duration = Duration::from_secs(10);

/// Name and deadline for retries.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    /// The remote's name, for messages and events.
    pub name: RemoteName,
    /// Time after which a failing request is given up.
    pub deadline: Duration,
    /// The same for a remote that has answered no request yet, which is not asked again then.
    pub unanswered: Option<Duration>,
}

impl RetryPolicy {
    /// Returns the policy that `settings` define. With `gives_up_soon`, a remote that does not answer at all is known after
    /// the time that one connection may take.
    pub fn of(settings: &RemoteSettings, gives_up_soon: bool) -> Self {
        let deadline = Duration::from_secs(settings.retry_deadline_seconds);
        let unanswered = gives_up_soon.then_some(deadline.min(UNANSWERED));
        Self { name: settings.name.clone(), deadline, unanswered }
    }
}

/// Retries the requests of the wrapped store.
#[derive(Debug)]
pub struct RetryStore {
    pub(super) inner: Arc<dyn RemoteStore>,
    pub(super) retries: Retries,
}

/// The attempts of one failing request.
#[derive(Debug)]
pub(super) struct Retries {
    gate: Arc<Gate>,
    observer: Arc<dyn Observer>,
    tier: Tier,
    subject: String,
    deadline: Duration,
    /// The deadline until the first answer; `None` after it, and if it is not another one.
    unanswered: Mutex<Option<Duration>>,
    /// When a request last used up the whole deadline, and why; `None` once the remote has answered since.
    given_up: Mutex<Option<(Instant, Error)>>,
}

impl RetryStore {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn RemoteStore>, policy: RetryPolicy, observer: Arc<dyn Observer>) -> Self {
        let retries = Retries {
            gate: Gate::new(policy.deadline),
            unanswered: Mutex::new(policy.unanswered),
            observer,
            subject: format!("{} ({})", policy.name, inner.url()),
            tier: Tier::Remote(policy.name),
            deadline: policy.deadline,
            given_up: Mutex::new(None),
        };
        Self { inner, retries }
    }
}

impl Retries {
    /// Runs `attempt` until it succeeds, fails permanently, or the deadline has passed. `attempt` is told whether an
    /// earlier attempt may have been carried out without an answer.
    ///
    /// A dead remote costs its deadline once: after a request has used it up, every later one is tried once, until the
    /// remote answers or the deadline has passed again.
    pub(super) async fn run<Value, Attempting>(
        &self,
        mut attempt: impl FnMut(bool) -> Attempting + Send,
    ) -> Result<Value>
    where
        Attempting: Future<Output = Result<Value>> + Send,
    {
        let unanswered = *self.unanswered.lock();
        if let (Some(_), Some((_, error))) = (unanswered, &*self.given_up.lock()) {
            return Err(error.clone());
        }
        let deadline = unanswered.unwrap_or(self.deadline);
        let entered = Instant::now();
        let mut began = None;
        let mut tries = 0_u32;
        let mut waits = backoff(FIRST_WAIT, LONGEST_WAIT);
        let mut last: Option<Error> = None;
        loop {
            let pass = match self.gate.enter(tries > 0, self.is_given_up(), deadline).await {
                Ok(pass) => pass,
                Err(shared) => {
                    let last = last.as_ref().or(shared.as_ref());
                    let error = self.unreachable(tries, entered.elapsed(), last);
                    if !self.is_given_up() {
                        self.give_up(&error);
                    }
                    return Err(error);
                }
            };
            // Waiting for the gate does not count; only this request's own attempts do.
            let began = *began.get_or_insert_with(Instant::now);
            tries += 1;
            self.observer.on_event(&Event::Requested { tier: &self.tier });
            let error = match attempt(tries > 1).await {
                Err(error) if error.is_transient() => error,
                answer => {
                    pass.succeeded();
                    *self.given_up.lock() = None;
                    *self.unanswered.lock() = None;
                    return answer;
                }
            };
            let is_conflict = error.kind() == ErrorKind::Conflict;
            if is_conflict {
                // Two writers conflicted; the remote itself works.
                pass.succeeded();
            } else {
                pass.failed(&error);
            }
            let wait = waits.next().unwrap_or(LONGEST_WAIT);
            let wait = error.retry_after_wait().map_or(wait, |asked| asked.max(wait));
            if self.is_given_up() && !is_conflict {
                return Err(self.unreachable(tries, began.elapsed(), Some(&error)));
            }
            if began.elapsed() + wait > deadline {
                let unreachable = self.unreachable(tries, began.elapsed(), Some(&error));
                if !is_conflict {
                    self.give_up(&unreachable);
                }
                return Err(unreachable);
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

    /// Reports how far the store's clock is from this machine's. `store` is a time of a request that began at `before` and
    /// has just ended.
    fn compare_clocks(&self, store: Timestamp, before: Timestamp) {
        let ahead_seconds = gap_seconds(store, before, clock::now());
        self.observer.on_event(&Event::ClockCompared { tier: &self.tier, ahead_seconds });
    }

    /// Returns whether a request has used up the deadline not long ago, and the remote has not answered since.
    fn is_given_up(&self) -> bool {
        self.given_up.lock().as_ref().is_some_and(|(time, _)| time.elapsed() < self.deadline)
    }

    fn give_up(&self, error: &Error) {
        *self.given_up.lock() = Some((Instant::now(), error.clone()));
    }

    fn unreachable(&self, tries: u32, time: Duration, last: Option<&Error>) -> Error {
        let seconds = time.as_secs_f64();
        let (kind, cause, hint) = match last {
            Some(last) => {
                (last.kind(), format!("the last error: {last}"), last.hint_text().unwrap_or_default())
            }
            None => (ErrorKind::Unreachable, "it did not answer any other request either".to_owned(), ""),
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
        // A conflict or refusal that persists may still succeed later.
        error.transient()
    }
}

/// After a lost answer `create` and `copy` find their own object and return `Exists`: the caller compares, as the contract
/// asks. A lost answer to `start_upload` leaves an upload behind, which gc finds. Of a read only the opening is retried: the
/// caller has what came before a cut, and asks for the rest.
#[async_trait]
impl StoreDecorator for RetryStore {
    fn inner(&self) -> &dyn RemoteStore {
        &*self.inner
    }

    async fn around<'a, T: Answer + 'a, C: Call<'a, T>>(&'a self, _request: Request, call: C) -> Result<T> {
        let (retries, call) = (&self.retries, &call);
        let attempt = |_| async move {
            let before = clock::now();
            let answer = call().await;
            if let Some(written_at) = answer.as_ref().ok().and_then(Answer::written_at) {
                retries.compare_clocks(written_at.into(), before);
            }
            answer
        };
        retries.run(attempt).await
    }

    /// Tried once: a bucket is not asked anything, so its answer would tell the gate nothing about it.
    async fn begin_decorated(&self, place: ArchivePlace) -> Result<bool> {
        self.inner.begin(place).await
    }

    /// A missing upload, or a key that is taken after a lost answer, may result from this completion itself.
    async fn complete_decorated(
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
        let digests: Vec<ContentDigest> = parts.iter().map(|part| part.digest.content).collect();
        let proven =
            head.info.size_bytes == digest.size_bytes && head.checksum.proves(digest, &digests) == Some(true);
        Ok(if proven { Created::Written(head) } else { Created::Exists })
    }

    fn list_decorated<'a>(&'a self, prefix: &str) -> BoxStream<'a, Result<ObjectInfo>> {
        let listing = Listing { store: self, prefix: prefix.to_owned(), entries: None, seen: HashSet::new() };
        let next = |mut listing: Listing<'a>| async move {
            let next = listing.next().await?;
            Ok(next.map(|info| (info, listing)))
        };
        try_unfold(listing, next).boxed()
    }
}

/// A store cannot resume a listing in the middle, and keys come in any order. So the listing is restarted, and entries
/// that the caller already has are skipped.
struct Listing<'a> {
    store: &'a RetryStore,
    prefix: String,
    entries: Option<BoxStream<'a, Result<ObjectInfo>>>,
    /// Truncated digests of the returned keys: a key is skipped only when it is certainly the same.
    seen: HashSet<[u8; 16]>,
}

impl Listing<'_> {
    async fn next(&mut self) -> Result<Option<ObjectInfo>> {
        if let Some(entries) = &mut self.entries {
            match entries.next().await.transpose() {
                Ok(Some(info)) => {
                    self.seen.insert(short_digest(&info.key));
                    return Ok(Some(info));
                }
                Ok(None) => return Ok(None),
                Err(error) if !error.is_transient() => return Err(error),
                Err(_) => self.entries = None,
            }
        }
        let (store, prefix, seen) = (self.store, self.prefix.as_str(), &self.seen);
        // Each attempt must get past the known entries: a page that always fails must not be requested forever.
        let (first, entries) = store
            .retries
            .run(|_| async move {
                let mut entries = store.inner.list(prefix);
                loop {
                    match entries.next().await.transpose()? {
                        Some(info) if seen.contains(&short_digest(&info.key)) => {}
                        first => return Ok((first, entries)),
                    }
                }
            })
            .await?;
        self.entries = Some(entries);
        if let Some(info) = &first {
            self.seen.insert(short_digest(&info.key));
        }
        Ok(first)
    }
}

fn short_digest(key: &str) -> [u8; 16] {
    let mut short = [0_u8; 16];
    short.copy_from_slice(&Sha256Digest::of(key.as_bytes()).as_bytes()[..16]);
    short
}
