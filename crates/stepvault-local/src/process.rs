//! Determines whether a recorded process still runs, even after its process ID was reused, and ends one that was left.

use std::time::{Duration, Instant};

use procfs::process::{Process as Found, Stat, all_processes};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use stepvault_core::starts::Process;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the kernel's identity of the boot, or `None` when the kernel does not report it.
pub fn boot() -> Option<String> {
    Some(std::fs::read_to_string(BOOT).ok()?.trim().to_owned())
}

/// Returns the process with this ID, or `None` when it does not exist or the kernel does not report it.
pub fn identify(id: u32) -> Option<Process> {
    Some(Process { boot: boot()?, id, started_ticks: stat(id)?.starttime })
}

/// Returns the parent of the process with this ID, or `None` when the kernel does not report it.
pub fn parent(id: u32) -> Option<Process> {
    identify(u32::try_from(stat(id)?.ppid).ok()?)
}

/// Returns whether a process of this group runs.
pub fn group_is_running(group: u32) -> bool {
    let processes = all_processes().into_iter().flatten().flatten();
    processes.filter_map(|process| running(&process)).any(|stat| u32::try_from(stat.pgrp) == Ok(group))
}

fn stat(id: u32) -> Option<Stat> {
    running(&Found::new(i32::try_from(id).ok()?).ok()?)
}

/// Returns the `stat` of a process if it runs. A zombie does not count as running.
fn running(process: &Found) -> Option<Stat> {
    process.stat().ok().filter(|stat| !matches!(stat.state, 'Z' | 'X'))
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
    // While the group has members, the kernel gives its number to no other process.
    let leads = stat(process.id).is_some_and(|stat| stat.pgrp == id.as_raw_nonzero().get());
    let is_gone = || !(is_running(process) || leads && group_is_running(process.id));
    for (signal, time) in [(Signal::TERM, grace), (Signal::KILL, KILLED_WITHIN)] {
        let sent = if leads { kill_process_group(id, signal) } else { kill_process(id, signal) };
        if let Err(error) = sent {
            tracing::debug!(%error, ?signal, "cannot signal process {}", process.id);
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
