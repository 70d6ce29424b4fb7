//! What was measured of a remote's store, as the vault remembers it: what it enforces, for 24 h, since the probe costs
//! about 15 requests; and its concurrency limit, so that the next process starts there.

use serde::{Deserialize, Serialize};
use stepvault_core::{DigestAlgorithm, Result, Sha256Digest, Timestamp};
use stepvault_local::clock;
use stepvault_local::vault::Vault;
use stepvault_remote::probe::{StoreGuarantees, probe};
use stepvault_remote::store::ConcurrencyLimit;

use super::cache::Note;
use super::run_remote::RunRemote;

/// How long an answer counts.
const VALID_SECONDS: u64 = 24 * 60 * 60;

/// The record of a remote.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Probed {
    /// Digest of the remote's settings, of its archive and of this program's version: another store, other
    /// credentials by another profile, or other questions.
    identity: String,
    at: Timestamp,
    guarantees: StoreGuarantees,
}

fn identity(remote: &RunRemote, archive: &str) -> String {
    let text = format!("{} {archive} {:?}", env!("CARGO_PKG_VERSION"), remote.settings);
    Sha256Digest::of(text.as_bytes()).to_string()
}

/// Returns what the store behind `remote` enforces for digests by `algorithm`: as it was found within the last day, or by
/// asking it.
pub(crate) async fn guarantees(
    remote: &RunRemote,
    vault: &Vault,
    archive: &str,
    algorithm: DigestAlgorithm,
) -> Result<StoreGuarantees> {
    let identity = identity(remote, archive);
    let now = clock::now();
    // An unreadable record counts as missing.
    if let Ok(Some(probed)) = remote.cache(vault).read::<Probed>(Note::Guarantees).await
        && probed.identity == identity
        && probed.guarantees.algorithm == algorithm
        && probed.at <= now
        && now.seconds_since(probed.at) < VALID_SECONDS
    {
        return Ok(probed.guarantees);
    }
    let guarantees = probe(remote.store.as_ref(), &remote.keys, algorithm).await?;
    // What is ignored is asked again, until the setting or the store is corrected.
    if guarantees.ignored_attributes.is_empty() {
        let probed = Probed { identity, at: now, guarantees: guarantees.clone() };
        remote.cache(vault).keep(Note::Guarantees, &probed).await;
    }
    Ok(guarantees)
}

/// Returns whether this vault last found that the store does not refuse to overwrite an object, so that two writers of
/// one step at the same time may not notice each other. `None` where it never asked.
///
/// # Errors
/// When the vault cannot be read.
pub async fn lets_writers_collide(remote: &RunRemote, vault: &Vault) -> Result<Option<bool>> {
    let probed = remote.cache(vault).read::<Probed>(Note::Guarantees).await?;
    Ok(probed.map(|probed| {
        let StoreGuarantees { honours_create_only, completes_create_only, .. } = probed.guarantees;
        !(honours_create_only && completes_create_only)
    }))
}

/// The note of a remote.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    /// The place that it was measured at: a remote may be moved under its name.
    place: String,
    concurrent_requests: usize,
}

/// Starts a remote at the limit that was last measured. Without a note it finds its limit by itself.
pub(crate) async fn recall_concurrency(remote: &RunRemote, vault: &Vault) {
    if let Some(measured) = read_concurrency(remote, vault).await
        && let Some(limit) = remote.store.concurrency_limit()
    {
        limit.start_at(measured.concurrent_requests);
    }
}

/// Stores the limit of a remote if it was measured and differs from the stored one.
pub(crate) async fn remember_concurrency(remote: &RunRemote, vault: &Vault) {
    let limit = remote.store.concurrency_limit();
    let Some(concurrent_requests) = limit.and_then(ConcurrencyLimit::measured) else {
        return;
    };
    let measured = Measured { place: remote.identity_url(), concurrent_requests };
    if read_concurrency(remote, vault).await.as_ref() != Some(&measured) {
        remote.cache(vault).keep(Note::Concurrency, &measured).await;
    }
}

async fn read_concurrency(remote: &RunRemote, vault: &Vault) -> Option<Measured> {
    let measured: Measured = remote.cache(vault).read(Note::Concurrency).await.ok()??;
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
            (RunRemote::new(Arc::clone(&store) as _, Arc::new(settings), run), store)
        };
        let started = |store: &MeasuredStore| store.started_at.lock().unwrap().clone();
        let (unmeasured, store) = at(None, None);
        recall_concurrency(&unmeasured, &vault).await;
        remember_concurrency(&unmeasured, &vault).await;
        assert_eq!(started(&store), Vec::<usize>::new(), "nothing was measured yet");
        remember_concurrency(&at(Some(64), None).0, &vault).await;
        remember_concurrency(&at(Some(256), None).0, &vault).await;
        recall_concurrency(&unmeasured, &vault).await;
        assert_eq!(started(&store), [256], "what was measured last");
        let (moved, store) = at(None, Some("http://elsewhere"));
        recall_concurrency(&moved, &vault).await;
        assert_eq!(started(&store), Vec::<usize>::new(), "of another server nothing is known");
        let (run, key) = (unmeasured.keys.run(), Note::Concurrency.key(unmeasured.name()));
        vault.write_note(run, &key, b"{\"place\":7}").unwrap();
        let (again, store) = at(None, None);
        recall_concurrency(&again, &vault).await;
        assert_eq!(started(&store), Vec::<usize>::new(), "a note that cannot be read is none");
        remember_concurrency(&at(Some(32), None).0, &vault).await;
        recall_concurrency(&again, &vault).await;
        assert_eq!(started(&store), [32]);
    }
}
