//! Runs a command and interferes at the n-th changing system call of its process, whichever thread makes it.
//!
//! `strace -e inject=…:when=N` counts separately for each thread. The binary makes its calls from a pool of threads,
//! so no N reaches most of them: of the 31 syncs of a prune, made by ten threads, it reached the nine of the busiest.
//! Here one count runs over all threads.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;

use nix::errno::Errno;
use nix::libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use stepvault_testkit::process::{Outcome, PATIENCE, TestCommand};

use crate::PROGRAM;
use crate::faults::calls::{about_to_be_made, on_file_below, syncs};

/// The fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process is killed before the call has any effect.
    Kill,
    /// The call fails and has no effect.
    Fail(Errno),
}

/// The calls that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those that change something, on disk or at the other end of a connection.
    Changing,
    /// Those on files below the directory in which the command is run, changing or not.
    FilesBelow,
}

/// The calls to interfere with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Selects the names of calls that count, of those in the scope; `None` counts every call of any kind.
    pub(crate) counts: Option<fn(&str) -> bool>,
    pub(crate) scope: Scope,
    /// The first call to interfere with, counted from 1.
    pub(crate) first: usize,
    /// Whether only that one is affected, or all from there on.
    pub(crate) only_one: bool,
    pub(crate) fault: Fault,
    /// Whether all syncs are also skipped and reported as done, as if the binary had none.
    pub(crate) syncs_nothing: bool,
}

/// A call that was made, or was about to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) call: &'static str,
    /// The file of its descriptor or its path; a call with two names has the one that exists.
    pub(crate) about: String,
    pub(crate) thread: Pid,
}

/// The result of a traced command.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) ran: Outcome,
    /// The calls that counted, in order.
    pub(crate) sites: Vec<Site>,
    /// The number of calls that were interfered with.
    pub(crate) injected: usize,
}

impl Traced {
    /// Returns the first call that was interfered with.
    pub(crate) fn site(&self, plan: &Plan) -> String {
        self.sites.get(plan.first - 1).map_or_else(
            || "nowhere".to_owned(),
            |site| format!("{} {} {}", plan.first, site.call, site.about),
        )
    }

    /// Returns the maximum number of calls of one thread: as far as a count for each thread reaches.
    pub(crate) fn most_of_a_thread(&self) -> usize {
        let mut threads: HashMap<(Pid, &str), usize> = HashMap::new();
        let mut most: HashMap<&str, usize> = HashMap::new();
        for site in &self.sites {
            let own = threads.entry((site.thread, site.call)).or_default();
            *own += 1;
            let most = most.entry(site.call).or_default();
            *most = (*most).max(*own);
        }
        most.values().sum()
    }
}

/// Runs `order` to its end, and interferes according to `plan`; without a plan it only watches.
pub(crate) fn trace(order: &TestCommand, plan: Option<Plan>) -> Traced {
    let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    // The shell is stopped until it is traced.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "read _ && exec \"$@\"", "sh"]);
    order.append_to(&mut command);
    command.stdin(Stdio::piped()).stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    #[allow(clippy::zombie_processes, reason = "the tracer waits for it, with all its threads")]
    let mut child = command.spawn().unwrap();
    let process = Pid::from_raw(child.id().cast_signed());
    let (ended, end) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let hangs = end.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout);
        if hangs {
            let _ = kill(process, Signal::SIGKILL);
        }
        hangs
    });
    let mut tracer = Tracer {
        process,
        below: order.directory().to_owned(),
        plan,
        begun: false,
        inside: HashMap::new(),
        sites: Vec::new(),
        injected: 0,
    };
    tracer.seize();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let status = tracer.follow();
    drop(ended);
    assert!(!watch.join().unwrap(), "{order:?} hangs; it says {}", text(stderr));
    Traced {
        ran: Outcome::new(status, text(stdout), text(stderr)),
        sites: tracer.sites,
        injected: tracer.injected,
    }
}

