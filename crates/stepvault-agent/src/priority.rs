//! The trainer comes first: while it runs, the agent's threads have a low scheduling priority.

use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use stepvault_core::{Error, ErrorKind, Result};

/// Maximum number of passes over the threads: a sandbox may accept a value and not keep it.
const MAXIMUM_PASSES: usize = 16;

/// The nice values of this process's threads: the agent's, and the former one again when this is dropped because the
/// machine is going away or the trainer has ended. That takes a privilege (`CAP_SYS_NICE` or `RLIMIT_NICE`); without it,
/// they keep the low one.
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
}

impl Drop for Priority {
    fn drop(&mut self) {
        if self.before < self.nice
            && let Err(error) = renice(self.before)
        {
            tracing::debug!("the agent keeps nice {}: {error}", self.nice);
        }
    }
}

/// Sets the nice value of all threads, until none has another one: those that were created meanwhile may have their
/// creator's former one, and later ones have the new one.
fn renice(nice: i32) -> std::io::Result<()> {
    for _ in 0..MAXIMUM_PASSES {
        let mut is_complete = true;
        for entry in std::fs::read_dir("/proc/self/task")? {
            let Some(thread) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let thread = Pid::from_raw(thread);
            match getpriority_process(thread) {
                Ok(found) if found != nice => is_complete = false,
                // It is so already, or has ended.
                Ok(_) | Err(Errno::SRCH) => continue,
                Err(error) => return Err(error.into()),
            }
            match setpriority_process(thread, nice) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if is_complete {
            break;
        }
    }
    Ok(())
}
