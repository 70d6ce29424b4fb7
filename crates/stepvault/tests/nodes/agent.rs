//! Processes of the built binary inside a namespace, each ended by its owner.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::namespaces::Namespace;

/// A command that takes longer hangs.
const COMMAND_BOUND: Duration = Duration::from_mins(4);

/// An agent's process. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
}

impl Agent {
    /// Starts it. Its output is appended to `log`; `report` holds what it prints at its end.
    pub(crate) fn start(namespace: &Namespace, mut command: Command, log: &Path, report: &Path) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(File::create(report).unwrap())
            .stderr(log);
        let child = namespace.run(|| command.spawn()).unwrap();
        Self { child }
    }

    /// Sends a signal. A process that has ended is not affected.
    pub(crate) fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.child);
        let _ = kill_process(process, signal);
    }

    /// Returns its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Ends it at once, frozen or not.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Returns the only document on its standard output.
    pub(crate) fn document(&self) -> Result<Value, String> {
        serde_json::from_str(&self.stdout).map_err(|error| format!("{error}: {self:?}"))
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it hangs.
pub(crate) fn run(namespace: &Namespace, mut command: Command) -> Result<Outcome, String> {
    let (mut stdout, mut stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().unwrap())
        .stderr(stderr.try_clone().unwrap());
    let mut process = Agent {
        child: namespace.run(|| command.spawn()).unwrap(),
    };
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = process.ended() {
            break status;
        }
        if begun.elapsed() > COMMAND_BOUND {
            return Err(format!(
                "{command:?} hangs; it says {}",
                text(&mut stdout) + &text(&mut stderr)
            ));
        }
        sleep(Duration::from_millis(20));
    };
    Ok(Outcome {
        code: status.code().unwrap_or(-1),
        stdout: text(&mut stdout),
        stderr: text(&mut stderr),
    })
}

fn text(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}
