//! The memory files of the control groups of this process, version 1 and 2: their limits and out-of-memory kills, and the
//! tightest limit, which may be that of the machine.

use std::path::{Path, PathBuf};

use procfs::process::{MountInfo, Process};
use procfs::{Current as _, Meminfo, ProcessCGroup};
use stepvault_core::disk_facts::MemoryFacts;

/// Maximum number of levels from a group up to the root.
const MAXIMUM_DEPTH: usize = 64;

/// File names of one control group version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) limit: &'static str,
    pub(crate) used: &'static str,
    /// Line of `memory.stat` that counts memory the kernel can reclaim at once.
    pub(crate) reclaimable: &'static str,
    /// File that counts killed processes, in a line that begins with `oom_kill `.
    pub(crate) events: &'static str,
}

pub(crate) const SECOND: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file",
    events: "memory.events",
};
pub(crate) const FIRST: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
    events: "memory.oom_control",
};
/// Version 1 reports this value, rounded down to a page, where no limit is set.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// The directory of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) directory: PathBuf,
    pub(crate) names: &'static Names,
}

impl Group {
    /// Returns the group's limit, or `None` without one.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        // "max" does not parse as a number.
        self.number(self.names.limit).filter(|bytes| *bytes < NO_LIMIT_BYTES)
    }

    /// Reads a file that holds one number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.read(name)?.trim().parse().ok()
    }

    /// Reads the number in the line of a file that begins with `name` and a space.
    pub(crate) fn line(&self, file: &str, name: &str) -> Option<u64> {
        let text = self.read(file)?;
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let (_, value) = lines.find(|(first, _)| *first == name)?;
        value.trim().parse().ok()
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.directory.join(name)).ok()
    }
}

/// Returns the groups of this process, each followed by its ancestors; empty when nothing can be read.
pub(crate) fn own_groups() -> Vec<Group> {
    let Ok(own) = Process::myself() else {
        return Vec::new();
    };
    let (Ok(mounts), Ok(groups)) = (own.mountinfo(), own.cgroups()) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for group in groups {
        let is_second = group.hierarchy == 0 && group.controllers.iter().all(String::is_empty);
        let is_first = group.controllers.iter().any(|controller| controller == "memory");
        for mount in &mounts.0 {
            let names = match mount.fs_type.as_str() {
                "cgroup2" if is_second => &SECOND,
                "cgroup" if is_first && mount.super_options.contains_key("memory") => &FIRST,
                _ => continue,
            };
            found.extend(upward(&directory(mount, &group), &mount.mount_point, names));
        }
    }
    found
}

/// Returns a group and its ancestors up to `top`.
pub(crate) fn upward(directory: &Path, top: &Path, names: &'static Names) -> Vec<Group> {
    let above = directory.ancestors().take_while(|group| group.starts_with(top));
    above.take(MAXIMUM_DEPTH).map(|group| Group { directory: group.to_owned(), names }).collect()
}

/// Returns the directory with the group's files. In a container the group's path may exist only on the host; then only
/// the container's own root is visible, and that is returned.
fn directory(mount: &MountInfo, group: &ProcessCGroup) -> PathBuf {
    let below = Path::new(&group.pathname).strip_prefix(&mount.root);
    let directory = below.map(|below| mount.mount_point.join(below));
    directory.ok().filter(|directory| directory.is_dir()).unwrap_or_else(|| mount.mount_point.clone())
}

// Counts processes that the kernel killed because a control group ran out of memory, from the group's own counters.

/// Out-of-memory kills in a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKills {
    /// The file with the counter.
    pub file: PathBuf,
    /// Number of kills since the group was created.
    pub kills: u64,
    /// The group's memory limit, if it has one.
    pub limit_bytes: Option<u64>,
}

/// Returns the kills in this process's control group, or in the nearest ancestor that has any.
pub fn oom_kills() -> Option<OomKills> {
    own_groups().iter().find_map(kills)
}

fn kills(group: &Group) -> Option<OomKills> {
    let kills = group.line(group.names.events, "oom_kill").filter(|kills| *kills > 0)?;
    Some(OomKills { file: group.directory.join(group.names.events), kills, limit_bytes: group.limit_bytes() })
}

