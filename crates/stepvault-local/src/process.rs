//! Determines whether a recorded process still runs, even after its process ID was reused, and ends one that was left.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use stepvault_core::starts::Process;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Indexes of these fields in a process's `stat`, counted after its name, which may contain any character.
const STATE: usize = 0;
const PARENT: usize = 1;
const GROUP: usize = 2;
const STARTED: usize = 19;

/// Returns the kernel's identity of the boot, or `None` when the kernel does not report it.
pub fn boot() -> Option<String> {
    Some(std::fs::read_to_string(BOOT).ok()?.trim().to_owned())
}

/// Returns the process with this ID, or `None` when it does not exist or the kernel does not report it.
pub fn identify(id: u32) -> Option<Process> {
    Some(Process { boot: boot()?, id, started_ticks: field(&id.to_string(), STARTED)?.parse().ok()? })
}

/// Returns the parent of the process with this ID, or `None` when the kernel does not report it.
pub fn parent(id: u32) -> Option<Process> {
    identify(field(&id.to_string(), PARENT)?.parse().ok()?)
}

/// Returns whether a process of this group runs.
pub fn group_is_running(group: u32) -> bool {
    let group = group.to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .any(|id| field(&id, GROUP).as_ref() == Some(&group))
}

/// Returns a field of the `stat` of a running process. A zombie does not count as running.
fn field(id: &str, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let runs = !matches!(*fields.get(STATE)?, "Z" | "X");
    fields.get(number).filter(|_| runs).map(|text| (*text).to_owned())
}

/// Returns whether exactly this process still runs here.
pub fn is_running(process: &Process) -> bool {
    identify(process.id).as_ref() == Some(process)
}

/// Interval at which the end of a process that is no child of this one is looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a killed process may take to end, as one does that waits for a disk.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// Ends a process, and with it the group that it leads: by SIGTERM, and after `grace` by SIGKILL. Returns whether all of
/// it is gone.
pub fn end(process: &Process, grace: Duration) -> bool {
    let Some(id) = i32::try_from(process.id).ok().and_then(Pid::from_raw) else {
        return false;
    };
    if !is_running(process) {
        return true;
    }
    let number = process.id.to_string();
    // While the group has members, the kernel gives its number to no other process.
    let leads = field(&number, GROUP).as_ref() == Some(&number);
    let is_gone = || !(is_running(process) || leads && group_is_running(process.id));
    for (signal, time) in [(Signal::TERM, grace), (Signal::KILL, KILLED_WITHIN)] {
        let sent = if leads { kill_process_group(id, signal) } else { kill_process(id, signal) };
        if let Err(error) = sent {
            tracing::debug!(%error, ?signal, "cannot signal process {number}");
        }
        let end = Instant::now() + time;
        while Instant::now() < end {
            if is_gone() {
                return true;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
    is_gone()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        let own = identify(std::process::id()).unwrap();
        assert!(is_running(&own));
        let earlier = Process { started_ticks: own.started_ticks - 1, ..own.clone() };
        let other_boot = Process { boot: "another".to_owned(), ..own };
        assert!(!is_running(&earlier) && !is_running(&other_boot));
    }

    #[test]
    fn one_that_has_ended_does_not_run() {
        let mut child = std::process::Command::new("sh")
            .process_group(0)
            .args(["-c", "read line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let process = identify(child.id()).unwrap();
        assert!(is_running(&process) && group_is_running(child.id()));
        assert_eq!(parent(child.id()), identify(std::process::id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_running(&process) && !group_is_running(process.id));
    }

    #[test]
    fn a_process_is_ended_with_its_group_even_if_it_ignores_the_request() {
        let mut child = std::process::Command::new("sh")
            .process_group(0)
            .args(["-c", "trap '' TERM; sleep 600 & echo; wait; sleep 600"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let process = identify(child.id()).unwrap();
        assert!(end(&process, Duration::from_millis(200)));
        assert!(!is_running(&process) && !group_is_running(process.id));
        assert!(end(&process, Duration::ZERO), "it is gone already");
        child.wait().unwrap();
    }
}
