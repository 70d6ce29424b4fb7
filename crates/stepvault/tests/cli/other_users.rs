//! Vaults, staging directories, configurations and sockets prepared by another user of the machine. The tests switch to
//! that user, so they need root; without root they print that they are skipped.

use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Outcome, Place};

/// The user who runs stepvault.
const VICTIM: u32 = 64_001;
/// Another one.
const ATTACKER: u32 = 64_002;

/// A directory such as `/scratch`: everybody may write there, and nobody may replace what belongs to somebody else.
struct Scratch {
    place: Place,
}

impl Scratch {
    /// `None`, and says so, where nobody else can be become.
    fn new() -> Option<Self> {
        let is_reachable = Path::new(env!("CARGO_BIN_EXE_stepvault"))
            .ancestors()
            .skip(1)
            .all(|above| mode_of(above) & 0o001 != 0);
        if !rustix::process::geteuid().is_root() || !is_reachable {
            eprintln!("not run: only the superuser can become other users, who have to reach the program");
            return None;
        }
        let place = Place::new();
        set_mode(&place.path(""), 0o1777);
        set_mode(&place.path("tmp"), 0o1777);
        let scratch = Self { place };
        scratch.directory("victim", VICTIM);
        scratch.directory("attacker", ATTACKER);
        scratch.directory("archive", VICTIM);
        scratch.checkpoint("victim/out/step_5", VICTIM, "genuine");
        scratch
            .run(VICTIM, &["push", "victim/out/step_5", "--local", "victim/vault"])
            .expect_code(0);
        std::fs::remove_dir_all(scratch.path("victim/vault")).unwrap();
        std::fs::remove_dir_all(scratch.path("victim/out")).unwrap();
        Some(scratch)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.place.path(name)
    }

    fn directory(&self, name: &str, owner: u32) {
        std::fs::create_dir_all(self.path(name)).unwrap();
        chown(self.path(name), Some(owner), Some(owner)).unwrap();
        set_mode(&self.path(name), 0o755);
    }

    fn checkpoint(&self, name: &str, owner: u32, content: &str) {
        self.directory(Path::new(name).parent().unwrap().to_str().unwrap(), owner);
        self.directory(name, owner);
        let file = self.path(name).join("model.bin");
        std::fs::write(&file, content).unwrap();
        chown(&file, Some(owner), Some(owner)).unwrap();
    }

    fn command(&self, user: u32, arguments: &[&str]) -> Command {
        let mut command = self.place.command(arguments);
        let home = if user == ATTACKER { "attacker" } else { "victim" };
        command.uid(user).gid(user).env("HOME", self.path(home));
        command
    }

    /// Runs as that user, against the victim's archive.
    fn run(&self, user: u32, arguments: &[&str]) -> Outcome {
        let remote = format!("store=file://{}", self.path("archive").display());
        let more = ["--remote", &remote, "--run", "mine"];
        // What stands behind `--` is the trainer's.
        let end = arguments
            .iter()
            .position(|word| *word == "--")
            .unwrap_or(arguments.len());
        let (own, rest) = arguments.split_at(end);
        Outcome::of(self.command(user, &[own, &more, rest].concat()).output().unwrap())
    }

    /// What the attacker leaves beside the victim's directory: a vault with a step of a higher attempt.
    fn plant_vault(&self) {
        self.checkpoint("attacker/out/step_9", ATTACKER, "planted");
        let vault = self.path(".stepvault");
        let arguments = [
            "push",
            "attacker/out/step_9",
            "--run",
            "mine",
            "--attempt",
            "9",
            "--local",
            vault.to_str().unwrap(),
            "--remote",
        ];
        let own_store = format!("file://{}", self.path("attacker/store").display());
        let mut command = self.command(ATTACKER, &[&arguments as &[&str], &[own_store.as_str()]].concat());
        Outcome::of(command.output().unwrap()).expect_code(0);
        // Opened to everybody, as whoever plants it would.
        let opened = Command::new("chmod").args(["-R", "go+rX"]).arg(&vault).status();
        assert!(opened.unwrap().success());
    }

    fn restored(&self) -> Vec<String> {
        let found = ["step_5", "step_9"].map(|step| self.path("victim/in").join(step).join("model.bin"));
        found
            .iter()
            .filter_map(|path| std::fs::read_to_string(path).ok())
            .collect()
    }
}

