//! Vaults, staging directories, configurations and sockets prepared by another user of the machine. The tests switch to
//! that user, so they need root; without root they print that they are skipped.

use std::os::unix::fs::{chown, lchown, symlink};
use std::path::Path;
use std::process::Command;

use stepvault_testkit::tree::set_mode;

use crate::support::{Outcome, Place, TestCommand, wait_until};

/// The user who runs stepvault.
const VICTIM: u32 = 64_001;
/// Another one.
const ATTACKER: u32 = 64_002;

/// A directory such as `/scratch`: everybody may write there, and nobody may replace what belongs to somebody else.
struct Scratch {
    place: Place,
}

impl Scratch {
    /// `None`, and reports it, where nobody else can be become.
    fn new() -> Option<Self> {
        let place = Place::on_disk();
        place.command_of(VICTIM, &[])?;
        set_mode(place.root(), 0o1777);
        set_mode(&place.path("tmp"), 0o1777);
        let scratch = Self { place };
        scratch.directory("victim", VICTIM);
        scratch.directory("attacker", ATTACKER);
        scratch.directory("archive", VICTIM);
        scratch.checkpoint("victim/out/step_5", VICTIM, "genuine");
        scratch.run(VICTIM, &["push", "victim/out/step_5", "--local", "victim/vault"]).expect_code(0);
        scratch.place.remove("victim/vault");
        scratch.place.remove("victim/out");
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

    fn command(&self, user: u32, arguments: &[&str]) -> TestCommand {
        let mut command = self.place.command_of(user, arguments).unwrap();
        let home = if user == ATTACKER { "attacker" } else { "victim" };
        command.env("HOME", self.path(home));
        command
    }

    /// Runs as that user, against the victim's archive.
    fn run(&self, user: u32, arguments: &[&str]) -> Outcome {
        let remote = format!("store=file://{}", self.path("archive").display());
        let more = ["--remote", &remote, "--run", "mine"];
        // What stands behind `--` is the trainer's.
        let end = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
        let (own, rest) = arguments.split_at(end);
        self.command(user, &[own, &more, rest].concat()).run()
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
        self.command(ATTACKER, &arguments).arg(own_store).run().expect_code(0);
        // Opened to everybody, as an attacker who plants it would do.
        let opened = Command::new("chmod").args(["-R", "go+rX"]).arg(&vault).status();
        assert!(opened.unwrap().success());
    }

    fn restored(&self) -> Vec<String> {
        let found = ["step_5", "step_9"].map(|step| self.path("victim/in").join(step).join("model.bin"));
        found.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect()
    }
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
        scratch.run(VICTIM, arguments).expect_code(1).expect_error(refused).expect_stderr(&["--local DIR"]);
    }
    let left: Vec<_> = std::fs::read_dir(scratch.path("victim")).unwrap().collect();
    assert!(left.is_empty(), "neither restored nor started: {left:?}");
    scratch.checkpoint("victim/step_6", VICTIM, "mine");
    scratch.run(VICTIM, &["push", "victim/step_6"]).expect_code(1).expect_error(refused);
    // Named, it is no better.
    let named = scratch.path(".stepvault");
    for command in [&["list"] as &[&str], &["verify"], &["show", "9"]] {
        let arguments = [command, &["--local", named.to_str().unwrap()]].concat();
        scratch.run(VICTIM, &arguments).expect_code(1).expect_error(refused);
    }
    // Root is told who could use it.
    scratch
        .run(0, &["list", "--local", named.to_str().unwrap()])
        .expect_code(1)
        .expect_stderr(&["setpriv --reuid=64002"]);
    // With a vault of one's own the genuine step comes.
    scratch.run(VICTIM, &["restore", "--into", "victim/in", "--local", "victim/own"]).expect_code(0);
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
    scratch
        .run(VICTIM, &push)
        .expect_code(1)
        .expect_error("/team can be written to by group 64002")
        .expect_stderr(&["run chmod g-w "]);
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
    let list = ["list", "--local", "team/vault", "--run", "mine", "--remote", &remote];
    scratch.command(VICTIM, &list).env("STEPVAULT_LOCAL_ALLOW_SHARED_PARENTS", "true").run().expect_code(0);
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
    scratch.run(VICTIM, &["restore", "--into", "victim"]).expect_code(0);
    assert_eq!(std::fs::read_to_string(scratch.path("victim/step_5/model.bin")).unwrap(), "genuine");
    assert_eq!(std::fs::read_dir(scratch.path(".stepvault/restore")).unwrap().count(), 0);
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
    assert_eq!(std::fs::read_dir(scratch.path("victim/private")).unwrap().count(), 0);
}

#[test]
fn a_configuration_of_another_user_counts_only_when_it_is_named() {
    let Some(scratch) = Scratch::new() else { return };
    let file = scratch.path("stepvault.toml");
    let show = |user: u32, arguments: &[&str]| {
        scratch.command(user, &[&["config", "show"], arguments].concat()).run()
    };
    std::fs::write(&file, "[remote.x]\nurl = \"gs://b\"\nendpoint = \"https://evil.example\"\n").unwrap();
    set_mode(&file, 0o644);
    chown(&file, Some(ATTACKER), Some(ATTACKER)).unwrap();
    for user in [VICTIM, 0] {
        show(user, &[])
            .expect_code(2)
            .expect_error("stepvault.toml")
            .expect_stderr(&["belongs to user 64002", "pass --config FILE"]);
    }
    show(VICTIM, &["--config", "stepvault.toml"]).expect_code(0);
    scratch.command(VICTIM, &["config", "show"]).env("STEPVAULT_CONFIG", &file).run().expect_code(0);
    // One's own, and root's, count.
    for owner in [VICTIM, 0] {
        chown(&file, Some(owner), Some(owner)).unwrap();
        show(VICTIM, &[]).expect_code(0);
    }
    // What anybody may write to was perhaps written by somebody else.
    set_mode(&file, 0o666);
    show(VICTIM, &[]).expect_code(2).expect_error("it can be written to by every user");
    set_mode(&file, 0o644);
    // So was one in a directory of somebody else's, where it can be replaced.
    chown(scratch.path(""), Some(ATTACKER), None).unwrap();
    show(VICTIM, &[]).expect_code(2).expect_error("belongs to user 64002");
    chown(scratch.path(""), Some(0), None).unwrap();
    // And in the home.
    std::fs::remove_file(&file).unwrap();
    scratch.directory("victim/.config/stepvault", ATTACKER);
    std::fs::write(scratch.path("victim/.config/stepvault/stepvault.toml"), "").unwrap();
    show(VICTIM, &[]).expect_code(2).expect_error("/stepvault belongs to user 64002");
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
    scratch.place.write("attacker.toml", configuration("attacker"));
    scratch.place.write("victim.toml", configuration("victim"));
    let agent = scratch.command(ATTACKER, &["agent", "--config", "attacker.toml"]);
    let _agent = agent.start();
    wait_until("the agent starts", || socket.exists());
    set_mode(&socket, 0o666);
    for user in [VICTIM, 0] {
        let arguments = ["drain", "--config", "victim.toml"];
        scratch
            .command(user, &arguments)
            .run()
            .expect_stderr(&["refusing to use the socket", "user 64002 listens on it"]);
    }
}
