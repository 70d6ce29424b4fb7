//! Runs a program under test: with nothing of the machine's environment, within a deadline, and with everything that
//! it prints.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A program that takes longer, and a condition that does not hold by then, hang.
pub const PATIENCE: Duration = Duration::from_mins(4);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Where the programs stand that tests need.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Waits until `is_reached`; fails with `what` after [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut is_reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_reached() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A command of the program under test.
#[derive(Debug, Clone)]
pub struct TestCommand {
    program: PathBuf,
    /// Another program, with its arguments, that runs it.
    wrapper: Vec<OsString>,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    directory: PathBuf,
    user: Option<u32>,
    has_own_group: bool,
}

impl TestCommand {
    /// Returns a command of `program` without arguments, to be run in `directory`, which is its home as well.
    ///
    /// No provider's metadata service is asked.
    pub fn new(program: impl Into<PathBuf>, directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        let mut command = Self {
            program: program.into(),
            wrapper: Vec::new(),
            arguments: Vec::new(),
            variables: Vec::new(),
            directory: directory.clone(),
            user: None,
            has_own_group: false,
        };
        command.env("HOME", directory).envs([
            ("PATH", PATH),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1"),
            ("GCE_METADATA_HOST", "127.0.0.1:1"),
            ("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:1"),
            ("RUST_BACKTRACE", "1"),
        ]);
        command
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = A>) -> &mut Self {
        for argument in arguments {
            self.arg(argument);
        }
        self
    }

    /// Adds an argument right behind the first one: what stands behind a `--` is another program's.
    pub fn early_arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.arguments.insert(1, argument.as_ref().to_owned());
        self
    }

    /// Adds an option with its value.
    pub fn option(&mut self, name: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.arg(name).arg(value)
    }

    /// Returns the command with these arguments as well.
    #[must_use]
    pub fn with<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.args(arguments);
        self
    }

    /// Sets a variable.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.env_remove(name.as_ref());
        let variable = (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.variables.push(variable);
        self
    }

    /// Sets variables.
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        &mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> &mut Self {
        for (name, value) in variables {
            self.env(name, value);
        }
        self
    }

    /// Unsets a variable.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.variables.retain(|(known, _)| known != name.as_ref());
        self
    }

    /// Takes another file for the program.
    pub fn program(&mut self, program: impl Into<PathBuf>) -> &mut Self {
        self.program = program.into();
        self
    }

    /// Lets another program run it.
    pub fn under<A: AsRef<OsStr>>(&mut self, wrapper: impl IntoIterator<Item = A>) -> &mut Self {
        self.wrapper = wrapper.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// Kills it as a thread makes a system call for the `round`th time.
    pub fn killed_at(&mut self, call: &str, round: u32) -> &mut Self {
        let trace = format!("trace={call}");
        let inject = format!("inject={call}:signal=KILL:when={round}");
        self.under(["strace", "-f", "-qqq", "-o", "/dev/null", "-e", &trace, "-e", &inject])
    }

    /// Lets the user and the group with this number run it. See [`become_other_users`](crate::users::become_other_users).
    pub fn user(&mut self, number: u32) -> &mut Self {
        self.user = Some(number);
        self
    }

    /// Gives it a process group of its own.
    pub fn own_group(&mut self) -> &mut Self {
        self.has_own_group = true;
        self
    }

    /// Returns its arguments.
    pub fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    /// Returns the directory in which it is run.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn words(&self) -> impl Iterator<Item = &OsStr> {
        let program = std::iter::once(self.program.as_os_str());
        let wrapper = self.wrapper.iter().map(OsString::as_os_str);
        wrapper.chain(program).chain(self.arguments.iter().map(OsString::as_os_str))
    }

    fn configure(&self, command: &mut Command) {
        command
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        if self.has_own_group {
            command.process_group(0);
        }
    }

    /// Appends it as arguments to `command`, which gets its environment.
    pub fn append_to(&self, command: &mut Command) {
        self.configure(command.args(self.words()));
    }

    /// Returns it as a command of the standard library, whose streams can be chosen.
    pub fn to_std(&self) -> Command {
        let mut words = self.words();
        let mut command = Command::new(words.next().expect("the program"));
        self.configure(command.args(words));
        command
    }

    /// Starts it.
    pub fn start(&self) -> TestProcess {
        TestProcess::start(&mut self.to_std())
    }

    /// Runs it to its end.
    #[track_caller]
    pub fn run(&self) -> Outcome {
        self.start().wait()
    }

    /// Runs it to its end, with this text on its standard input.
    #[track_caller]
    pub fn run_with_input(&self, text: &str) -> Outcome {
        let mut process = TestProcess::start(self.to_std().stdin(Stdio::piped()));
        let mut stdin = process.child.stdin.take().expect("a piped stdin");
        stdin.write_all(text.as_bytes()).expect("it reads its input");
        drop(stdin);
        process.wait()
    }

    /// Runs it with `--json` to its end, which has this exit code, and returns its document.
    #[track_caller]
    pub fn document(&self, code: i32) -> Value {
        self.clone().with(["--json"]).run().expect_code(code).json()
    }
}