fn mode_of(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_planted_vault_is_refused_by_every_command_that_would_use_it() {
    let Some(scratch) = Scratch::new() else { return };
    scratch.plant_vault();
    let refused = "belongs to user 64002, who could plant a checkpoint for a restore";
    // `victim` is where the steps are to stand, and so `.stepvault` is beside it.
    for arguments in [
        &["restore", "--into", "victim"] as &[&str],
        &["run", "--into", "victim", "--", "touch", "victim/started"],
    ] {
        let outcome = scratch
            .run(VICTIM, arguments)
            .expect_code(1)
            .expect_error(refused);
        assert!(outcome.stderr.contains("--local DIR"), "{outcome:#?}");
    }
    let left: Vec<_> = std::fs::read_dir(scratch.path("victim")).unwrap().collect();
    assert!(left.is_empty(), "neither restored nor started: {left:?}");
    scratch.checkpoint("victim/step_6", VICTIM, "mine");
    scratch
        .run(VICTIM, &["push", "victim/step_6"])
        .expect_code(1)
        .expect_error(refused);
    // Named, it is no better.
    let named = scratch.path(".stepvault");
    for command in [&["list"] as &[&str], &["verify"], &["show", "9"]] {
        let arguments = [command, &["--local", named.to_str().unwrap()]].concat();
        scratch
            .run(VICTIM, &arguments)
            .expect_code(1)
            .expect_error(refused);
    }
    // Root is told who could use it.
    let outcome = scratch
        .run(0, &["list", "--local", named.to_str().unwrap()])
        .expect_code(1);
    assert!(outcome.stderr.contains("setpriv --reuid=64002"), "{outcome:#?}");
    // With a vault of one's own the genuine step comes.
    scratch
        .run(
            VICTIM,
            &["restore", "--into", "victim/in", "--local", "victim/own"],
        )
        .expect_code(0);
    assert_eq!(scratch.restored(), ["genuine"]);
}

#[test]
fn a_vault_that_others_could_replace_is_refused_unless_that_is_configured() {
    let Some(scratch) = Scratch::new() else { return };
    scratch.directory("team", VICTIM);
    set_mode(&scratch.path("team"), 0o775);
    chown(scratch.path("team"), None, Some(ATTACKER)).unwrap();
    scratch.checkpoint("team/out/step_6", VICTIM, "genuine");
    let push = ["push", "team/out/step_6", "--local", "team/vault"];
    let outcome = scratch
        .run(VICTIM, &push)
        .expect_code(1)
        .expect_error("/team can be written to by group 64002");
    assert!(outcome.stderr.contains("run chmod g-w "), "{outcome:#?}");
    assert!(!scratch.path("team/vault").exists());
    // The group that is the user's alone is nobody else, as with a umask of 002.
    chown(scratch.path("team"), None, Some(VICTIM)).unwrap();
    scratch.run(VICTIM, &push).expect_code(0);
    // Of another owner, and trusted with it.
    chown(scratch.path("team"), Some(ATTACKER), Some(ATTACKER)).unwrap();
    set_mode(&scratch.path("team"), 0o777);
    scratch
        .run(VICTIM, &["list", "--local", "team/vault"])
        .expect_code(1)
        .expect_error("/team belongs to user 64002");
    let remote = format!("store=file://{}", scratch.path("archive").display());
    let list = [
        "list",
        "--local",
        "team/vault",
        "--run",
        "mine",
        "--remote",
        &remote,
    ];
    let mut command = scratch.command(VICTIM, &list);
    let allowed = command
        .env("STEPVAULT_LOCAL_ALLOW_SHARED_PARENTS", "true")
        .output();
    Outcome::of(allowed.unwrap()).expect_code(0);
}

#[test]
fn what_is_planted_where_steps_are_staged_is_neither_used_nor_followed() {
    let Some(scratch) = Scratch::new() else { return };
    // A directory of the attacker's, open to all.
    scratch.directory(".stepvault", ATTACKER);
    scratch.directory(".stepvault/restore", ATTACKER);
    for name in [".stepvault", ".stepvault/restore"] {
        set_mode(&scratch.path(name), 0o777);
    }
    scratch
        .run(VICTIM, &["restore", "--into", "victim"])
        .expect_code(0);
    assert_eq!(
        std::fs::read_to_string(scratch.path("victim/step_5/model.bin")).unwrap(),
        "genuine"
    );
    assert_eq!(
        std::fs::read_dir(scratch.path(".stepvault/restore"))
            .unwrap()
            .count(),
        0
    );
    std::fs::remove_dir_all(scratch.path(".stepvault")).unwrap();
    // A link to a directory of the victim's own.
    scratch.directory("victim/private", VICTIM);
    symlink(scratch.path("victim/private"), scratch.path(".stepvault")).unwrap();
    lchown(scratch.path(".stepvault"), Some(ATTACKER), Some(ATTACKER)).unwrap();
    scratch.checkpoint("victim/step_7", VICTIM, "mine");
    scratch
        .run(VICTIM, &["push", "victim/step_7"])
        .expect_code(1)
        .expect_error(".stepvault is a symbolic link owned by user 64002");
    assert_eq!(
        std::fs::read_dir(scratch.path("victim/private")).unwrap().count(),
        0
    );
}

#[test]
fn a_configuration_of_another_user_counts_only_when_it_is_named() {
    let Some(scratch) = Scratch::new() else { return };
    let file = scratch.path("stepvault.toml");
    let show = |user: u32, arguments: &[&str]| {
        let mut command = scratch.command(user, &[&["config", "show"], arguments].concat());
        Outcome::of(command.output().unwrap())
    };
    std::fs::write(
        &file,
        "[remote.x]\nurl = \"gs://b\"\nendpoint = \"https://evil.example\"\n",
    )
    .unwrap();
    set_mode(&file, 0o644);
    chown(&file, Some(ATTACKER), Some(ATTACKER)).unwrap();
    for user in [VICTIM, 0] {
        let outcome = show(user, &[]).expect_code(2).expect_error("stepvault.toml");
        assert!(outcome.stderr.contains("belongs to user 64002"), "{outcome:#?}");
        assert!(outcome.stderr.contains("pass --config FILE"), "{outcome:#?}");
    }
    show(VICTIM, &["--config", "stepvault.toml"]).expect_code(0);
    let named = scratch
        .command(VICTIM, &["config", "show"])
        .env("STEPVAULT_CONFIG", &file)
        .output();
    Outcome::of(named.unwrap()).expect_code(0);
    // One's own, and root's, count.
    for owner in [VICTIM, 0] {
        chown(&file, Some(owner), Some(owner)).unwrap();
        show(VICTIM, &[]).expect_code(0);
    }
    // What anybody may write to was perhaps written by somebody else.
    set_mode(&file, 0o666);
    show(VICTIM, &[])
        .expect_code(2)
        .expect_error("it can be written to by every user");
    set_mode(&file, 0o644);
    // So was one in a directory of somebody else's, where it can be replaced.
    chown(scratch.path(""), Some(ATTACKER), None).unwrap();
    show(VICTIM, &[])
        .expect_code(2)
        .expect_error("belongs to user 64002");
    chown(scratch.path(""), Some(0), None).unwrap();
    // And in the home.
    std::fs::remove_file(&file).unwrap();
    scratch.directory("victim/.config/stepvault", ATTACKER);
    std::fs::write(scratch.path("victim/.config/stepvault/stepvault.toml"), "").unwrap();
    show(VICTIM, &[])
        .expect_code(2)
        .expect_error("/stepvault belongs to user 64002");
}

/// An agent of another user; ended when dropped.
struct ForeignAgent(Child);

impl Drop for ForeignAgent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_agent_of_another_user_is_not_believed() {
    let Some(scratch) = Scratch::new() else { return };
    scratch.directory("attacker/out", ATTACKER);
    let socket = scratch.path("agent.sock");
    let configuration = |user: &str| {
        let url = format!("file://{}", scratch.path(&format!("{user}/store")).display());
        format!(
            "[local]\ndirectory = \"{user}/vault\"\n[agent]\ncontrol-socket = {socket:?}\n\
             [remote.store]\nurl = {url:?}\n[run.mine]\nwatch = \"attacker/out\"\n"
        )
    };
    std::fs::write(scratch.path("attacker.toml"), configuration("attacker")).unwrap();
    std::fs::write(scratch.path("victim.toml"), configuration("victim")).unwrap();
    let mut agent = scratch.command(ATTACKER, &["agent", "--config", "attacker.toml"]);
    let _agent = ForeignAgent(agent.stderr(Stdio::null()).spawn().unwrap());
    let begun = Instant::now();
    while !socket.exists() {
        assert!(
            begun.elapsed() < Duration::from_mins(1),
            "the agent does not start"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    set_mode(&socket, 0o666);
    for user in [VICTIM, 0] {
        let arguments = ["drain", "--config", "victim.toml"];
        let outcome = Outcome::of(scratch.command(user, &arguments).output().unwrap());
        assert!(
            outcome.stderr.contains("refusing to use the socket")
                && outcome.stderr.contains("user 64002 listens on it"),
            "{outcome:#?}"
        );
    }
}
