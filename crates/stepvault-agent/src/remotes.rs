//! The remotes of each run, for the tasks that use them.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use stepvault_core::config::RunSettings;
use stepvault_core::{Error, ErrorKind, Result, RunName};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::vault::Vault;
use stepvault_remote::decorator::{Answer, Call, Request, StoreDecorator};
use stepvault_remote::store::{ObjectInfo, RemoteStore};
use tokio::time::Instant;

use crate::options::{AgentOptions, AgentRemote};

/// A served run and its remotes, each wrapped in a timeout that other tasks may share.
#[derive(Debug, Clone)]
pub(crate) struct ServedRun {
    pub(crate) settings: RunSettings,
    pub(crate) remotes: Vec<RunRemote>,
}

impl ServedRun {
    pub(crate) fn name(&self) -> &RunName {
        &self.settings.name
    }
}

/// Returns the options with remotes that are each wrapped in a timeout.
pub(crate) fn with_timeouts(options: &AgentOptions) -> AgentOptions {
    let timed = |remote: &AgentRemote| AgentRemote {
        settings: Arc::clone(&remote.settings),
        store: Arc::new(TimeoutStore::new(Arc::clone(&remote.store))),
        requests: Arc::clone(&remote.requests),
    };
    let all = |remotes: &[AgentRemote]| remotes.iter().map(timed).collect();
    AgentOptions { remotes: all(&options.remotes), selective: all(&options.selective), ..options.clone() }
}

/// Returns the served runs, given options with timeouts.
pub(crate) fn served_runs(timed: &AgentOptions, vault: &Vault) -> Vec<ServedRun> {
    let served = timed
        .runs
        .iter()
        .map(|run| ServedRun { settings: run.clone(), remotes: remotes_of(run, timed, vault) });
    served.collect()
}

/// Returns a run on one remote.
pub(crate) fn on_remote(run: &RunName, remote: &AgentRemote, vault: &Vault) -> RunRemote {
    RunRemote::new(Arc::clone(&remote.store), Arc::clone(&remote.settings), run.clone()).remembered_by(vault)
}

/// Returns a run on its remotes, as recorded in the vault.
pub(crate) fn remotes_of(run: &RunSettings, options: &AgentOptions, vault: &Vault) -> Vec<RunRemote> {
    let remotes = options.remotes_of(run);
    remotes.map(|remote| on_remote(&run.name, remote, vault)).collect()
}

/// Maximum wait for one response, or for the next page or chunk of one.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a store that did not answer is not queried again.
const LEFT_ALONE: Duration = Duration::from_secs(30);

/// Forwards all calls, fails when the store takes too long, and then fails immediately for a while.
///
/// Otherwise every single step would wait for a hung store, for as long as its retries may take.
#[derive(Debug)]
pub(crate) struct TimeoutStore {
    inner: Arc<dyn RemoteStore>,
    gate: Gate,
}

#[derive(Debug, Clone, Default)]
struct Gate {
    silent_until: Arc<Mutex<Option<Instant>>>,
}

impl Gate {
    fn check(&self, url: &str) -> Result<()> {
        let until = *self.silent_until.lock();
        match until {
            Some(until) if until > Instant::now() => {
                Err(unanswered(url, "it did not answer a short time ago"))
            }
            _ => Ok(()),
        }
    }

    fn close(&self) {
        *self.silent_until.lock() = Some(Instant::now() + LEFT_ALONE);
    }

    async fn within<T>(&self, url: &str, answer: impl Future<Output = T> + Send) -> Result<T> {
        tokio::time::timeout(ANSWER_WITHIN, answer).await.map_err(|_| {
            self.close();
            unanswered(url, &format!("it did not answer within {} s", ANSWER_WITHIN.as_secs()))
        })
    }
}

fn unanswered(url: &str, why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "cannot query the remote").on(url).because(why)
}

impl TimeoutStore {
    pub(crate) fn new(inner: Arc<dyn RemoteStore>) -> Self {
        Self { inner, gate: Gate::default() }
    }

    /// Returns the same stream with a timeout for each item; it ends with the item that is late.
    fn timed<'a, T: Send + 'a>(&self, items: BoxStream<'a, Result<T>>) -> BoxStream<'a, Result<T>> {
        let (gate, url) = (self.gate.clone(), self.inner.url().to_owned());
        let next = move |items: Option<BoxStream<'a, Result<T>>>| {
            let (gate, url) = (gate.clone(), url.clone());
            async move {
                let mut items = items?;
                let open = gate.check(&url);
                let item = match open {
                    Ok(()) => gate.within(&url, items.next()).await,
                    Err(error) => Err(error),
                };
                match item {
                    Ok(item) => Some((item?, Some(items))),
                    Err(error) => Some((Err(error), None)),
                }
            }
        };
        futures::stream::unfold(Some(items), next).boxed()
    }
}

#[async_trait]
impl StoreDecorator for TimeoutStore {
    fn inner(&self) -> &dyn RemoteStore {
        &*self.inner
    }

    async fn around<'a, T: Answer + 'a, C: Call<'a, T>>(&'a self, _request: Request, call: C) -> Result<T> {
        self.gate.check(self.inner.url())?;
        let answer = self.gate.within(self.inner.url(), call()).await?;
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unreachable) {
            self.gate.close();
        }
        answer
    }

    async fn read_decorated(
        &self,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let opening = self.around(Request::READ, || self.inner.read(key, range.clone()));
        Ok(self.timed(opening.await?))
    }

    fn list_decorated<'a>(&'a self, prefix: &str) -> BoxStream<'a, Result<ObjectInfo>> {
        self.timed(self.inner.list(prefix))
    }
}
