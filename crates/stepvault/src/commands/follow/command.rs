//! The command that is run for each step, and the reader who confirms them.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Signal;
use stepvault_core::follow::FollowRules;
use stepvault_core::{Error, ErrorKind, Result, StepId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::FollowArguments;
use crate::commands::child::{Child, LOOK_INTERVAL, code_of};
use crate::commands::run::signals::Signals;

/// The end of the command's output that is part of its document.
const OUTPUT_BYTES: usize = 16 << 10;
/// How long its output is waited for when it has ended; processes that it left may still write.
const OUTPUT_WITHIN: Duration = Duration::from_secs(1);

/// One run of the command.
pub(super) struct CommandLine {
    builder: Command,
    timeout: Option<Duration>,
    grace: Duration,
    /// Whether its output goes to stderr and into the document, because stdout holds documents.
    is_captured: bool,
}

/// Why the command was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// This process received a signal.
    Signal(&'static str),
    /// It ran for too long.
    Timeout,
}

/// How the command ended.
#[derive(Debug)]
pub(super) struct CommandEnd {
    pub(super) code: u8,
    pub(super) asked: Option<Asked>,
    was_killed: bool,
    pub(super) lasted: Duration,
    /// The end of its output, if it was captured.
    pub(super) output: Option<String>,
}

impl CommandEnd {
    /// Whether it did its work. One that exits with 0 after a signal has done it; one that ran for too long has not.
    pub(super) fn is_success(&self) -> bool {
        self.code == 0 && !self.was_killed && self.asked != Some(Asked::Timeout)
    }

    /// Returns how it ended, in words.
    pub(super) fn reason(&self) -> String {
        let how = if self.was_killed { ", and was killed because it did not exit" } else { "" };
        match self.asked {
            None => format!("exit code {}", self.code),
            Some(Asked::Timeout) => format!("it ran for too long{how}"),
            Some(Asked::Signal(signal)) => format!("{signal}{how}"),
        }
    }
}

impl FollowArguments {
    /// Returns which steps are followed.
    pub(super) fn rules(&self) -> FollowRules {
        FollowRules { every: self.every, each: self.all }
    }

    /// Returns the command for a step.
    pub(super) fn command_line(&self, id: StepId, path: &Path, is_captured: bool) -> CommandLine {
        let (step, attempt) = (id.step.number().to_string(), id.attempt.number().to_string());
        let values: [(&str, &OsStr); 3] =
            [("{path}", path.as_os_str()), ("{step}", step.as_ref()), ("{attempt}", attempt.as_ref())];
        let mut words = self.command.iter().map(|word| filled(word, &values));
        let mut builder = Command::new(words.next().unwrap_or_default());
        builder.args(words).stdin(Stdio::null());
        builder.env("STEPVAULT_RESTORED_STEP", &step).env("STEPVAULT_RESTORED_PATH", path);
        CommandLine { builder, timeout: self.command_timeout, grace: self.grace, is_captured }
    }
}

/// Returns a word with the values in place of their names. A value is not searched for names again.
fn filled(word: &OsStr, values: &[(&str, &OsStr)]) -> OsString {
    let mut rest = word.as_bytes();
    let mut filled = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        if let Some((name, value)) = values.iter().find(|(name, _)| rest.starts_with(name.as_bytes())) {
            filled.extend_from_slice(value.as_bytes());
            rest = &rest[name.len()..];
        } else {
            filled.push(*first);
            rest = after;
        }
    }
    OsString::from_vec(filled)
}

