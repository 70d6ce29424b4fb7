//! Which mount a directory is on, and of what kind.

use std::path::{Path, PathBuf};

use procfs::process::{MountInfo, Process};
use stepvault_core::doctor::mount::MountFacts;

use crate::space;

/// The mounts that this process sees. Asking touches none of them.
#[derive(Debug, Clone, Default)]
pub struct Mounts {
    list: Vec<Mount>,
}

#[derive(Debug, Clone)]
struct Mount {
    number: u64,
    point: PathBuf,
    facts: MountFacts,
}

impl Mounts {
    /// Reads them; none where the kernel does not tell.
    pub fn read() -> Self {
        let read = Process::myself().and_then(|own| own.mountinfo());
        let list = match read {
            Ok(list) => list.into_iter().map(mount).collect(),
            Err(error) => {
                tracing::debug!(%error, "the mounts cannot be read");
                Vec::new()
            }
        };
        Self { list }
    }

    /// The mount that `path` is on, or will be. It asks the path itself, which blocks where the mount is dead.
    pub fn of(&self, path: &Path) -> Option<&MountFacts> {
        let number = space::mount(path).ok().flatten();
        let numbered = self.list.iter().find(|mount| Some(mount.number) == number);
        numbered.map(|mount| &mount.facts).or_else(|| self.by_name(path))
    }

    /// The same by the path's text alone, which never blocks and does not know of links.
    pub fn by_name(&self, path: &Path) -> Option<&MountFacts> {
        let holding = self.list.iter().filter(|mount| path.starts_with(&mount.point));
        // Of several on one point the last was mounted over the others.
        let innermost = holding.max_by_key(|mount| mount.point.components().count());
        innermost.map(|mount| &mount.facts)
    }
}

/// What a mount's options say when nothing can be written: `emergency_ro` is how ext4 shows since Linux 6.16 that it met
/// an error (`errors=remount-ro`), and it says `rw` beside it. No flag of `statvfs` tells of that.
const READ_ONLY: [&str; 2] = ["ro", "emergency_ro"];

fn mount(info: MountInfo) -> Mount {
    let has = |name: &&str| info.mount_options.contains_key(*name) || info.super_options.contains_key(*name);
    Mount {
        number: u64::try_from(info.mnt_id).unwrap_or_default(),
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
