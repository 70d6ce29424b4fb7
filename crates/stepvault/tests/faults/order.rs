//! A command of the built binary, with none of the machine's own configuration in its environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A command that takes longer hangs.
pub(crate) const PATIENCE: Duration = Duration::from_mins(4);

/// A command to run.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// A program, with arguments, that runs the binary.
    pub(crate) before: Vec<OsString>,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) variables: Vec<(&'static str, OsString)>,
    pub(crate) directory: PathBuf,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Order {
    /// Returns a command without arguments, to be run in `directory`.
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            before: Vec::new(),
            arguments: Vec::new(),
            variables: vec![
                ("HOME", directory.into()),
                (
                    "PATH",
                    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
                ),
                ("AWS_EC2_METADATA_DISABLED", "true".into()),
                // Prevents the search for a provider's metadata service.
                ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1".into()),
                ("GCE_METADATA_HOST", "127.0.0.1:1".into()),
                ("RUST_BACKTRACE", "1".into()),
            ],
            directory: directory.to_owned(),
        }
    }

    /// Adds arguments.
    pub(crate) fn with<T: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Runs the binary under another program.
    pub(crate) fn under(mut self, program: &[&str]) -> Self {
        self.before = program.iter().map(OsString::from).collect();
        self
    }

    /// Appends it as arguments to `command`.
    pub(crate) fn onto(&self, command: &mut Command) {
        command
            .args(&self.before)
            .arg(env!("CARGO_BIN_EXE_stepvault"))
            .args(&self.arguments)
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.directory);
    }

    /// Starts it.
    pub(crate) fn start(&self) -> Child {
        let mut command = Command::new("/usr/bin/env");
        self.onto(&mut command);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs it to its end.
    pub(crate) fn run(&self) -> Ran {
        self.run_within(PATIENCE)
    }

    /// Runs it to its end, which must come within `patience`.
    pub(crate) fn run_within(&self, patience: Duration) -> Ran {
        let child = self.start();
        let (process, begun) = (
            nix::unistd::Pid::from_raw(child.id().cast_signed()),
            Instant::now(),
        );
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            if end.recv_timeout(patience) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL);
            }
        });
        let output = child.wait_with_output().unwrap();
        drop(ended);
        watch.join().unwrap();
        let ran = Ran {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        assert!(begun.elapsed() < patience, "{self:?} hangs: {ran:?}");
        ran
    }
}

impl Ran {
    /// Returns its exit code; `None` when it was killed.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Returns the only document on its standard output.
    pub(crate) fn document(&self) -> Result<Value, String> {
        serde_json::from_str(&self.stdout).map_err(|error| format!("no document ({error}): {self:?}"))
    }

    /// Returns the steps that it reported as sealed or, with a tier's name, as durable there. A line that was cut off
    /// does not count.
    pub(crate) fn acknowledged(&self, what: &str) -> Vec<u64> {
        let lines = self
            .stderr
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let ending = |line: &str| match what {
            "local" => line.contains(" bytes in ") || line.contains(" in "),
            _ => line.trim_end().ends_with(") is durable"),
        };
        let start = match what {
            "local" => "local: sealed step ".to_owned(),
            tier => format!("{tier}: step "),
        };
        lines
            .filter(|line| ending(line))
            .filter_map(|line| line.strip_prefix(start.as_str())?.split(' ').next()?.parse().ok())
            .collect()
    }
}
