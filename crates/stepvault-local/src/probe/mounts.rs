//! Finds the mount and filesystem type of a directory, and the remaining quota on it.

use std::path::{Path, PathBuf};

use nix::sys::quota::{Dqblk, QuotaType, quotactl_get};
use procfs::process::{MountInfo, Process};
use stepvault_core::disk_facts::{MountFacts, Nature};
use stepvault_core::room::Room;

use crate::space;

/// The mounts visible to this process. Queries do not access the mounts.
#[derive(Debug, Clone, Default)]
pub struct Mounts {
    list: Vec<Mount>,
}

#[derive(Debug, Clone)]
struct Mount {
    number: u64,
    point: PathBuf,
    /// Whether only this mount of the filesystem is read-only.
    hides_writable: bool,
    facts: MountFacts,
}

impl Mounts {
    /// Reads the mounts; empty where the kernel does not report them.
    pub fn read() -> Self {
        let read = Process::myself().and_then(|own| own.mountinfo());
        let list = match read {
            Ok(list) => list.into_iter().map(mount).collect(),
            Err(error) => {
                tracing::debug!(%error, "cannot read the mounts");
                Vec::new()
            }
        };
        Self { list }
    }

    /// Returns the mount that `path` is on, or will be. Accesses the path, which blocks where the mount is dead.
    pub fn of(&self, path: &Path) -> Option<&MountFacts> {
        self.numbered(path).map(|mount| &mount.facts).or_else(|| self.by_name(path))
    }

    /// Returns whether the filesystem of `path` is writable and its mount is read-only, as the sandbox of a service or of
    /// a container makes it: after a disk error the filesystem itself is. Accesses the path like [`Self::of`].
    pub fn hide_writable(&self, path: &Path) -> bool {
        self.numbered(path).is_some_and(|mount| mount.hides_writable)
    }

    fn numbered(&self, path: &Path) -> Option<&Mount> {
        let number = space::mount(path).ok().flatten();
        self.list.iter().find(|mount| Some(mount.number) == number)
    }

    /// Like [`Self::of`], by the text of the path alone: never blocks, and ignores links.
    pub fn by_name(&self, path: &Path) -> Option<&MountFacts> {
        let holding = self.list.iter().filter(|mount| path.starts_with(&mount.point));
        // Of several mounts on one point, the last covers the others.
        let innermost = holding.max_by_key(|mount| mount.point.components().count());
        innermost.map(|mount| &mount.facts)
    }
}

/// Mount options that mean that nothing can be written. Since Linux 6.16, ext4 shows `emergency_ro`, beside `rw`, after
/// an error (`errors=remount-ro`). No flag of `statvfs` reports this.
const READ_ONLY: [&str; 2] = ["ro", "emergency_ro"];

fn mount(info: MountInfo) -> Mount {
    let has = |name: &&str| info.mount_options.contains_key(*name) || info.super_options.contains_key(*name);
    Mount {
        number: u64::try_from(info.mnt_id).unwrap_or_default(),
        hides_writable: info.mount_options.contains_key("ro")
            && !READ_ONLY.iter().any(|name| info.super_options.contains_key(*name)),
        facts: MountFacts {
            read_only: READ_ONLY.iter().any(has),
            kind: info.fs_type,
            source: info.mount_source.unwrap_or_else(|| "none".to_owned()),
            mount_point: info.mount_point.display().to_string(),
        },
        point: info.mount_point,
    }
}

/// Disks that are emptied when their machine stops, by the names that their controllers give: Amazon's instance stores, Google's
/// local SSDs and Azure's temporary disks, each as the clouds' own udev rules recognise them.
const INSTANCE_STORES: [&str; 4] = [
    "Amazon EC2 NVMe Instance Storage",
    "nvme_card",
    "Microsoft NVMe Direct Disk",
    "Microsoft NVMe Direct Disk v2",
];
const BLOCKS: &str = "/sys/class/block";
/// Arrays and volumes above one another.
const DEEPEST_BLOCK: usize = 4;

/// Returns what a filesystem is on, in words, if it is known to be lost with its machine.
pub fn lost_with_machine(mount: &MountFacts) -> Option<&'static str> {
    if mount.nature() == Nature::Memory {
        return Some("in memory");
    }
    let device = Path::new(&mount.source).canonicalize().ok()?;
    let name = device.strip_prefix("/dev").ok()?.file_name()?;
    is_instance_store(&Path::new(BLOCKS).join(name), DEEPEST_BLOCK).then_some("on an instance store")
}

/// An array is an instance store if all its disks are.
fn is_instance_store(block: &Path, depth: usize) -> bool {
    let Ok(block) = block.canonicalize() else { return false };
    let below = std::fs::read_dir(block.join("slaves")).into_iter().flatten().flatten();
    let below: Vec<_> = below.map(|entry| entry.path()).collect();
    if !below.is_empty() {
        return depth > 0 && below.iter().all(|disk| is_instance_store(disk, depth - 1));
    }
    // A partition is a directory of its disk.
    let disks = [Some(block.as_path()), block.parent()].into_iter().flatten();
    let mut models = disks.filter_map(|disk| std::fs::read_to_string(disk.join("device/model")).ok());
    models.next().is_some_and(|model| INSTANCE_STORES.contains(&model.trim()))
}