/// A running command. It is killed when dropped.
#[derive(Debug)]
pub struct TestProcess {
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

impl TestProcess {
    /// Starts `command`, whose output is collected.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            stdout: Collected::from(child.stdout.take().expect("its stdout")),
            stderr: Collected::from(child.stderr.take().expect("its stderr")),
            child,
        }
    }

    /// Starts a process that does nothing, and ends by itself after ten minutes.
    pub fn idle() -> Self {
        Self::start(Command::new("sleep").arg("600"))
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard error so far.
    pub fn logged(&self) -> String {
        self.stderr.text()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it still runs");
    }

    /// Returns how it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }

    /// Waits until `is_reached`; fails if the command ends before.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut is_reached: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_reached() {
            let ended = self.ended();
            let log = || self.stderr.text();
            assert!(ended.is_none(), "{what}: it ended with {ended:?}: {}", log());
            assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}: {}", log());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until its standard error contains `text`.
    #[track_caller]
    pub fn wait_for_log(&mut self, text: &str) {
        let log = Arc::clone(&self.stderr.bytes);
        self.wait_until(text, || lossy(&log.lock().unwrap()).contains(text));
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(self) -> Outcome {
        self.wait_within(PATIENCE)
    }

    /// Waits for its end, which has to come within `patience`.
    #[track_caller]
    pub fn wait_within(self, patience: Duration) -> Outcome {
        let outcome = self.try_wait_within(patience);
        outcome.unwrap_or_else(|hangs| panic!("{hangs}"))
    }

    /// Waits for its end, or returns what it printed when that does not come within `patience`.
    ///
    /// # Errors
    /// When it hangs.
    pub fn try_wait_within(self, patience: Duration) -> Result<Outcome, String> {
        self.watch_within(patience, |_| {})
    }

    /// Calls `look` with its ID again and again until it ends.
    #[track_caller]
    pub fn watch(self, look: impl FnMut(u32)) -> Outcome {
        let outcome = self.watch_within(PATIENCE, look);
        outcome.unwrap_or_else(|hangs| panic!("{hangs}"))
    }

    fn watch_within(mut self, patience: Duration, mut look: impl FnMut(u32)) -> Result<Outcome, String> {
        let begun = Instant::now();
        let status = loop {
            look(self.child.id());
            if let Some(status) = self.ended() {
                break status;
            }
            if begun.elapsed() > patience {
                return Err(format!("it hangs: {}{}", self.stdout.text(), self.stderr.text()));
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        Ok(Outcome::new(status, self.stdout.finish(), self.stderr.finish()))
    }

    /// Kills it at once. Processes that it started may go on.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a thread reads of a stream.
#[derive(Debug)]
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collected {
    fn from(mut stream: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let read = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 8192];
            while let Ok(length) = stream.read(&mut piece)
                && length > 0
            {
                read.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn text(&self) -> String {
        lossy(&self.bytes.lock().unwrap())
    }

    fn finish(&mut self) -> String {
        self.reader.take().expect("its reader").join().expect("its bytes");
        self.text()
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// How a command ended, and what it printed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Outcome {
    /// Returns the outcome of a process with this status and output.
    pub fn new(status: ExitStatus, stdout: String, stderr: String) -> Self {
        Self { code: status.code().unwrap_or(-1), signal: status.signal(), stdout, stderr }
    }

    /// Returns whether it ended by itself with code 0.
    pub fn is_success(&self) -> bool {
        self.code == 0
    }

    /// Returns whether it panicked, or a signal ended it.
    pub fn broke_down(&self) -> bool {
        self.signal.is_some() || self.stderr.contains("panicked at")
    }

    /// Fails unless it ended with this code, without a panic.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self.assert_no_panic();
        self
    }

    /// Fails unless its standard error holds an error, and this text.
    #[track_caller]
    pub fn expect_error(self, text: &str) -> Self {
        assert!(self.stderr.contains("error: "), "{self:#?}");
        self.expect_stderr(&[text])
    }

    /// Fails unless its standard output holds each of `parts`.
    #[track_caller]
    pub fn expect_stdout(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stdout.contains(part), "{part:?} is missing: {self:#?}");
        }
        self
    }

    /// Fails unless its standard error holds each of `parts`.
    #[track_caller]
    pub fn expect_stderr(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is missing: {self:#?}");
        }
        self
    }

    /// Fails unless it ended with `code`, and one error that holds each of `parts`.
    #[track_caller]
    pub fn expect_one_error(self, code: i32, parts: &[&str]) -> Self {
        let ended = self.expect_code(code);
        let errors: Vec<&str> = ended
            .stderr
            .lines()
            .map(|line| line.trim_start_matches("stepvault: "))
            .filter(|line| line.starts_with("error: "))
            .collect();
        assert_eq!(errors.len(), 1, "one clear error: {}", ended.stderr);
        for part in parts {
            assert!(errors[0].contains(part), "{part:?} is missing: {}", ended.stderr);
        }
        ended
    }

    /// Fails unless a hint holds `part`.
    #[track_caller]
    pub fn expect_hint(self, part: &str) -> Self {
        let lines = self.stderr.lines();
        let mut hints = lines
            .map(|line| line.trim_start_matches("stepvault: "))
            .filter(|line| line.starts_with("  hint: "));
        let is_there = hints.any(|hint| hint.contains(part));
        assert!(is_there, "no hint holds {part:?}: {}", self.stderr);
        self
    }

    /// Fails if it panicked.
    #[track_caller]
    pub fn assert_no_panic(&self) {
        assert!(!self.stderr.contains("panicked at"), "{self:#?}");
    }

    /// Returns the only document on its standard output.
    #[track_caller]
    pub fn json(&self) -> Value {
        let document = self.try_json().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(document["format"], 1, "{document:#}");
        document
    }

    /// Returns the only document on its standard output, or why there is none.
    ///
    /// # Errors
    /// When its standard output is no JSON.
    pub fn try_json(&self) -> Result<Value, String> {
        serde_json::from_str(&self.stdout).map_err(|error| format!("no document ({error}): {self:?}"))
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self::new(output.status, lossy(&output.stdout), lossy(&output.stderr))
    }
}