fn text(mut file: File) -> String {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

struct Tracer {
    process: Pid,
    /// The directory in which the command is run.
    below: PathBuf,
    plan: Option<Plan>,
    /// Whether it is the binary, and no longer the shell.
    begun: bool,
    /// The threads that are inside a call, with the result to return if the call was replaced.
    inside: HashMap<Pid, Option<i64>>,
    sites: Vec<Site>,
    injected: usize,
}

impl Tracer {
    fn seize(&self) {
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        ptrace::seize(self.process, options).unwrap();
        ptrace::interrupt(self.process).unwrap();
    }

    /// Follows all threads until the process has ended.
    fn follow(&mut self) -> ExitStatus {
        loop {
            // Wait only for this thread's children: other tests wait for theirs.
            let status = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
                Ok(status) => status,
                Err(Errno::EINTR) => continue,
                Err(error) => panic!("the traced process cannot be waited for: {error}"),
            };
            match status {
                WaitStatus::Exited(thread, code) if thread == self.process => {
                    return ExitStatus::from_raw(code << 8);
                }
                WaitStatus::Signaled(thread, signal, _) if thread == self.process => {
                    return ExitStatus::from_raw(signal as i32);
                }
                WaitStatus::PtraceSyscall(thread) => self.call(thread),
                WaitStatus::PtraceEvent(thread, _, event) => {
                    self.begun |= event == ptrace::Event::PTRACE_EVENT_EXEC as i32;
                    resume(thread, None);
                }
                WaitStatus::Stopped(thread, signal) => resume(thread, Some(signal)),
                _ => {}
            }
        }
    }

    /// Handles a thread that enters or leaves a call.
    fn call(&mut self, thread: Pid) {
        if let Some(answer) = self.inside.remove(&thread) {
            if let (Some(answer), Ok(mut registers)) = (answer, ptrace::getregs(thread)) {
                registers.rax = answer.cast_unsigned();
                let _ = ptrace::setregs(thread, registers);
            }
            return resume(thread, None);
        }
        let answer = self.enter(thread);
        self.inside.insert(thread, answer);
        resume(thread, None);
    }

    /// Returns the result that replaces the call, if any.
    fn enter(&mut self, thread: Pid) -> Option<i64> {
        if !self.begun {
            return None;
        }
        // A thread that was killed meanwhile has no registers.
        let registers = ptrace::getregs(thread).ok()?;
        let plan = self.plan;
        let (call, about) = match plan {
            Some(Plan { counts: None, .. }) => ("any", String::new()),
            Some(Plan { counts: Some(counts), fault, .. }) => {
                let (call, about) = match plan.map(|plan| plan.scope) {
                    Some(Scope::FilesBelow) => on_file_below(thread, &registers, &self.below)?,
                    _ => about_to_be_made(thread, &registers)?,
                };
                // A failing disk affects neither connections nor standard output.
                let speaks =
                    [1, 2].contains(&registers.rdi) && call == "write" || about.starts_with("socket:");
                if speaks && fault != Fault::Kill || !counts(call) {
                    return None;
                }
                (call, about)
            }
            None => about_to_be_made(thread, &registers)?,
        };
        self.sites.push(Site { call, about, thread });
        let plan = plan?;
        let number = self.sites.len();
        if number < plan.first || plan.only_one && number > plan.first {
            let skipped = plan.syncs_nothing && syncs(call);
            return if skipped { away(thread, registers, 0) } else { None };
        }
        self.injected += 1;
        let answer = match plan.fault {
            Fault::Kill => {
                let _ = kill(self.process, Signal::SIGKILL);
                return None;
            }
            Fault::Fail(error) => -i64::from(error as i32),
        };
        away(thread, registers, answer)
    }
}

/// Replaces a call that a thread is entering, and stores the result until it leaves.
fn away(thread: Pid, mut registers: user_regs_struct, answer: i64) -> Option<i64> {
    registers.orig_rax = u64::MAX;
    ptrace::setregs(thread, registers).ok()?;
    Some(answer)
}

/// Resumes a thread until its next call. A thread that was killed meanwhile is reported separately.
fn resume(thread: Pid, signal: Option<Signal>) {
    match ptrace::syscall(thread, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => panic!("thread {thread} cannot go on: {error}"),
    }
}

/// Checks whether processes can be traced here, and calls be changed.
pub(crate) fn can_trace() -> Result<(), String> {
    let order = TestCommand::new(PROGRAM, "/").with(["--version"]);
    let probe = std::panic::catch_unwind(|| trace(&order, None));
    match probe {
        Ok(traced) if traced.ran.code == 0 => Ok(()),
        Ok(traced) => Err(format!("{:?}", traced.ran)),
        Err(_) => Err("ptrace is refused".to_owned()),
    }
}