/// Unit in which the kernel counts limits.
const BLOCK_BYTES: u64 = 1024;

/// Returns what is left of the tightest quota of this user and group, or `None` where there is none or it may not be
/// read.
///
/// Quotas of users and groups are read from the kernel by block device. Project quotas need no query, since XFS and
/// ext4 include them in their free space. NFS keeps its quotas on the server and is not queried: there a full quota
/// shows only when something is written.
pub fn quota(mount: &MountFacts) -> Option<Room> {
    let device = Path::new(&mount.source);
    // The kernel does not apply quotas to the superuser.
    if !device.starts_with("/dev") || rustix::process::geteuid().is_root() {
        return None;
    }
    let of = |kind, number: u32| {
        let limits = quotactl_get(kind, device, i32::try_from(number).ok()?);
        limits
            .inspect_err(|error| tracing::debug!(%error, device = %device.display(), "cannot read the quota"))
            .ok()
            .and_then(|limits| room(&limits))
    };
    let user = of(QuotaType::USRQUOTA, rustix::process::geteuid().as_raw());
    let group = of(QuotaType::GRPQUOTA, rustix::process::getegid().as_raw());
    [user, group].into_iter().flatten().min_by_key(|room| room.free_bytes)
}

/// A limit of 0 means no limit.
fn room(limits: &Dqblk) -> Option<Room> {
    let total_bytes = limits
        .blocks_hard_limit()
        .filter(|blocks| *blocks > 0)
        .map(|blocks| blocks.saturating_mul(BLOCK_BYTES));
    let total_inodes = limits.inodes_hard_limit().filter(|inodes| *inodes > 0);
    if total_bytes.is_none() && total_inodes.is_none() {
        return None;
    }
    let total_bytes = total_bytes.unwrap_or(u64::MAX);
    let used_inodes = limits.allocated_inodes().unwrap_or_default();
    Some(Room {
        free_bytes: total_bytes.saturating_sub(limits.occupied_space().unwrap_or_default()),
        total_bytes,
        free_inodes: total_inodes.map(|total| total.saturating_sub(used_inodes)),
        total_inodes,
    })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_a_path_is_found_both_ways() {
        let mounts = Mounts::read();
        let proc = mounts.of(Path::new("/proc/self")).unwrap();
        assert_eq!((proc.kind.as_str(), proc.mount_point.as_str()), ("proc", "/proc"));
        assert_eq!(mounts.by_name(Path::new("/proc/self/fd")), Some(proc));
        let root = mounts.by_name(Path::new("/procession")).unwrap();
        assert_eq!(root.mount_point, "/");
        assert!(Mounts::default().of(Path::new("/")).is_none());
    }

    #[test]
    fn a_limit_of_nothing_is_none() {
        let mut limits = Dqblk::default();
        assert_eq!(room(&limits), None);
        limits.set_blocks_hard_limit(10);
        // Values that the kernel has not marked as valid do not count.
        assert_eq!(room(&limits), None);
    }

    #[test]
    fn what_is_on_no_device_has_none() {
        let mount = MountFacts {
            kind: "tmpfs".to_owned(),
            source: "tmpfs".to_owned(),
            mount_point: "/".to_owned(),
            read_only: false,
        };
        assert_eq!(quota(&mount), None);
    }

    #[test]
    fn an_instance_store_is_known_by_its_model_and_an_array_by_its_disks() {
        let place = tempfile::tempdir().unwrap();
        let disk = |name: &str, model: &str| {
            let block = place.path().join(name);
            std::fs::create_dir_all(block.join("device")).unwrap();
            std::fs::create_dir_all(block.join(format!("{name}p1"))).unwrap();
            std::fs::write(block.join("device/model"), format!("{model}\n")).unwrap();
            block
        };
        let array = |name: &str, disks: &[&Path]| {
            let slaves = place.path().join(name).join("slaves");
            std::fs::create_dir_all(&slaves).unwrap();
            for disk in disks {
                std::os::unix::fs::symlink(disk, slaves.join(disk.file_name().unwrap())).unwrap();
            }
            place.path().join(name)
        };
        let store = disk("nvme1n1", "Amazon EC2 NVMe Instance Storage");
        let local = disk("nvme0n1", "nvme_card");
        let durable = disk("nvme2n1", "Amazon Elastic Block Store");
        let is_store = |block: &Path| is_instance_store(block, DEEPEST_BLOCK);
        assert!(is_store(&store) && is_store(&local) && is_store(&store.join("nvme1n1p1")));
        assert!(!is_store(&durable) && !is_store(&durable.join("nvme2n1p1")));
        assert!(!is_store(&disk("nvme3n1", "nvme_card-pd")) && !is_store(&place.path().join("sdz")));
        assert!(is_store(&array("md0", &[&store, &local])));
        assert!(!is_store(&array("md1", &[&store, &durable])));
        let ring = array("md2", &[]);
        std::os::unix::fs::symlink(&ring, ring.join("slaves/md2")).unwrap();
        assert!(!is_store(&ring));
    }
}
