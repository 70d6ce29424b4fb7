//! A separate directory for each test, and the binary run in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A temporary directory with an empty remote in it, and no configuration of the machine's in sight.
pub(crate) struct Place {
    directory: TempDir,
}

/// What a call came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::of(tempfile::tempdir().unwrap())
    }

    /// A place on the file system of `directory`.
    pub(crate) fn within(directory: &Path) -> Self {
        Self::of(tempfile::tempdir_in(directory).unwrap())
    }

    fn of(directory: TempDir) -> Self {
        let place = Self { directory };
        for name in ["tmp", "remote"] {
            std::fs::create_dir(place.path(name)).unwrap();
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The URL of the remote in this place.
    pub(crate) fn remote(&self) -> String {
        format!("file://{}", self.path("remote").display())
    }

    /// The command, with nothing of the machine's environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stepvault"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_clear();
        command
            .env("HOME", self.directory.path())
            .env("TMPDIR", self.path("tmp"))
            // No provider's machine is looked for.
            .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
            .env("GCE_METADATA_HOST", "127.0.0.1:1");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(self.command(arguments).output().unwrap())
    }

    /// Runs against this place's remote and the run `demo/a`.
    pub(crate) fn run_here(&self, arguments: &[&str]) -> Outcome {
        let remote = self.remote();
        self.run(&[arguments, &["--remote", &remote, "--run", "demo/a"]].concat())
    }

    /// A checkpoint with two files; `content` makes it differ from others.
    pub(crate) fn checkpoint(&self, name: &str, content: &str) -> PathBuf {
        let directory = self.path("checkpoints").join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("model.bin"), content.repeat(1000)).unwrap();
        std::fs::write(
            directory.join("state.json"),
            format!("{{\"loss\": {}}}", content.len()),
        )
        .unwrap();
        directory
    }

    /// Pushes `step_N` for each number, and forgets the local copies.
    pub(crate) fn push_steps(&self, steps: &[u64]) {
        for step in steps {
            let name = format!("step_{step}");
            self.checkpoint(&name, &name);
            let metric = format!("loss=0.{step}");
            self.run_here(&["push", &format!("checkpoints/{name}"), "--metric", &metric])
                .expect_code(0);
        }
        std::fs::remove_dir_all(self.path(".stepvault")).unwrap();
    }

    /// Where a file of a pushed step stands on the remote.
    pub(crate) fn remote_file(&self, step: &str, name: &str) -> PathBuf {
        let number: u64 = step.rsplit('_').next().unwrap().parse().unwrap();
        let label = format!("{number:012}.a1");
        self.path("remote/demo/a").join(label).join(step).join(name)
    }
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

    /// The one document on stdout.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let document: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"));
        assert_eq!(document["format"], 1, "{document:#}");
        document
    }

    /// The error on stderr must hold this text.
    #[track_caller]
    pub(crate) fn expect_error(self, text: &str) -> Self {
        assert!(
            self.stderr.contains("error: ") && self.stderr.contains(text),
            "{self:#?}"
        );
        self
    }
}

/// Flips the middle byte of a file.
pub(crate) fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] = !bytes[middle];
    std::fs::write(path, bytes).unwrap();
}

/// The numbers of the steps that a `list --json` shows.
pub(crate) fn listed_steps(document: &Value) -> Vec<u64> {
    document["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["step"].as_u64().unwrap())
        .collect()
}
