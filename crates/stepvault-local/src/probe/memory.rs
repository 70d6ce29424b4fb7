//! The tightest memory limit on this process: its control groups, of either version, and the machine.

use std::path::{Path, PathBuf};

use procfs::process::{MountInfo, Process};
use procfs::{Current as _, Meminfo, ProcessCGroup};
use stepvault_core::doctor::memory::MemoryFacts;

/// Where one version of control groups keeps what.
struct Names {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with what the kernel can give up at once.
    reclaimable: &'static str,
}

const SECOND: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file",
};
const FIRST: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
/// The first version says so where there is no limit, rounded down to a page.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// The limit that leaves the least; `None` where nothing can be read.
pub fn memory() -> Option<MemoryFacts> {
    let groups = groups().into_iter().flatten();
    groups
        .chain(machine())
        .min_by_key(|facts| facts.limit_bytes.saturating_sub(facts.used_bytes))
}

fn machine() -> Option<MemoryFacts> {
    let memory = Meminfo::current().ok()?;
    Some(MemoryFacts {
        source: "this machine".to_owned(),
        limit_bytes: memory.mem_total,
        used_bytes: memory.mem_total.saturating_sub(memory.mem_available?),
    })
}

/// The limits of the groups that this process is in, and of all above them.
fn groups() -> Option<Vec<MemoryFacts>> {
    let own = Process::myself().ok()?;
    let mounts = own.mountinfo().ok()?;
    let mut found = Vec::new();
    for group in own.cgroups().ok()? {
        let is_second = group.hierarchy == 0 && group.controllers.iter().all(String::is_empty);
        let is_first = group.controllers.iter().any(|controller| controller == "memory");
        for mount in &mounts.0 {
            let names = match mount.fs_type.as_str() {
                "cgroup2" if is_second => &SECOND,
                "cgroup" if is_first && mount.super_options.contains_key("memory") => &FIRST,
                _ => continue,
            };
            found.extend(limits(&directory(mount, &group), &mount.mount_point, names));
        }
    }
    Some(found)
}

/// Where the group's files are. In a container its path may be one that only the host knows: its own root is then all
/// that can be seen.
fn directory(mount: &MountInfo, group: &ProcessCGroup) -> PathBuf {
    let below = Path::new(&group.pathname).strip_prefix(&mount.root);
    let directory = below.map(|below| mount.mount_point.join(below));
    directory
        .ok()
        .filter(|directory| directory.is_dir())
        .unwrap_or_else(|| mount.mount_point.clone())
}

fn limits(group: &Path, top: &Path, names: &Names) -> Vec<MemoryFacts> {
    let above = group
        .ancestors()
        .take_while(|directory| directory.starts_with(top));
    above.filter_map(|directory| limit(directory, names)).collect()
}

fn limit(directory: &Path, names: &Names) -> Option<MemoryFacts> {
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(directory.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    // "max" is no number.
    let limit_bytes = number(names.limit).filter(|bytes| *bytes < NO_LIMIT_BYTES)?;
    let reclaimable = std::fs::read_to_string(directory.join("memory.stat"))
        .ok()
        .and_then(|text| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines
                .find(|(name, _)| *name == names.reclaimable)?
                .1
                .parse::<u64>()
                .ok()
        });
    let used_bytes = number(names.used)?.saturating_sub(reclaimable.unwrap_or_default());
    Some(MemoryFacts {
        source: format!("the control group {}", directory.display()),
        limit_bytes,
        used_bytes,
    })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_group_up_to_the_top_counts() {
        let place = tempfile::tempdir().unwrap();
        let inner = place.path().join("pod/trainer");
        std::fs::create_dir_all(&inner).unwrap();
        let write = |path: &str, text: &str| std::fs::write(place.path().join(path), text).unwrap();
        write("pod/trainer/memory.max", "max\n");
        write("pod/trainer/memory.current", "70\n");
        write("pod/memory.max", "1000\n");
        write("pod/memory.current", "400\n");
        write("pod/memory.stat", "anon 100\ninactive_file 250\n");
        let found = limits(&inner, place.path(), &SECOND);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].limit_bytes, found[0].used_bytes), (1000, 150));
        write("pod/trainer/memory.limit_in_bytes", "9223372036854771712\n");
        write("pod/trainer/memory.usage_in_bytes", "1\n");
        assert!(limits(&inner, place.path(), &FIRST).is_empty());
    }

    #[test]
    fn the_machine_itself_has_a_limit() {
        let facts = memory().unwrap();
        assert!(facts.limit_bytes > 0, "{facts:?}");
    }
}
