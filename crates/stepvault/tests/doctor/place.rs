//! A separate directory for each test, and `stepvault doctor` run in it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// The script says so by this code when something cannot be mounted here.
const NOT_HERE: i32 = 99;

/// A directory with `run`, where a trainer writes, and room for a vault.
pub(crate) struct Place {
    directory: TempDir,
}

/// What a call came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        // Other users go through it.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(place.directory.path(), open).unwrap();
        for name in ["run", "vault", "tmp"] {
            std::fs::create_dir(place.path(name)).unwrap();
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A complete step: a file of so many bytes, and as many empty ones as wanted.
    pub(crate) fn write_step(&self, name: &str, bytes: usize, empty_files: usize) {
        let step = self.path("run").join(name);
        std::fs::create_dir_all(&step).unwrap();
        std::fs::write(step.join("model.bin"), vec![7; bytes]).unwrap();
        for number in 0..empty_files {
            std::fs::write(step.join(format!("{number}.json")), "{}").unwrap();
        }
    }

    /// Looks at `run` with the vault in `vault`, after `setup` has been run by a shell in a mount namespace of its own;
    /// `None`, and says so, where that cannot be had.
    pub(crate) fn doctor_after(&self, setup: &str, arguments: &[&str]) -> Option<Ran> {
        let common = ["run", "--local", "vault", "--json"];
        self.line_after(setup, &doctor_line(&[&common[..], arguments].concat()))
    }

    /// The same with another line.
    pub(crate) fn line_after(&self, setup: &str, line: &[String]) -> Option<Ran> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: only the superuser can mount what this test needs");
            return None;
        }
        let script = format!("{setup}\n\"$@\"");
        let ran = self.run(
            Command::new("unshare")
                .args(["--mount", "sh", "-c", &script, "sh"])
                .args(line),
        );
        if ran.code == NOT_HERE || ran.stderr.contains("unshare failed") {
            eprintln!("not run: it cannot be mounted here: {}", ran.stderr);
            return None;
        }
        Some(ran)
    }

    /// Looks at `run` with the vault in `vault`.
    pub(crate) fn doctor(&self, arguments: &[&str]) -> Ran {
        let common = ["run", "--local", "vault", "--json"];
        self.run_line(&doctor_line(&[&common[..], arguments].concat()))
    }

    pub(crate) fn run_line(&self, line: &[String]) -> Ran {
        let (program, arguments) = line.split_first().unwrap();
        self.run(Command::new(program).args(arguments))
    }

    pub(crate) fn run(&self, command: &mut Command) -> Ran {
        self.run_with(&[], command)
    }

    /// The same with these variables besides.
    pub(crate) fn run_with(&self, variables: &[(&str, &str)], command: &mut Command) -> Ran {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let output = command
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.directory.path())
            .env("TMPDIR", self.path("tmp"))
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The line that runs `stepvault doctor` with these arguments.
pub(crate) fn doctor_line(arguments: &[&str]) -> Vec<String> {
    let mut line = vec![env!("CARGO_BIN_EXE_stepvault").to_owned(), "doctor".to_owned()];
    line.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    line
}

impl Ran {
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn document(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// The finding of this check whose subject holds this text.
    #[track_caller]
    pub(crate) fn finding(&self, check: &str, subject: &str) -> Found {
        let document = self.document();
        let of = |list: &str| document[list].as_array().unwrap().clone();
        let all = [of("findings"), of("feasibility")].concat();
        let found = all.iter().find(|finding| {
            finding["check"] == check && finding["subject"].as_str().unwrap().contains(subject)
        });
        let found = found.unwrap_or_else(|| panic!("nothing of {check} on {subject}: {document:#}"));
        let text = |member: &str| found[member].as_str().unwrap_or_default().to_owned();
        Found {
            outcome: text("outcome"),
            measured: text("measured"),
            remedy: text("remedy"),
        }
    }
}

/// A finding.
#[derive(Debug)]
pub(crate) struct Found {
    outcome: String,
    pub(crate) measured: String,
    pub(crate) remedy: String,
}

impl Found {
    /// It came out so, and says this of what was measured and of what to do.
    #[track_caller]
    pub(crate) fn expect(&self, outcome: &str, measured: &str, remedy: &str) {
        assert_eq!(self.outcome, outcome, "{self:#?}");
        assert!(self.measured.contains(measured), "{self:#?}");
        assert!(self.remedy.contains(remedy), "{self:#?}");
    }
}

/// Every path below a directory.
pub(crate) fn listing(directory: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut pending = vec![directory.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path.clone());
            }
            paths.push(path);
        }
    }
    paths.sort();
    paths
}
