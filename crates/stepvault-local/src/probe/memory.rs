//! The tightest memory limit of this process: its control groups, version 1 and 2, and the machine.

use procfs::{Current as _, Meminfo};
use stepvault_core::disk_facts::MemoryFacts;

use crate::cgroup::{Group, own_groups};

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
    use crate::cgroup::{FIRST, SECOND, upward};

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
