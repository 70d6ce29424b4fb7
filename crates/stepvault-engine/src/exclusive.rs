//! Ensures that one job at a time writes an exclusive run: a lease on each remote, by the store's clock alone.

use std::time::Duration;

use stepvault_core::codec::FORMAT;
use stepvault_core::keys::{KeyKind, WRITER_LEASES};
use stepvault_core::records::WriterLease;
use stepvault_core::{Error, ErrorKind, Result, Sha256Digest, Writer};
use stepvault_local::vault::Vault;

use crate::blocking::blocking;
use crate::outage::is_outage;
use crate::tier::leases::{RenewedRecord, written_at};
use crate::tier::run_remote::RunRemote;

/// How long a killed job keeps the next one out.
pub const TIME_TO_LIVE: Duration = Duration::from_mins(2);
/// How often the lease is rewritten.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(40);

/// What a job needs an exclusive run for. Jobs exclude those with the same purpose: one that has ended may upload while
/// the next one trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To start a trainer.
    Train,
    /// To upload steps.
    Upload,
}

/// The exclusive right to write a run on one remote: renewed in the background until released or dropped.
#[derive(Debug)]
pub struct ExclusiveRun(RenewedRecord);

impl ExclusiveRun {
    /// Takes the lease for the job of `writer`, whose steps are sealed in `vault`. Nodes of one job share the lease,
    /// and a job that restarts over the same vault still has it.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] while another job has it. This is transient, as the lease of a killed job expires.
    pub async fn take(remote: &RunRemote, vault: &Vault, writer: &Writer, purpose: Purpose) -> Result<Self> {
        let holder = vault.clone();
        let holder = blocking(move || holder.holder()).await?;
        let trains = purpose == Purpose::Train;
        let key = remote.keys.writer_lease(&if trains { of_trainer(&holder) } else { holder.clone() });
        let lease = WriterLease {
            format: FORMAT,
            run: remote.keys.run().clone(),
            launch: writer.launch.clone(),
            nodes: writer.place.nodes().clone(),
            trains,
            vault: holder,
            time_to_live_seconds: TIME_TO_LIVE.as_secs(),
        };
        // Written before other leases are read: of two jobs that start at once, each sees the other, and both wait for
        // a while.
        let record = RenewedRecord::write(remote, key.clone(), lease.clone(), RENEWAL_INTERVAL).await?;
        let other = match other_holder(remote, &key, &lease).await {
            Ok(None) => return Ok(Self(record)),
            Ok(Some(other)) => held_by(remote, &other, purpose),
            Err(error) => error,
        };
        // If that fails, it expires.
        let _ = record.release().await;
        Err(other)
    }

    /// Whether no other job can have taken it meanwhile. A lease that was not renewed in time has to be taken again.
    pub fn is_current(&self) -> bool {
        self.0.age() < TIME_TO_LIVE
    }

    /// Releases the lease. If that fails, it expires.
    pub async fn release(self) {
        let _ = self.0.release().await;
    }
}

/// Returns the identity under which a vault holds the lease of its trainer, beside that of its uploads.
fn of_trainer(holder: &str) -> String {
    let mut digits = Sha256Digest::of(format!("trainer {holder}").as_bytes()).to_string();
    digits.truncate(holder.len());
    digits
}

/// Returns another job that holds the run, if there is one.
async fn other_holder(remote: &RunRemote, own_key: &str, own: &WriterLease) -> Result<Option<WriterLease>> {
    let objects = remote.list(&remote.keys.all(WRITER_LEASES)).await?;
    // The time at which the store wrote the lease is the current time.
    let now = match objects.iter().find(|object| object.key == own_key) {
        Some(own) => own.modified,
        None => written_at(remote, own_key).await?,
    };
    for object in objects {
        let is_lease = matches!(remote.keys.classify(&object.key), Some(KeyKind::WriterLease(_)));
        if object.key == own_key || !is_lease {
            continue;
        }
        let lease = match remote.read_confirmed::<WriterLease>(&object.key).await {
            Ok(Some(lease)) => lease,
            // Released since the listing.
            Ok(None) => continue,
            Err(error) if is_outage(&error) => return Err(error),
            // Its holder is unknown; it expires like any other.
            Err(_) => WriterLease {
                launch: None,
                trains: own.trains,
                vault: String::new(),
                time_to_live_seconds: TIME_TO_LIVE.as_secs(),
                ..own.clone()
            },
        };
        let age = now.duration_since(object.modified).unwrap_or_default();
        let excludes = lease.trains == own.trains && !lease.is_of_same_job(own);
        if age.as_secs() < lease.time_to_live_seconds && excludes {
            return Ok(Some(lease));
        }
    }
    Ok(None)
}

fn held_by(remote: &RunRemote, other: &WriterLease, purpose: Purpose) -> Error {
    let launch = other.launch.as_ref().map_or_else(String::new, |launch| format!(" in launch '{launch}'"));
    let what = match purpose {
        Purpose::Train => "cannot train: another training job writes the run",
        Purpose::Upload => "cannot upload: another training job writes the run",
    };
    Error::new(ErrorKind::Held, what)
        .on(format!("'{}' on {}", remote.keys.run(), remote.name()))
        .because(format!(
            "the job of {}{launch} holds its writer lease, and the run is exclusive",
            other.nodes
        ))
        .hint(format!(
            "end that job, or give this one its own run name; the lease of a killed job expires within {} s",
            TIME_TO_LIVE.as_secs()
        ))
        .transient()
}

#[cfg(test)]
mod tests {
    use stepvault_core::ids::NodeName;
    use stepvault_core::launch::LaunchName;

    use super::*;
    use crate::test_remote::in_directory;

    fn writer(node: &str, launch: Option<&str>) -> Writer {
        Writer {
            launch: launch.map(|name| LaunchName::new(name).unwrap()),
            ..Writer::single_node(NodeName::new(node).unwrap())
        }
    }

    #[tokio::test]
    async fn one_job_has_the_run_and_the_next_waits_until_it_is_given_back() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("remote")).unwrap();
        let remote = in_directory(&place.path().join("remote")).await;
        let vault = |name: &str| Vault::open_or_create(&place.path().join(name)).unwrap();
        let take = async |name: &str, node: &str, launch: &str, purpose| {
            ExclusiveRun::take(&remote, &vault(name), &writer(node, Some(launch)), purpose).await
        };
        let first = take("a", "n0", "job-a", Purpose::Upload).await.unwrap();
        assert!(first.is_current());
        let error = take("b", "n1", "job-b", Purpose::Upload).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held);
        assert!(error.is_transient() && error.to_string().contains("launch 'job-a'"), "{error}");
        // Another node of the same job, and the same job restarted over the same vault.
        let second = take("c", "n2", "job-a", Purpose::Upload).await.unwrap();
        drop(first);
        let again = take("a", "n0", "job-a:1", Purpose::Upload).await.unwrap_err();
        // The job's other node still holds the run for the previous launch.
        assert_eq!(again.kind(), ErrorKind::Held);
        second.release().await;
        let last = take("b", "n1", "job-b", Purpose::Upload).await;
        assert!(last.is_ok());
        // One trains while the one before it still uploads.
        let _trains = take("c", "n2", "job-c", Purpose::Train).await.unwrap();
        let error = take("a", "n0", "job-a", Purpose::Train).await.unwrap_err();
        assert!(error.to_string().contains("cannot train"), "{error}");
        assert!(take("c", "n2", "job-d", Purpose::Train).await.is_ok(), "the same vault");
    }
}
