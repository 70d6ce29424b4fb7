//! The trainer comes first: while it runs, the agent's threads have a low scheduling priority.

use std::collections::BTreeSet;

use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use stepvault_core::{Error, ErrorKind, Result};

/// The nice values of this process's threads: the agent's while it serves, the former one again when it is dropped or
/// [restored](Self::restore).
///
/// Linux keeps a nice value for each thread, and a new thread has its creator's. The kernel derives the priority of a
/// thread's reads and writes from it (`ioprio_set(2)`), so that the lowest nice value is the lowest best-effort level.
#[derive(Debug)]
pub(crate) struct Priority {
    before: i32,
    nice: i32,
}

impl Priority {
    /// Gives every thread of this process `nice`, unless it is that nice already.
    ///
    /// # Errors
    /// When the kernel does not tell or change the value of a thread.
    pub(crate) fn lower(nice: i32) -> Result<Self> {
        let fault = |error: std::io::Error| {
            Error::new(ErrorKind::Failed, "cannot lower the agent's priority")
                .caused_by(error)
                .hint("set agent.nice = 0 to leave it as it is")
        };
        let before = getpriority_process(None).map_err(|error| fault(error.into()))?;
        if before < nice {
            renice(nice).map_err(fault)?;
        }
        Ok(Self { before, nice })
    }

    /// Gives the threads the former priority again: the machine is going away, or the trainer has ended. That takes a
    /// privilege (`CAP_SYS_NICE` or `RLIMIT_NICE`); without it, they keep the low one.
    pub(crate) fn restore(&self) {
        if self.before < self.nice
            && let Err(error) = renice(self.before)
        {
            tracing::debug!("the agent keeps nice {}: {error}", self.nice);
        }
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Sets the nice value of all threads, those included that are created meanwhile.
fn renice(nice: i32) -> std::io::Result<()> {
    let mut done = BTreeSet::new();
    loop {
        let mut is_complete = true;
        for entry in std::fs::read_dir("/proc/self/task")? {
            let Some(thread) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if !done.insert(thread) {
                continue;
            }
            is_complete = false;
            match setpriority_process(Pid::from_raw(thread), nice) {
                // It has ended.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if is_complete {
            return Ok(());
        }
    }
}
