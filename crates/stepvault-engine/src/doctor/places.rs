//! Checks one directory and its filesystem.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::disk_facts::{DirectoryFacts, MountFacts};
use stepvault_core::room::Room;
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::directory::{Place, directory, filesystem, no_answer};
use stepvault_local::probe;
use stepvault_local::probe::mounts::Mounts;
use stepvault_local::space::{self, Disk};
use tokio::sync::oneshot;

/// A directory that was checked.
#[derive(Debug)]
pub(super) struct LookedAt {
    pub(super) place: Place,
    pub(super) path: PathBuf,
    /// `None` if its filesystem does not answer.
    facts: Option<Facts>,
    /// The mount according to the path's text alone.
    named_mount: Option<MountFacts>,
}

#[derive(Debug)]
struct Facts {
    directory: DirectoryFacts,
    mount: Option<MountFacts>,
    disk: Option<Disk>,
    quota: Option<Room>,
}

/// Checks one directory within the time limit of one check.
pub(super) async fn look_at(place: Place, path: PathBuf, mounts: Arc<Mounts>) -> LookedAt {
    let named_mount = mounts.by_name(&path).cloned();
    let looked_at = path.clone();
    let facts = bounded(ONE_LOOK, move || {
        let mount = mounts.of(&looked_at).cloned();
        Facts {
            disk: space::disk(&looked_at).ok(),
            quota: mount.as_ref().and_then(probe::quota::quota),
            mount,
            directory: probe::directory::directory(&looked_at),
        }
    })
    .await;
    LookedAt { place, path, facts, named_mount }
}

impl LookedAt {
    /// Returns the findings, the directory's first.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let Some(facts) = &self.facts else {
            let mount = self.named_mount.as_ref().map(MountFacts::words);
            return vec![no_answer(&self.place, ONE_LOOK.as_secs(), mount.as_deref())];
        };
        vec![directory(&self.place, &facts.directory), filesystem(&self.place, facts.mount.as_ref())]
    }

    /// Returns its path if its filesystem answers.
    pub(super) fn answering(&self) -> Option<&PathBuf> {
        self.facts.as_ref().map(|_| &self.path)
    }

    /// Whether it can be written to.
    pub(super) fn works(&self) -> bool {
        let facts = self.facts.as_ref();
        facts.is_some_and(|facts| facts.directory.failed.is_none())
    }

    pub(super) fn disk(&self) -> Option<Disk> {
        self.facts.as_ref()?.disk
    }

    pub(super) fn device(&self) -> Option<u64> {
        self.disk().map(|disk| disk.device)
    }

    pub(super) fn quota(&self) -> Option<Room> {
        self.facts.as_ref()?.quota
    }

    pub(super) fn mount_point(&self) -> Option<&str> {
        let mount = self.facts.as_ref()?.mount.as_ref()?;
        Some(&mount.mount_point)
    }
}

// Runs work that may never return.

/// Time limit for one check of one directory.
pub(super) const ONE_LOOK: Duration = Duration::from_secs(10);

/// Runs `work` on its own thread; returns `None` when it has not returned in time or could not be started. The thread
/// is then abandoned and ends with the process: a call that hangs in the kernel cannot be cancelled.
pub(super) async fn bounded<T, Work>(limit: Duration, work: Work) -> Option<T>
where
    T: Send + 'static,
    Work: FnOnce() -> T + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let started = std::thread::Builder::new().name("look".to_owned()).spawn(move || {
        let _ = sender.send(work());
    });
    if let Err(error) = started {
        tracing::warn!(%error, "cannot start a thread for a check");
        return None;
    }
    tokio::time::timeout(limit, receiver).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_returns_is_handed_on() {
        assert_eq!(bounded(Duration::from_mins(1), || 5).await, Some(5));
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_return_is_not_waited_for() {
        // Ends with the test, when its sender is dropped.
        let (keep, wait) = std::sync::mpsc::channel::<()>();
        let hanging = move || wait.recv().is_ok();
        assert_eq!(bounded(ONE_LOOK, hanging).await, None);
        drop(keep);
    }
}
