//! Finds the mount and filesystem type of a directory.

use std::path::{Path, PathBuf};

use procfs::process::{MountInfo, Process};
use stepvault_core::disk_facts::MountFacts;

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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
}
