//! A memory limit of a control group, in the mounted version.

use std::path::{Path, PathBuf};

use crate::doctor::{Findings as _, place};

const LIMIT_BYTES: &str = "157286400";

/// A group of the test's own, which goes with it.
struct Group {
    path: PathBuf,
}

impl Group {
    fn create() -> Option<Self> {
        let name = format!("stepvault-doctor-test-{}", std::process::id());
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path_of = |line: &str| Some(line.rsplit_once(':')?.1.trim_start_matches('/').to_owned());
        let first = own.lines().find(|line| line.contains(":memory:")).and_then(path_of);
        let second = own.lines().find(|line| line.starts_with("0::")).and_then(path_of);
        let candidates = [
            (first, "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            (second, "/sys/fs/cgroup", "memory.max"),
        ];
        for (own, top, limit) in candidates {
            let Some(own) = own else { continue };
            let path = Path::new(top).join(own).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self { path };
            if std::fs::write(group.path.join(limit), LIMIT_BYTES).is_ok() {
                return Some(group);
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[test]
fn buffers_have_to_fit_below_the_memory_limit() {
    let place = place();
    let Some(group) = Group::create() else {
        eprintln!("not run: no control group with a memory limit can be made here");
        return;
    };
    let enter = format!("echo $$ >'{}/cgroup.procs' || exit 99", group.path.display());
    let Some(ran) = place.doctor_after(&enter, &[]) else {
        return;
    };
    let ran = ran.expect_code(14);
    let name = group.path.file_name().unwrap().to_str().unwrap();
    ran.finding("memory", name).expect(
        "fail",
        "of 150.0 MiB free; transfers use up to 224.0 MiB",
        "lower upload.memory-budget",
    );
}