/// Returns the limit that leaves the least memory, or `None` where nothing can be read.
pub fn memory() -> Option<MemoryFacts> {
    let groups = own_groups();
    let limits = groups.iter().filter_map(limit);
    limits.chain(machine()).min_by_key(|facts| facts.limit_bytes.saturating_sub(facts.used_bytes))
}

fn machine() -> Option<MemoryFacts> {
    let memory = Meminfo::current().ok()?;
    Some(MemoryFacts {
        source: "this machine".to_owned(),
        limit_bytes: memory.mem_total,
        used_bytes: memory.mem_total.saturating_sub(memory.mem_available?),
    })
}

fn limit(group: &Group) -> Option<MemoryFacts> {
    let limit_bytes = group.limit_bytes()?;
    let reclaimable = group.line("memory.stat", group.names.reclaimable);
    let used_bytes = group.number(group.names.used)?.saturating_sub(reclaimable.unwrap_or_default());
    Some(MemoryFacts {
        source: format!("the control group {}", group.directory.display()),
        limit_bytes,
        used_bytes,
    })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_followed_by_all_above_it() {
        let groups = upward(Path::new("/cg/pod/trainer"), Path::new("/cg"), &SECOND);
        let directories: Vec<&str> = groups.iter().filter_map(|group| group.directory.to_str()).collect();
        assert_eq!(directories, ["/cg/pod/trainer", "/cg/pod", "/cg"]);
        assert!(upward(Path::new("/elsewhere"), Path::new("/cg"), &FIRST).is_empty());
    }

    #[test]
    fn what_is_no_number_says_nothing() {
        let place = tempfile::tempdir().unwrap();
        let group = Group { directory: place.path().to_owned(), names: &FIRST };
        let write = |name: &str, text: &str| std::fs::write(place.path().join(name), text).unwrap();
        assert_eq!((group.limit_bytes(), group.line(FIRST.events, "oom_kill")), (None, None));
        write(FIRST.limit, "9223372036854771712\n");
        write(FIRST.events, "oom_kill many\nunder_oom\n");
        assert_eq!((group.limit_bytes(), group.line(FIRST.events, "oom_kill")), (None, None));
        write(FIRST.limit, "4096\n");
        write(FIRST.events, "oom_kill_disable 0\noom_kill 3\n");
        assert_eq!((group.limit_bytes(), group.line(FIRST.events, "oom_kill")), (Some(4096), Some(3)));
    }

    #[test]
    fn the_nearest_group_with_kills_counts() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("job/trainer");
        std::fs::create_dir_all(&own).unwrap();
        let events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 0\n";
        std::fs::write(own.join("memory.events"), events).unwrap();
        let second = || upward(&own, place.path(), &SECOND).iter().find_map(kills);
        assert_eq!(second(), None);
        let events = "oom 2\noom_kill 3\noom_group_kill 0\n";
        std::fs::write(place.path().join("job/memory.events"), events).unwrap();
        std::fs::write(place.path().join("job/memory.max"), "1073741824\n").unwrap();
        let found = second().unwrap();
        assert_eq!((found.kills, found.limit_bytes), (3, Some(1 << 30)));
        assert!(found.file.ends_with("job/memory.events"));

        let events = "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n";
        std::fs::write(own.join("memory.oom_control"), events).unwrap();
        let first = upward(&own, place.path(), &FIRST).iter().find_map(kills).unwrap();
        assert_eq!((first.kills, first.limit_bytes), (1, None));
    }

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
        let limits = |names| -> Vec<MemoryFacts> {
            upward(&inner, place.path(), names).iter().filter_map(limit).collect()
        };
        let found = limits(&SECOND);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].limit_bytes, found[0].used_bytes), (1000, 150));
        write("pod/trainer/memory.limit_in_bytes", "9223372036854771712\n");
        write("pod/trainer/memory.usage_in_bytes", "1\n");
        assert!(limits(&FIRST).is_empty());
    }

    #[test]
    fn the_machine_itself_has_a_limit() {
        let facts = memory().unwrap();
        assert!(facts.limit_bytes > 0, "{facts:?}");
    }
}
