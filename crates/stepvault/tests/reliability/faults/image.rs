//! A disk that can lose its power: a filesystem in a file, mounted by a loop device, and shut down by the
//! filesystem's own request, which drops whatever has not reached the disk.
//!
//! Everything is mounted in a mount namespace of the calling thread, and disappears with that thread.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use stepvault_testkit::random::Random;
use stepvault_testkit::tree::files_below;

/// The smallest size that `mkfs.xfs` supports is 300 MiB; the file has holes.
const SIZE_BYTES: u64 = 320 << 20;
/// `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN` are the same number; 2 leaves the log as it is on the disk.
const SHUTDOWN: &str = "import fcntl, os, struct, sys\n\
                        descriptor = os.open(sys.argv[1], os.O_RDONLY)\n\
                        fcntl.ioctl(descriptor, 0x8004587d, struct.pack('I', 2))\n";

/// A filesystem.
#[derive(Debug)]
pub(crate) struct Image {
    file: PathBuf,
    pub(crate) mounted: PathBuf,
}

/// Gives this thread its own mounts.
pub(crate) fn own_mounts() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| format!("a mount namespace: {error}"))?;
    run("mount", &["--make-rprivate", "/"])
}

/// Runs `work` on a thread with its own mounts.
///
/// # Errors
/// What keeps this machine or this user from having them.
pub(crate) fn with_own_mounts<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| own_mounts().and_then(|()| work()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Image {
    /// Makes a filesystem of `kind`, ext4 or xfs, in `directory`, and mounts it.
    ///
    /// # Errors
    /// What is missing for it.
    pub(crate) fn make(directory: &Path, kind: &str) -> Result<Self, String> {
        let image = Self { file: directory.join(format!("{kind}.image")), mounted: directory.join(kind) };
        std::fs::create_dir(&image.mounted).unwrap();
        File::create(&image.file).unwrap().set_len(SIZE_BYTES).unwrap();
        let file = image.file.to_str().unwrap();
        match kind {
            "ext4" => run("mkfs.ext4", &["-q", "-F", file])?,
            kind => run(&format!("mkfs.{kind}"), &["-q", file])?,
        }
        image.mount()?;
        Ok(image)
    }

    fn mount(&self) -> Result<(), String> {
        run("mount", &["-o", "loop", self.file.to_str().unwrap(), self.mounted.to_str().unwrap()])
    }

    /// Writes some of the files below `root` back, as the kernel may at any time, each with a probability of `chance`
    /// percent.
    pub(crate) fn write_some_back(random: &mut Random, root: &Path, chance: usize) {
        for path in files_below(root) {
            if random.index(100) < chance && path.is_file() {
                File::open(path).and_then(|file| file.sync_data()).unwrap();
            }
        }
    }

    /// Triggers an error of the filesystem, an ext4: from now on it accepts no writes, as ext4 is configured on most
    /// machines.
    pub(crate) fn meet_an_error(&self) -> Result<(), String> {
        let mounted = self.mounted.to_str().unwrap();
        run("mount", &["-o", "remount,errors=remount-ro", mounted])?;
        let source = output("findmnt", &["--noheadings", "--output", "SOURCE", mounted])?;
        let device = source.trim().trim_start_matches("/dev/");
        std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1")
            .map_err(|error| format!("an error of the filesystem on {device}: {error}"))
    }

    /// Checks and mounts it again, as an administrator would. No process may have it open.
    pub(crate) fn repair(&self) -> Result<(), String> {
        run("umount", &[self.mounted.to_str().unwrap()])?;
        // Exit code 1 means that something was repaired.
        run("sh", &["-c", "e2fsck -fy \"$0\" || test $? -le 1", self.file.to_str().unwrap()])?;
        self.mount()
    }

    /// Cuts the power, and starts again from the contents of the disk.
    pub(crate) fn lose_power(&self) -> Result<(), String> {
        let mounted = self.mounted.to_str().unwrap();
        run("python3", &["-c", SHUTDOWN, mounted])?;
        run("umount", &[mounted])?;
        self.mount()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = run("umount", &["--lazy", self.mounted.to_str().unwrap()]);
    }
}

/// Runs a program to its end.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    output(program, arguments).map(drop)
}

/// Runs a program to its end and returns its output.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let told = || format!("{program} {}", arguments.join(" "));
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{}: {error}", told()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{}: {}", told(), String::from_utf8_lossy(&output.stderr).trim()))
}
