//! Agents inside a namespace, each ended by its owner.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use stepvault_testkit::process::TestCommand;

use crate::nodes::namespaces::Namespace;

/// An agent's process. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
}

impl Agent {
    /// Starts it. Its output is appended to `log`; `report` holds what it prints at its end.
    pub(crate) fn start(namespace: &Namespace, command: &TestCommand, log: &Path, report: &Path) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut command = command.to_std();
        command.stdout(File::create(report).unwrap()).stderr(log);
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
