//! Caches the measured concurrency limit of each remote in the vault, so that the next process starts there.

use serde::{Deserialize, Serialize};
use stepvault_local::vault::Vault;
use stepvault_remote::store::ConcurrencyLimit;

use super::notes::Note;
use super::run_remote::RunRemote;

/// The note of a remote.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    /// The place that it was measured at: a remote may be moved under its name.
    place: String,
    concurrent_requests: usize,
}

/// Starts a remote at the limit that was last measured. Without a note it finds its limit by itself.
pub(crate) async fn recall(remote: &RunRemote, vault: &Vault) {
    if let Some(measured) = read(remote, vault).await
        && let Some(limit) = remote.store.concurrency_limit()
    {
        limit.start_at(measured.concurrent_requests);
    }
}

/// Stores the limit of a remote if it was measured and differs from the stored one.
pub(crate) async fn remember(remote: &RunRemote, vault: &Vault) {
    let limit = remote.store.concurrency_limit();
    let Some(concurrent_requests) = limit.and_then(ConcurrencyLimit::measured) else {
        return;
    };
    let measured = Measured {
        place: remote.identity_url(),
        concurrent_requests,
    };
    if read(remote, vault).await.as_ref() != Some(&measured) {
        remote.notes(vault).keep(Note::Concurrency, &measured).await;
    }
}

async fn read(remote: &RunRemote, vault: &Vault) -> Option<Measured> {
    let measured: Measured = remote.notes(vault).read(Note::Concurrency).await.ok()??;
    (measured.place == remote.identity_url()).then_some(measured)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use futures::future::BoxFuture;
    use stepvault_core::Result;
    use stepvault_remote::decorator::{Answer, Request, StoreDecorator};
    use stepvault_remote::store::RemoteStore;

    use super::*;
    use crate::test_remote::in_directory;

    /// A store that was measured, and what it was started at.
    #[derive(Debug)]
    struct MeasuredStore {
        inner: Arc<dyn RemoteStore>,
        level: Option<usize>,
        started_at: Mutex<Vec<usize>>,
    }

    #[async_trait]
    impl StoreDecorator for MeasuredStore {
        fn inner(&self) -> &dyn RemoteStore {
            &*self.inner
        }

        async fn around<'a, T, C>(&'a self, _: Request, call: C) -> Result<T>
        where
            T: Answer + 'a,
            C: Fn() -> BoxFuture<'a, Result<T>> + Send + Sync + 'a,
        {
            call().await
        }

        fn concurrency_limit_decorated(&self) -> Option<&dyn ConcurrencyLimit> {
            Some(self)
        }
    }

    impl ConcurrencyLimit for MeasuredStore {
        fn current(&self) -> usize {
            self.level.unwrap_or(1)
        }

        fn measured(&self) -> Option<usize> {
            self.level
        }

        fn start_at(&self, level: usize) {
            self.started_at.lock().unwrap().push(level);
        }
    }

    #[tokio::test]
    async fn a_level_is_kept_for_the_place_that_it_was_measured_at() {
        let directory = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(&directory.path().join("vault")).unwrap();
        let disk = in_directory(directory.path()).await;
        let at = |level, endpoint: Option<&str>| {
            let store = Arc::new(MeasuredStore {
                inner: Arc::clone(&disk.store),
                level,
                started_at: Mutex::default(),
            });
            let mut settings = (*disk.settings).clone();
            settings.endpoint = endpoint.map(str::to_owned);
            let run = disk.keys.run().clone();
            (
                RunRemote::new(Arc::clone(&store) as _, Arc::new(settings), run),
                store,
            )
        };
        let started = |store: &MeasuredStore| store.started_at.lock().unwrap().clone();
        let (unmeasured, store) = at(None, None);
        recall(&unmeasured, &vault).await;
        remember(&unmeasured, &vault).await;
        assert_eq!(started(&store), Vec::<usize>::new(), "nothing was measured yet");
        remember(&at(Some(64), None).0, &vault).await;
        remember(&at(Some(256), None).0, &vault).await;
        recall(&unmeasured, &vault).await;
        assert_eq!(started(&store), [256], "what was measured last");
        let (moved, store) = at(None, Some("http://elsewhere"));
        recall(&moved, &vault).await;
        assert_eq!(
            started(&store),
            Vec::<usize>::new(),
            "of another server nothing is known"
        );
        let (run, key) = (unmeasured.keys.run(), Note::Concurrency.key(unmeasured.name()));
        vault.write_note(run, &key, b"{\"place\":7}").unwrap();
        let (again, store) = at(None, None);
        recall(&again, &vault).await;
        assert_eq!(
            started(&store),
            Vec::<usize>::new(),
            "a note that cannot be read is none"
        );
        remember(&at(Some(32), None).0, &vault).await;
        recall(&again, &vault).await;
        assert_eq!(started(&store), [32]);
    }
}
