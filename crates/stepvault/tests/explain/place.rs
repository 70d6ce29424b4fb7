//! A separate directory for each test, small filesystems, and the binary run there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A temporary directory without any of the machine's configuration in sight.
pub(crate) struct Place {
    directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Another user may look in, where a test becomes one.
        Command::new("chmod")
            .arg("755")
            .arg(directory.path())
            .status()
            .unwrap();
        for name in ["tmp", "remote"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn remote(&self) -> String {
        format!("file://{}", self.path("remote").display())
    }

    /// The command, with nothing of the machine's environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stepvault"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.directory.path())
            .env("TMPDIR", self.path("tmp"))
            .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
            .env("GCE_METADATA_HOST", "127.0.0.1:1");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(self.command(arguments).output().unwrap())
    }

    /// What `explain --json` finds, with exit code 0.
    #[track_caller]
    pub(crate) fn explain(&self, arguments: &[&str]) -> Found {
        let outcome = self.run(&[&["explain", "--json"], arguments].concat());
        Found::of(&outcome.expect_code(0))
    }

    /// Unpacks an archive of checkpoints, by its name, and returns its directory.
    pub(crate) fn unpack(&self, name: &str) -> PathBuf {
        let archives = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let archive = ["tar", "tar.gz"]
            .map(|ending| archives.join(format!("{name}.{ending}")))
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("no fixture {name}"));
        let status = Command::new("tar")
            .args(["--extract", "--preserve-permissions", "--no-same-owner", "--file"])
            .arg(archive)
            .arg("--directory")
            .arg(self.directory.path())
            .status();
        assert!(status.unwrap().success());
        self.path(name)
    }
}

/// What a call came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }
}

/// A document of `explain`.
#[derive(Debug)]
pub(crate) struct Found(pub(crate) Value);

impl Found {
    #[track_caller]
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let document: Value =
            serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:#?}"));
        assert_eq!(document["format"], 1);
        Self(document)
    }

    /// The causes, the likeliest first. What other processes on this machine died of is none of the test's.
    pub(crate) fn causes(&self) -> Vec<&str> {
        let causes = self.0["causes"].as_array().unwrap().iter();
        causes
            .filter(|cause| !is_the_machines(cause))
            .map(|cause| cause["cause"].as_str().unwrap())
            .collect()
    }

    #[track_caller]
    pub(crate) fn cause(&self, name: &str) -> &Value {
        let mut causes = self.0["causes"].as_array().unwrap().iter();
        causes
            .find(|cause| cause["cause"] == name)
            .unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }

    /// The texts and quotes of the evidence for a cause.
    #[track_caller]
    pub(crate) fn evidence(&self, name: &str) -> String {
        let evidence = self.cause(name)["evidence"].as_array().unwrap();
        let texts = evidence.iter().flat_map(|piece| {
            let quote = piece["quote"].as_str().unwrap_or("");
            [piece["text"].as_str().unwrap(), " ", quote, "\n"]
        });
        texts.collect()
    }
}

/// The kernel's log and the cgroup of the whole machine tell of more than the test.
fn is_the_machines(cause: &Value) -> bool {
    cause["evidence"].as_array().unwrap().iter().all(|piece| {
        let text = piece["text"].as_str().unwrap();
        piece["file"] == "the kernel's log" || text.contains(": oom_kill ")
    })
}

/// A small filesystem in memory, gone when dropped.
pub(crate) struct Tmpfs(pub(crate) PathBuf);

impl Tmpfs {
    /// `None`, with a message, where this process may not mount.
    pub(crate) fn mount(path: PathBuf, options: &str) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(&path)
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(path));
        }
        eprintln!("skipped: this process may not mount a tmpfs");
        None
    }

    pub(crate) fn remount(&self, options: &str) {
        let done = Command::new("mount").args(["-o", options]).arg(&self.0).status();
        assert!(done.unwrap().success());
    }

    /// Writes until nothing more fits.
    pub(crate) fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.0.join("ballast")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    /// Creates files until there is no inode left.
    pub(crate) fn fill_with_files(&self) {
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
