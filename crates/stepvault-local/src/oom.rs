//! Counts processes that the kernel killed because a control group ran out of memory, from the group's own counters.

use std::path::PathBuf;

use crate::cgroup::{Group, own_groups};

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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;
    use crate::cgroup::{FIRST, SECOND, upward};
    use std::fs;

    #[test]
    fn the_nearest_group_with_kills_counts() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("job/trainer");
        fs::create_dir_all(&own).unwrap();
        let events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 0\n";
        fs::write(own.join("memory.events"), events).unwrap();
        let second = || upward(&own, place.path(), &SECOND).iter().find_map(kills);
        assert_eq!(second(), None);
        let events = "oom 2\noom_kill 3\noom_group_kill 0\n";
        fs::write(place.path().join("job/memory.events"), events).unwrap();
        fs::write(place.path().join("job/memory.max"), "1073741824\n").unwrap();
        let found = second().unwrap();
        assert_eq!((found.kills, found.limit_bytes), (3, Some(1 << 30)));
        assert!(found.file.ends_with("job/memory.events"));

        let events = "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n";
        fs::write(own.join("memory.oom_control"), events).unwrap();
        let first = upward(&own, place.path(), &FIRST).iter().find_map(kills).unwrap();
        assert_eq!((first.kills, first.limit_bytes), (1, None));
    }
}
