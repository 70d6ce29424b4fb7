//! Processes that the kernel killed because a cgroup's memory was out, as the cgroup counts them.

use std::path::{Path, PathBuf};

/// Longest way from a cgroup up to the root.
const MAXIMUM_DEPTH: usize = 64;

/// Kills in a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKills {
    /// The file that counts them.
    pub file: PathBuf,
    /// How many there were since the cgroup was made.
    pub kills: u64,
    /// The cgroup's limit, if it has one.
    pub limit_bytes: Option<u64>,
}

/// The kills in this process's cgroup, or in the nearest one above that has any.
pub fn oom_kills() -> Option<OomKills> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    found_in(&own, Path::new("/sys/fs/cgroup"))
}

/// `own` is what `/proc/self/cgroup` says, `root` where the hierarchies are mounted.
fn found_in(own: &str, root: &Path) -> Option<OomKills> {
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let path = path.trim_start_matches('/');
        let found = if controllers.is_empty() {
            upward(root, path, "memory.events", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            // In a container the path is the host's, and the hierarchy begins at the container's own.
            upward(
                &root.join("memory"),
                path,
                "memory.oom_control",
                "memory.limit_in_bytes",
            )
        } else {
            None
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

fn upward(root: &Path, path: &str, events: &str, limit: &str) -> Option<OomKills> {
    let own = root.join(path);
    let places = own.ancestors().take_while(|place| place.starts_with(root));
    places.take(MAXIMUM_DEPTH).find_map(|place| {
        let file = place.join(events);
        let kills = counted(&std::fs::read_to_string(&file).ok()?)?;
        let limit_bytes = std::fs::read_to_string(place.join(limit)).ok();
        (kills > 0).then_some(OomKills {
            file,
            kills,
            limit_bytes: limit_bytes.and_then(|text| text.trim().parse().ok()),
        })
    })
}

fn counted(text: &str) -> Option<u64> {
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    count.trim().parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn both_versions_are_read_from_the_own_cgroup_upward() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("job/trainer");
        fs::create_dir_all(&own).unwrap();
        fs::write(
            own.join("memory.events"),
            "low 0\nhigh 0\nmax 7\noom 2\noom_kill 0\n",
        )
        .unwrap();
        let lines = "9:name=systemd:/\n0::/job/trainer\n";
        assert_eq!(found_in(lines, place.path()), None);
        fs::write(
            place.path().join("job/memory.events"),
            "oom 2\noom_kill 3\noom_group_kill 0\n",
        )
        .unwrap();
        fs::write(place.path().join("job/memory.max"), "1073741824\n").unwrap();
        let found = found_in(lines, place.path()).unwrap();
        assert_eq!((found.kills, found.limit_bytes), (3, Some(1 << 30)));
        assert!(found.file.ends_with("job/memory.events"));

        let first = place.path().join("memory/docker/abc");
        fs::create_dir_all(&first).unwrap();
        fs::write(
            first.join("memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        )
        .unwrap();
        let found = found_in("4:cpu:/\n3:memory:/docker/abc\n", place.path()).unwrap();
        assert_eq!((found.kills, found.limit_bytes), (1, None));
    }

    #[test]
    fn what_makes_no_sense_counts_nothing() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("memory.events"), "oom_kill many\n").unwrap();
        for own in ["", "x", "0::", "0::/", "0::/../../..", "a:b:c:d"] {
            assert_eq!(found_in(own, place.path()), None, "{own}");
        }
    }
}
