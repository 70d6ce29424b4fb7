//! Checks one directory and its filesystem, and the space of all directories on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::disk_facts::{DirectoryFacts, MountFacts};
use stepvault_core::room::Room;
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::directory::{Place, directory, filesystem, no_answer};
use stepvault_diagnose::doctor::forecast::Forecast;
use stepvault_diagnose::doctor::links::SealMethod;
use stepvault_diagnose::doctor::room::{Demand, Limit, RECORDS_OF_A_STEP, room, temporary};
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
            quota: mount.as_ref().and_then(probe::mounts::quota),
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

/// The purpose of a directory, for space calculations.
#[derive(Debug, Clone)]
pub(super) enum Use<'a> {
    /// The trainer writes steps of this forecast.
    Checkpoints(Option<&'a Forecast>),
    /// Steps of this forecast are sealed here.
    Vault(Option<&'a Forecast>, SealMethod),
    /// Frameworks may write a step of this size here before moving it to its directory.
    Temporary(Option<&'a Forecast>),
}

/// One use of one filesystem.
#[derive(Debug, Clone)]
pub(super) struct Used<'a> {
    pub(super) looked: &'a LookedAt,
    pub(super) disk: Disk,
    pub(super) by: Use<'a>,
}

/// Returns findings for each filesystem that any of them is on.
pub(super) fn rooms(uses: &[Used<'_>]) -> Vec<Finding> {
    let mut devices: Vec<u64> = Vec::new();
    for used in uses {
        if !devices.contains(&used.disk.device) {
            devices.push(used.disk.device);
        }
    }
    let sharing = |device| uses.iter().filter(move |used| used.disk.device == device).collect::<Vec<_>>();
    devices.into_iter().flat_map(|device| of_filesystem(&sharing(device))).collect()
}

/// Returns the subject of findings on a filesystem: the roles of the directories on it, and its mount point.
pub(super) fn subject_of<'a>(roles: impl Iterator<Item = &'a str>, mount_point: Option<&str>) -> String {
    let mut roles: Vec<&str> = roles.collect();
    roles.dedup();
    let on = mount_point.map(|point| format!(" on {point}")).unwrap_or_default();
    format!("{}{on}", roles.join(", "))
}

fn of_filesystem(sharing: &[&Used<'_>]) -> Vec<Finding> {
    let Some(first) = sharing.first() else {
        return Vec::new();
    };
    let roles = sharing.iter().map(|used| used.looked.place.role.as_str());
    let subject = subject_of(roles, first.looked.mount_point());
    let room_of_disk = &first.disk.room;
    let only_temporary = sharing.iter().all(|used| matches!(used.by, Use::Temporary(_)));
    if only_temporary {
        let forecasts = sharing.iter().filter_map(|used| match used.by {
            Use::Temporary(forecast) => forecast,
            _ => None,
        });
        let largest = forecasts.max_by_key(|forecast| forecast.taken.bytes);
        return vec![temporary(&subject, room_of_disk, largest)];
    }
    let demand = demand(sharing);
    let mut findings = room(&subject, &Limit::FILESYSTEM, room_of_disk, demand.as_ref());
    if let Some(quota) = first.looked.quota() {
        findings.extend(room(&subject, &Limit::QUOTA, &quota, demand.as_ref()));
    }
    findings
}

fn demand(sharing: &[&Used<'_>]) -> Option<Demand> {
    let mut demand: Option<Demand> = None;
    for used in sharing {
        let (Use::Checkpoints(Some(forecast)) | Use::Vault(Some(forecast), _)) = used.by else {
            continue;
        };
        let taken = forecast.taken;
        let directories = taken.directories + RECORDS_OF_A_STEP;
        let (bytes, inodes) = match used.by {
            Use::Vault(_, SealMethod::Copy) => (taken.bytes, taken.files + directories),
            Use::Vault(_, SealMethod::Reflink) => (0, taken.files + directories),
            Use::Vault(_, SealMethod::HardLink) => (0, directories),
            Use::Checkpoints(_) | Use::Temporary(_) => (taken.bytes, taken.inodes()),
        };
        let sum =
            demand.get_or_insert_with(|| Demand { bytes: 0, inodes: 0, source: forecast.source.clone() });
        sum.bytes = sum.bytes.saturating_add(bytes);
        sum.inodes = sum.inodes.saturating_add(inodes);
    }
    demand
}

#[cfg(test)]
mod tests {
    use stepvault_core::disk_facts::Presence;
    use stepvault_core::forecast::Taken;
    use stepvault_diagnose::doctor::directory::Maker;

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

    fn forecast() -> Forecast {
        Forecast {
            taken: Taken { bytes: 1000, files: 8, directories: 2 },
            interval_seconds: None,
            interval_steps: None,
            source: "the newest 3 steps in the vault".to_owned(),
        }
    }

    /// A directory of this role.
    fn looked_at(role: &str) -> LookedAt {
        let directory = DirectoryFacts { presence: Presence::There, failed: None, link_refused: None };
        let mount = MountFacts {
            kind: "ext4".to_owned(),
            source: "/dev/nvme0n1".to_owned(),
            mount_point: "/nvme".to_owned(),
            read_only: false,
        };
        LookedAt {
            place: Place { role: role.to_owned(), path: "/nvme/x".to_owned(), maker: Maker::Trainer },
            path: PathBuf::from("/nvme/x"),
            facts: Some(Facts { directory, mount: Some(mount), disk: None, quota: None }),
            named_mount: None,
        }
    }

    fn used<'a>(device: u64, looked: &'a LookedAt, by: Use<'a>) -> Used<'a> {
        let room = Room {
            free_bytes: 10_000,
            total_bytes: 20_000,
            free_inodes: Some(100),
            total_inodes: Some(1000),
        };
        Used { looked, disk: Disk { device, room }, by }
    }

    #[test]
    fn what_shares_a_filesystem_shares_its_room() {
        let forecast = forecast();
        let [checkpoints, vault, temporary] = ["checkpoints", "vault", "TMPDIR"].map(looked_at);
        let uses = [
            used(1, &checkpoints, Use::Checkpoints(Some(&forecast))),
            used(1, &vault, Use::Vault(Some(&forecast), SealMethod::HardLink)),
            used(2, &temporary, Use::Temporary(Some(&forecast))),
        ];
        let sharing: Vec<&Used<'_>> = uses.iter().take(2).collect();
        let both = demand(&sharing).unwrap();
        assert_eq!((both.bytes, both.inodes), (1000, 24));
        let found = rooms(&uses);
        let subjects: Vec<&str> = found.iter().map(|finding| finding.subject.as_str()).collect();
        assert_eq!(
            subjects,
            ["checkpoints, vault on /nvme", "checkpoints, vault on /nvme", "TMPDIR on /nvme"]
        );
        let copied = used(1, &vault, Use::Vault(Some(&forecast), SealMethod::Copy));
        let copied = demand(&[&uses[0], &copied]).unwrap();
        assert_eq!((copied.bytes, copied.inodes), (2000, 32));
        assert_eq!(demand(&[&used(1, &vault, Use::Vault(None, SealMethod::Copy))]), None);
    }
}
