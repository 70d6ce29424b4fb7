//! `explain` with real faults: full disks, read-only mounts, directories of another user, steps that real frameworks
//! left half-written, restart loops, logs.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use stepvault_testkit::fixture::unpack_into;

use crate::support::{Outcome, Place, list};

mod disks;
mod logs;
mod memory;
mod resume;
mod starts;
mod steps;
mod uploads;

impl Place {
    /// What `explain --json` finds, with exit code 0.
    #[track_caller]
    fn explain(&self, arguments: &[&str]) -> Found {
        let outcome = self.run(&[&["explain", "--json"], arguments].concat());
        Found::of(&outcome.expect_code(0))
    }

    /// Unpacks an archive of checkpoints, by its name, and returns its directory.
    fn unpack(&self, name: &str) -> PathBuf {
        unpack_into(name, self.root())
    }
}

/// A document of `explain`.
#[derive(Debug)]
struct Found(Value);

impl Found {
    #[track_caller]
    fn of(outcome: &Outcome) -> Self {
        Self(outcome.json())
    }

    /// The causes, the likeliest first. What other processes on this machine died of is none of the test's.
    fn causes(&self) -> Vec<&str> {
        let causes = list(&self.0, "causes").iter();
        causes.filter(|cause| !is_the_machines(cause)).map(|cause| cause["cause"].as_str().unwrap()).collect()
    }

    #[track_caller]
    fn cause(&self, name: &str) -> &Value {
        let mut causes = list(&self.0, "causes").iter();
        causes.find(|cause| cause["cause"] == name).unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }

    /// The texts and quotes of the evidence for a cause.
    #[track_caller]
    fn evidence(&self, name: &str) -> String {
        let evidence = list(self.cause(name), "evidence");
        let texts = evidence.iter().flat_map(|piece| {
            let quote = piece["quote"].as_str().unwrap_or("");
            [piece["text"].as_str().unwrap(), " ", quote, "\n"]
        });
        texts.collect()
    }
}

/// The kernel's log and the cgroup of the whole machine tell of more than the test.
fn is_the_machines(cause: &Value) -> bool {
    list(cause, "evidence").iter().all(|piece| {
        let text = piece["text"].as_str().unwrap();
        piece["file"] == "the kernel's log" || text.contains(": oom_kill ")
    })
}

/// A small filesystem in memory, gone when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// `None`, with a message, where this process may not mount.
    fn mount(path: PathBuf, options: &str) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&path).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(path));
        }
        eprintln!("skipped: this process may not mount a tmpfs");
        None
    }

    fn remount(&self, options: &str) {
        let done = Command::new("mount").args(["-o", options]).arg(&self.0).status();
        assert!(done.unwrap().success());
    }

    /// Writes until nothing more fits.
    fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.0.join("ballast")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    /// Creates files until there is no inode left.
    fn fill_with_files(&self) {
        let directory = self.0.join("__pycache__");
        std::fs::create_dir(&directory).unwrap();
        let made =
            (0..100_000).take_while(|number| std::fs::write(directory.join(number.to_string()), "").is_ok());
        assert!(made.count() < 100_000, "there is no end of inodes");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
