//! A process that the kernel kills because its cgroup is out of memory.

use std::path::{Path, PathBuf};

use crate::explain::Found;
use crate::support::Place;

/// A cgroup with little memory, gone when dropped.
struct Small(PathBuf);

impl Small {
    /// `None`, with a message, where this process may not make one.
    fn make() -> Option<Self> {
        let name = format!("stepvault-test-{}", std::process::id());
        let first = (Path::new("/sys/fs/cgroup/memory"), "memory.limit_in_bytes");
        let second = (Path::new("/sys/fs/cgroup"), "memory.max");
        for (root, limit) in [first, second] {
            let path = root.join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let made = Self(path);
            if std::fs::write(made.0.join(limit), "33554432").is_ok() {
                return Some(made);
            }
        }
        eprintln!("skipped: this process may not make a cgroup with a limit");
        None
    }

    /// Runs a shell's line in it.
    fn line(&self, line: &str) -> String {
        format!("echo $$ > {}/cgroup.procs && {line}", self.0.display())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_kill_for_want_of_memory_is_counted_by_the_cgroup() {
    let Some(small) = Small::make() else { return };
    let place = Place::new();
    let eats = "python3 -c 'x = bytearray(400 << 20); print(len(x))'";
    if place.shell(&small.line(eats)).run().is_success() {
        eprintln!("skipped: this kernel does not hold the limit");
        return;
    }
    std::fs::create_dir(place.path("out")).unwrap();
    let explain = small.line("exec stepvault explain --json out");
    let found = Found::of(&place.shell(&explain).run().expect_code(0));
    let evidence = found.evidence("out-of-memory");
    assert!(evidence.contains("oom_kill 1"), "{evidence}");
    assert!(evidence.contains("33554432"), "{evidence}");
}