/// Runs the command until it ends. A signal that asks this process to end is passed on to it; a second one kills it.
pub(super) async fn run_command(line: CommandLine, signals: &mut Signals) -> Result<CommandEnd> {
    let CommandLine { mut builder, timeout, grace, is_captured } = line;
    let output = if is_captured { Some(Output::capture(&mut builder)?) } else { None };
    let mut child = Child::start(builder, true, "the command")?;
    let limit = timeout.map(|timeout| child.begun + timeout);
    let (mut asked, mut kill_at, mut was_killed) = (None, None, false);
    let mut status = None;
    let (status, lasted) = loop {
        if let Some(ended) = status
            && !(asked.is_some() && !was_killed && child.has_others())
        {
            break ended;
        }
        let kill = kill_at.filter(|_| !was_killed);
        let limit = limit.filter(|_| asked.is_none() && status.is_none());
        tokio::select! {
            ended = child.ended(), if status.is_none() => status = Some((ended?, child.begun.elapsed())),
            received = signals.next() => {
                child.signal(received.signal);
                if received.asks_to_end() {
                    let is_repeated = matches!(asked, Some(Asked::Signal(_)));
                    kill_at = Some(Instant::now() + if is_repeated { Duration::ZERO } else { grace });
                    asked = Some(Asked::Signal(received.name));
                }
            }
            () = sleep_until(limit.unwrap_or_else(Instant::now)), if limit.is_some() => {
                asked = Some(Asked::Timeout);
                kill_at = Some(Instant::now() + grace);
                child.signal(Signal::TERM);
            }
            () = sleep_until(kill.unwrap_or_else(Instant::now)), if kill.is_some() => {
                was_killed = true;
                child.signal(Signal::KILL);
            }
            () = sleep(LOOK_INTERVAL), if status.is_some() => {}
        }
    };
    let output = match output {
        Some(output) => Some(output.end().await),
        None => None,
    };
    Ok(CommandEnd { code: code_of(status), asked, was_killed, lasted, output })
}

/// The output of a command, which is passed on to stderr.
struct Output {
    tail: Arc<Mutex<VecDeque<u8>>>,
    ended: oneshot::Receiver<()>,
}

impl Output {
    fn capture(builder: &mut Command) -> Result<Self> {
        let fault =
            |error| Error::new(ErrorKind::Failed, "cannot read the command's output").caused_by(error);
        let (mut reader, writer) = std::io::pipe().map_err(fault)?;
        builder.stdout(writer.try_clone().map_err(fault)?).stderr(writer);
        let tail: Arc<Mutex<VecDeque<u8>>> = Arc::default();
        let (tell, ended) = oneshot::channel();
        let kept = Arc::clone(&tail);
        let pass_on = move || {
            let mut block = [0; 4096];
            while let Ok(read) = reader.read(&mut block)
                && read > 0
            {
                // A full disk below stderr must not stop the command.
                let _ = std::io::stderr().write_all(&block[..read]);
                let mut kept = kept.lock();
                kept.extend(&block[..read]);
                let surplus = kept.len().saturating_sub(OUTPUT_BYTES);
                kept.drain(..surplus);
            }
            let _ = tell.send(());
        };
        std::thread::Builder::new().name("output".to_owned()).spawn(pass_on).map_err(fault)?;
        Ok(Self { tail, ended })
    }

    /// Returns the end of the output.
    async fn end(self) -> String {
        let _ = tokio::time::timeout(OUTPUT_WITHIN, self.ended).await;
        let tail: Vec<u8> = self.tail.lock().iter().copied().collect();
        String::from_utf8_lossy(&tail).into_owned()
    }
}

/// The lines on stdin, with which a reader confirms that it is done with a step.
pub(super) struct Confirmations {
    lines: mpsc::Receiver<()>,
    /// Cancelled when nothing more can come.
    ended: CancellationToken,
}

impl Confirmations {
    /// Starts to read.
    pub(super) fn listen() -> Result<Self> {
        let (tell, lines) = mpsc::channel(1);
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let read = move || {
            let _guard = guard;
            for line in std::io::stdin().lock().lines() {
                if line.is_err() || tell.blocking_send(()).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(read)
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot read stdin").caused_by(error))?;
        Ok(Self { lines, ended })
    }

    /// Returns the token that is cancelled when stdin has ended, unless a line is waiting.
    pub(super) fn ended(&self) -> CancellationToken {
        if self.lines.is_empty() { self.ended.clone() } else { CancellationToken::new() }
    }

    /// Waits for the next line; returns false if there is none any more.
    pub(super) async fn next(&mut self) -> bool {
        self.lines.recv().await.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_once_and_other_braces_stay() {
        let values: [(&str, &OsStr); 2] = [("{path}", "/a/{step}".as_ref()), ("{step}", "7".as_ref())];
        let word = filled("--model={path}/{step}/{other}{".as_ref(), &values);
        assert_eq!(word, "--model=/a/{step}/7/{other}{");
    }
}
