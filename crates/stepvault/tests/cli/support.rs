//! A directory of its own for each test, and the program run in it.

use std::path::{Path, PathBuf};

use serde_json::Value;
use stepvault_testkit::process::PATH;
pub(crate) use stepvault_testkit::process::{Outcome, TestCommand, TestProcess, wait_until};
use stepvault_testkit::tree::{self, fast_directory, files_below};
use stepvault_testkit::users::become_other_users;
use tempfile::TempDir;

/// Checks each item on a thread of its own: most checks wait for processes and quiet times.
pub fn at_once<Item: Send>(items: impl IntoIterator<Item = Item>, check: impl Fn(Item) + Sync) {
    std::thread::scope(|scope| {
        for item in items {
            scope.spawn(|| check(item));
        }
    });
}

/// The built program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_stepvault");
/// Keys for stores that are never reached.
pub(crate) const ANY_KEYS: [(&str, &str); 2] =
    [("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "secret")];

/// A temporary directory with an empty remote in it, and no configuration of the machine's in sight.
#[derive(Debug)]
pub(crate) struct Place {
    directory: TempDir,
}

impl Place {
    /// A place whose files need no disk.
    pub(crate) fn new() -> Self {
        Self::of(fast_directory())
    }

    /// A place on the disk, for what depends on its filesystem.
    pub(crate) fn on_disk() -> Self {
        Self::of(tempfile::tempdir().unwrap())
    }

    /// A place on the filesystem of `directory`.
    pub(crate) fn within(directory: &Path) -> Self {
        Self::of(tempfile::tempdir_in(directory).unwrap())
    }

    fn of(directory: TempDir) -> Self {
        // Other users go through it.
        tree::set_mode(directory.path(), 0o755);
        for name in ["tmp", "remote"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Writes a file, and the directories above it.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        tree::write(&path, text);
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Removes a file or directory, if it is there.
    pub(crate) fn remove(&self, name: &str) {
        tree::remove(&self.path(name));
    }

    /// The URL of the remote in this place.
    pub(crate) fn remote(&self) -> String {
        format!("file://{}", self.path("remote").display())
    }

    /// A command of the program, run in this place.
    pub(crate) fn command<A: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> TestCommand {
        let mut command = TestCommand::new(PROGRAM, self.root()).with(arguments);
        command.env("TMPDIR", self.path("tmp"));
        command
    }

    /// A command that another user runs; `None`, and reports it, where that cannot be done.
    pub(crate) fn command_of(&self, user: u32, arguments: &[&str]) -> Option<TestCommand> {
        let copy = self.path("stepvault");
        let can = become_other_users(Path::new(PROGRAM), &copy);
        can.then(|| self.command(arguments).program(copy).user(user).clone())
    }

    /// A line of a shell that finds the program.
    pub(crate) fn shell(&self, line: &str) -> TestCommand {
        let directory = Path::new(PROGRAM).parent().unwrap().display();
        let mut shell = self.command(["-c", line]);
        shell.program("sh").env("PATH", format!("{directory}:{PATH}"));
        shell
    }

    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        self.command(arguments).run()
    }

    /// Runs against this place's remote and the run `demo/a`.
    #[track_caller]
    pub(crate) fn run_here(&self, arguments: &[&str]) -> Outcome {
        self.command_here(arguments).run()
    }

    fn command_here(&self, arguments: &[&str]) -> TestCommand {
        let remote = self.remote();
        self.command(arguments).with(["--remote", &remote, "--run", "demo/a"])
    }

    /// Runs with `--json`; the exit code must be `code`.
    #[track_caller]
    pub(crate) fn document(&self, code: i32, arguments: &[&str]) -> Value {
        self.command(arguments).document(code)
    }

    /// The same, against this place's remote and the run `demo/a`.
    #[track_caller]
    pub(crate) fn document_here(&self, code: i32, arguments: &[&str]) -> Value {
        self.command_here(arguments).document(code)
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub(crate) fn succeed(&self, arguments: &[&str]) {
        self.run(arguments).expect_code(0);
    }

    /// The same, against this place's remote and the run `demo/a`.
    #[track_caller]
    pub(crate) fn succeed_here(&self, arguments: &[&str]) {
        self.run_here(arguments).expect_code(0);
    }

    /// Starts an agent that looks at its directories often.
    pub(crate) fn start_agent(&self, arguments: &[&str], variables: &[(&str, &str)]) -> TestProcess {
        self.command([&["agent"], arguments].concat())
            .env("STEPVAULT_AGENT_POLL_INTERVAL", "200ms")
            .envs(variables.iter().copied())
            .start()
    }

    /// What a running agent says of itself in `status --json`, once it answers.
    pub(crate) fn agent_status(&self, arguments: &[&str]) -> Value {
        let mut answer = Value::Null;
        wait_until("the agent answers", || {
            let status = self.run(&[&["status", "--json"], arguments].concat());
            answer = status.try_json().unwrap_or_default()["agent"].take();
            !answer.is_null()
        });
        answer
    }

    /// A checkpoint with two files; `content` makes it differ from others.
    pub(crate) fn checkpoint(&self, name: &str, content: &str) -> PathBuf {
        let directory = self.path("checkpoints").join(name);
        tree::write(&directory.join("model.bin"), content.repeat(1000));
        let state = format!("{{\"loss\": {}}}", content.len());
        tree::write(&directory.join("state.json"), state);
        directory
    }

    /// Gives a finished checkpoint its name in a directory, at once.
    pub(crate) fn save_into(&self, directory: &str, name: &str) {
        let made = self.checkpoint(name, name);
        std::fs::rename(made, self.path(directory).join(name)).unwrap();
    }

    /// Pushes `step_N` for each number, and forgets the local copies.
    pub(crate) fn push_steps(&self, steps: &[u64]) {
        for step in steps {
            let name = format!("step_{step}");
            self.checkpoint(&name, &name);
            let metric = format!("loss=0.{step}");
            self.succeed_here(&["push", &format!("checkpoints/{name}"), "--metric", &metric]);
        }
        self.remove(".stepvault");
    }

    /// Where a file of a pushed step stands on the remote.
    pub(crate) fn remote_file(&self, step: &str, name: &str) -> PathBuf {
        let number: u64 = step.rsplit('_').next().unwrap().parse().unwrap();
        let label = format!("{number:012}.a1");
        self.path("remote/demo/a").join(label).join(step).join(name)
    }

    /// Where the commit of a step stands on the remote.
    pub(crate) fn commit(&self, step: u64, attempt: u32) -> PathBuf {
        self.path(&format!("remote/demo/a/.stepvault/commits/{step:012}.a{attempt}.json"))
    }
}

/// Flips the middle byte of a file.
pub(crate) fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] = !bytes[middle];
    std::fs::write(path, bytes).unwrap();
}

/// The only file below a directory whose path ends so.
pub(crate) fn file_below(directory: &Path, ending: &str) -> PathBuf {
    let mut found = files_below(directory);
    found.retain(|path| path.ends_with(ending));
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found.remove(0)
}

/// The members of a list in a document.
#[track_caller]
pub(crate) fn list<'a>(document: &'a Value, member: &str) -> &'a [Value] {
    let list = document[member].as_array();
    list.unwrap_or_else(|| panic!("no list {member}: {document:#}"))
}

/// The numbers of the steps that a `list --json` shows.
pub(crate) fn listed_steps(document: &Value) -> Vec<u64> {
    let steps = list(document, "steps").iter();
    steps.map(|step| step["step"].as_u64().unwrap()).collect()
}

/// Fails unless a document has these members with these values, among others.
#[track_caller]
pub(crate) fn assert_members(document: &Value, expected: &Value) {
    for (member, value) in expected.as_object().unwrap() {
        assert_eq!(&document[member], value, "{member}: {document:#}");
    }
}
