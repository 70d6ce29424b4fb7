//! Determines whether a recorded process still runs, even after its process ID was reused.

use stepvault_core::starts::Process;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Indexes of these fields in a process's `stat`, counted after its name, which may contain any character.
const STATE: usize = 0;
const GROUP: usize = 2;
const STARTED: usize = 19;

/// Returns the process with this ID, or `None` when it does not exist or the kernel does not report it.
pub fn identify(id: u32) -> Option<Process> {
    Some(Process {
        boot: std::fs::read_to_string(BOOT).ok()?.trim().to_owned(),
        id,
        started_ticks: field(&id.to_string(), STARTED)?.parse().ok()?,
    })
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        let own = identify(std::process::id()).unwrap();
        assert!(is_running(&own));
        let earlier = Process {
            started_ticks: own.started_ticks - 1,
            ..own.clone()
        };
        let other_boot = Process {
            boot: "another".to_owned(),
            ..own
        };
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
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_running(&process) && !group_is_running(process.id));
    }
}
