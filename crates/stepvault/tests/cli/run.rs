//! `run` with trainers of a few lines of shell, from restore to drain.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Outcome, Place};

/// Longer than anything takes on a loaded machine.
const PATIENCE: Duration = Duration::from_mins(2);

const CONFIGURATION: &str =
    "[run.\"demo/a\"]\nwatch = \"out\"\ncomplete = \"rename\"\n[agent]\npoll-interval = \"200ms\"\n";

/// A place with a configuration whose trainer writes to `out`, which is there.
fn place(more: &str) -> Place {
    let place = Place::new();
    std::fs::write(place.path("stepvault.toml"), format!("{CONFIGURATION}{more}")).unwrap();
    std::fs::create_dir(place.path("out")).unwrap();
    place
}

/// Steps on the remote, and a node that is new.
fn place_with_steps(steps: &[u64], more: &str) -> Place {
    let place = place(more);
    place.push_steps(steps);
    std::fs::remove_dir_all(place.path("checkpoints")).unwrap();
    place
}

/// The arguments of a run of this script.
fn arguments<'a>(remote: &'a str, options: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["run", "--remote", remote, "--node", "node-0"];
    arguments.extend(options);
    arguments.extend(["--", "sh", "-c", script]);
    arguments
}

fn run(place: &Place, options: &[&str], script: &str) -> Outcome {
    place.run(&arguments(&place.remote(), options, script))
}

/// A run that goes on while the test does something.
struct Running {
    child: Option<Child>,
    place: PathBuf,
}

impl Running {
    fn start(place: &Place, options: &[&str], script: &str) -> Self {
        let remote = place.remote();
        let mut command = place.command(&arguments(&remote, options, script));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        Self {
            child: Some(command.spawn().unwrap()),
            place: place.path(""),
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        let sent = std::process::Command::new("kill")
            .args([&format!("-{name}"), &id])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Waits for a file of the place.
    fn until(&self, file: &str) {
        until(file, || self.place.join(file).exists());
    }

    /// Ends it without a chance to do anything. Its trainer still has its streams.
    fn killed(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn ended(mut self) -> Outcome {
        until("the end", || {
            let child = self.child.as_mut().unwrap();
            child.try_wait().unwrap().is_some()
        });
        Outcome::of(self.child.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn status(place: &Place) -> Value {
    place
        .run_here(&["status", "--json", "--local", ".stepvault", "--node", "node-0"])
        .expect_code(0)
        .json()
}

/// What the latest trainer's start came to.
fn last_ending(place: &Place) -> String {
    let status = status(place);
    let starts = status["starts"].as_array().unwrap();
    let latest = starts.iter().find(|start| start["who"] == "trainer");
    latest.unwrap()["ending"].as_str().unwrap().to_owned()
}

#[test]
fn the_newest_step_is_restored_and_what_the_trainer_leaves_is_safe_when_it_ends() {
    let place = place_with_steps(&[1, 2], "");
    let script = "echo step=$STEPVAULT_RESTORED_STEP path=$STEPVAULT_RESTORED_PATH own=$OWN; \
                  test -f out/step_2/model.bin || exit 9; read line; echo $line; echo to-stderr >&2; \
                  mkdir out/tmp-3; echo weights > out/tmp-3/model.bin; mv out/tmp-3 out/step_3; exit 7";
    let remote = place.remote();
    let mut command = place.command(&arguments(&remote, &[], script));
    let mut child = command
        .env("OWN", "kept")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"a line\n").unwrap();
    let outcome = Outcome::of(child.wait_with_output().unwrap()).expect_code(7);
    let path = place.path("out/step_2").canonicalize().unwrap();
    assert_eq!(
        outcome.stdout,
        format!("step=2 path={} own=kept\na line\n", path.display())
    );
    for part in [
        "stepvault: restored step 2 (attempt 1) of 'demo/a'",
        "to-stderr\n",
        "stepvault: the trainer ended: exit 7",
    ] {
        assert!(outcome.stderr.contains(part), "{part}: {outcome:#?}");
    }
    assert!(place.remote_file("step_3", "model.bin").exists(), "{outcome:#?}");
    assert_eq!(last_ending(&place), "exit 7");
}

#[test]
fn a_first_start_begins_anew_and_quiet_is_silent() {
    let place = place("");
    let outcome = run(
        &place,
        &["-q"],
        "echo [$STEPVAULT_RESTORED_STEP][$STEPVAULT_RESTORED_PATH]",
    )
    .expect_code(0);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("[][]\n", ""));
    let outcome = run(&place, &[], "kill -USR1 $$").expect_code(138);
    assert!(outcome.stderr.contains("this is the first start"), "{outcome:#?}");
    assert!(
        outcome.stderr.contains("the trainer ended: signal 10"),
        "{outcome:#?}"
    );
}

#[test]
fn without_a_configuration_a_directory_is_enough() {
    let place = Place::new();
    std::fs::create_dir(place.path("out")).unwrap();
    let mut command = place.command(&[
        "run",
        "--remote",
        &place.remote(),
        "--run",
        "demo/a",
        "--into",
        "out",
        "--",
        "true",
    ]);
    Outcome::of(command.output().unwrap()).expect_code(0);
    let status = status(&place);
    assert_eq!(
        (&status["starts"][1]["who"], &status["starts"][1]["ending"]),
        (&"trainer".into(), &"exit 0".into())
    );
}

#[test]
fn what_cannot_be_had_is_not_begun_anew() {
    let place = place_with_steps(&[1], "");
    std::fs::write(place.remote_file("step_1", "model.bin"), "damaged").unwrap();
    let refused = run(&place, &[], "touch started").expect_code(11);
    assert!(refused.stderr.contains("--start-anyway"), "{refused:#?}");
    assert!(!place.path("started").exists());
    assert!(
        last_ending(&place).starts_with("stepvault failed: no valid checkpoint: "),
        "{}",
        last_ending(&place)
    );
    let gone = "s3://b/p?endpoint=http://127.0.0.1:1&retry-deadline=1s";
    let options = [
        "run", "--remote", gone, "--local", "other", "--", "touch", "started",
    ];
    let mut command = place.command(&options);
    command
        .env("AWS_ACCESS_KEY_ID", "a")
        .env("AWS_SECRET_ACCESS_KEY", "b")
        .env("AWS_REGION", "r");
    command.env("STEPVAULT_AGENT_DRAIN_DEADLINE", "1s");
    Outcome::of(command.output().unwrap()).expect_code(12);
    assert!(!place.path("started").exists());
    let outcome = run(&place, &["--start-anyway"], "touch started; exit 3").expect_code(3);
    assert!(
        outcome
            .stderr
            .contains("the trainer is started without a restored step: "),
        "{outcome:#?}"
    );
    assert!(place.path("started").exists());
    place
        .run(&["run", "--json", "--run", "a", "--", "true"])
        .expect_code(2);
    let unknown = place.run(&[
        "run",
        "--remote",
        &place.remote(),
        "--start-anyway",
        "--",
        "/no/such",
    ]);
    unknown
        .expect_code(2)
        .expect_error("cannot start the trainer: /no/such: ");
}

#[test]
fn a_step_that_the_trainer_never_survives_is_passed_over_and_the_loop_is_named() {
    let place = place_with_steps(&[1, 2], "[restart]\nloop-starts = 3\n");
    let crash = "test $STEPVAULT_RESTORED_STEP = 2 && exit 1; exit 5";
    run(&place, &[], crash).expect_code(1);
    run(&place, &[], crash).expect_code(1);
    let third = run(&place, &[], "kill -SEGV $$").expect_code(139);
    let named = "warning: restart loop: the trainer was started 3 times within 10 min on node-0; the last starts ended \
                 with: exit 1, exit 1\n";
    assert!(third.stderr.contains(named), "{third:#?}");
    let reason =
        "restored 3 times, and the trainer crashed within 5 min each time (exit 1, exit 1, signal 11)";
    let shown = status(&place);
    assert_eq!(
        shown["demoted"],
        serde_json::json!([{ "step": 2, "attempt": 1, "reason": reason }])
    );
    assert_eq!(shown["restart_loops"][0]["starts"], 3);

    // A new disk knows it from the remote.
    std::fs::remove_dir_all(place.path(".stepvault")).unwrap();
    std::fs::remove_dir_all(place.path("out")).unwrap();
    std::fs::create_dir(place.path("out")).unwrap();
    let restored = place
        .run_here(&["restore", "--into", "by-hand", "--local", "none"])
        .expect_code(0);
    let passed_over = format!("skipped step 2 (attempt 1): {reason}\nto restore step 2 anyway: --step 2\n");
    assert!(restored.stdout.starts_with(&passed_over), "{restored:#?}");
    assert!(place.path("by-hand/step_1").exists() && !place.path("by-hand/step_2").exists());
    let outcome = run(&place, &[], crash).expect_code(5);
    assert!(
        outcome
            .stderr
            .contains(&format!("skipped step 2 (attempt 1): {reason}")),
        "{outcome:#?}"
    );
    let asked_for = run(&place, &["--step", "2"], crash).expect_code(1);
    assert!(!asked_for.stderr.contains("skipped step 2"), "{asked_for:#?}");
}

#[test]
fn sigterm_is_passed_on_and_what_the_trainer_saves_last_is_safe() {
    let place = place("");
    // The shell does not wait by itself for what a trap interrupts.
    let script = "trap 'mkdir out/tmp-5; echo last > out/tmp-5/model.bin; mv out/tmp-5 out/step_5; exit 0' TERM; \
                  touch ready; while :; do sleep 0.1; done";
    let running = Running::start(&place, &[], script);
    running.until("ready");
    running.signal("TERM");
    let outcome = running.ended().expect_code(0);
    assert!(
        outcome
            .stderr
            .contains("the trainer ended: stopped by SIGTERM, with exit 0"),
        "{outcome:#?}"
    );
    assert!(place.remote_file("step_5", "model.bin").exists(), "{outcome:#?}");
    assert_eq!(status(&place)["demoted"], serde_json::json!([]));
}

#[test]
fn a_notice_ends_the_trainer_in_time_and_what_it_saves_then_is_safe() {
    let place = place("drain-file = \"drain\"\n");
    let script = "trap 'mkdir out/tmp-5; echo last > out/tmp-5/model.bin; mv out/tmp-5 out/step_5; exit 7' TERM; \
                  touch ready; while :; do sleep 0.1; done";
    let running = Running::start(&place, &[], script);
    running.until("ready");
    // Each time anew: one that is there before the agent listens is taken for a leftover.
    until("the trainer to be asked", || {
        std::fs::write(place.path("drain"), "60").unwrap();
        place.path("out/step_5").exists()
    });
    let outcome = running.ended().expect_code(7);
    assert!(
        outcome.stderr.contains("sending SIGTERM to the trainer"),
        "{outcome:#?}"
    );
    assert!(place.remote_file("step_5", "model.bin").exists(), "{outcome:#?}");
    assert_eq!(status(&place)["demoted"], serde_json::json!([]));
}

#[test]
fn asked_twice_the_drain_ends_at_once() {
    let place = place("drain-deadline = \"1h\"\n");
    // It takes connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let remote = format!("s3://b/p?endpoint=http://{address}&retry-deadline=1s&stall-timeout=1s");
    let script = "mkdir out/tmp-1; echo x > out/tmp-1/model.bin; mv out/tmp-1 out/step_1; exit 4";
    let log = place.path("log");
    let mut command = place.command(&arguments(&remote, &["--start-anyway"], script));
    command
        .env("AWS_ACCESS_KEY_ID", "a")
        .env("AWS_SECRET_ACCESS_KEY", "b")
        .env("AWS_REGION", "r")
        .stderr(std::fs::File::create(&log).unwrap());
    let running = Running {
        child: Some(command.spawn().unwrap()),
        place: place.path(""),
    };
    let said = |part: &str| std::fs::read_to_string(&log).unwrap().contains(part);
    until("the trainer's end", || said("the trainer ended: exit 4"));
    running.signal("TERM");
    until("the first signal to be heard", || {
        said("a second signal ends them at once")
    });
    running.signal("TERM");
    let outcome = running.ended().expect_code(4);
    assert_eq!(outcome.stdout, "");
    assert!(said("uploads stop; the next start continues them"));
}

#[test]
fn every_signal_reaches_the_trainer_again_and_again() {
    let place = place("");
    let script = "trap 'echo usr1' USR1; trap 'echo hup' HUP; count=0; \
                  trap 'count=$((count+1)); touch term-$count; test $count = 2 && exit 4' TERM; \
                  touch ready; while :; do sleep 0.1; done";
    let running = Running::start(&place, &[], script);
    running.until("ready");
    running.signal("TERM");
    running.until("term-1");
    running.signal("TERM");
    let outcome = running.ended().expect_code(4);
    assert!(
        outcome.stderr.contains("stopped by SIGTERM, with exit 4"),
        "{outcome:#?}"
    );

    let script = "trap 'touch got-usr1' USR1; trap 'touch got-hup; exit 6' HUP; touch ready-2; \
                  while :; do sleep 0.1; done";
    let running = Running::start(&place, &[], script);
    running.until("ready-2");
    running.signal("USR1");
    running.until("got-usr1");
    running.signal("HUP");
    running.ended().expect_code(6);
}

#[test]
fn whoever_ignores_sigterm_is_killed_with_all_its_children_before_the_deadline() {
    let place = place("drain-deadline = \"4s\"\n");
    // A child of its own group that ignores it as well, and tells that it lives.
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 0.1; done' & \
                  while :; do sleep 0.1; done";
    let running = Running::start(&place, &[], script);
    until("the child's number", || {
        std::fs::read_to_string(place.path("child")).is_ok_and(|text| text.ends_with('\n'))
    });
    running.signal("TERM");
    let outcome = running.ended().expect_code(137);
    assert!(outcome.stderr.contains("killing it"), "{outcome:#?}");
    let child = std::fs::read_to_string(place.path("child")).unwrap();
    until("the child's end", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        stat.map_or(true, |stat| stat.contains(") Z"))
    });
    assert_eq!(
        last_ending(&place),
        "stopped by SIGTERM, and killed because it did not exit"
    );
}

#[test]
fn what_a_wrapper_started_may_end_in_order_too() {
    let place = place("");
    // The shell dies of the signal at once; what it started saves a last step first.
    let script = "sh -c 'trap \"sleep 0.5; mkdir out/tmp-8; echo x > out/tmp-8/model.bin; mv out/tmp-8 out/step_8; exit\" TERM; \
                  touch ready; while :; do sleep 0.1; done' & wait";
    let running = Running::start(&place, &[], script);
    running.until("ready");
    running.signal("TERM");
    running.ended().expect_code(143);
    assert!(place.remote_file("step_8", "model.bin").exists());
}

#[test]
fn after_a_kill_of_run_itself_the_next_start_knows() {
    let place = place("");
    let running = Running::start(&place, &[], "echo $$ > trainer; while :; do sleep 0.1; done");
    let noted = || status_of_start(&place).is_some_and(|ending| ending == "running");
    until("the start to be noted", || {
        place.path("trainer").exists() && place.path(".stepvault/vault.json").exists() && noted()
    });
    until("the trainer to be noted", || trainer_is_noted(&place));
    running.killed();
    assert_eq!(last_ending(&place), "unknown");
    let trainer = std::fs::read_to_string(place.path("trainer"))
        .unwrap()
        .trim()
        .to_owned();
    let held = run(&place, &[], "touch second").expect_code(13);
    assert!(
        held.stderr.contains(&format!("kill -TERM -- -{trainer}")),
        "{held:#?}"
    );
    assert!(!place.path("second").exists());
    let ended = std::process::Command::new("kill")
        .args(["-KILL", "--", &format!("-{trainer}")])
        .status();
    assert!(ended.unwrap().success());
    until("the end of the trainer", || {
        let stat = std::fs::read_to_string(format!("/proc/{trainer}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z"))
    });
    run(&place, &[], "touch second").expect_code(0);
}

fn status_of_start(place: &Place) -> Option<String> {
    let outcome = place.run_here(&["status", "--json", "--local", ".stepvault", "--node", "node-0"]);
    let document: Value = serde_json::from_str(&outcome.stdout).ok()?;
    let starts = document["starts"].as_array()?;
    let latest = starts.iter().find(|start| start["who"] == "trainer")?;
    Some(latest["ending"].as_str()?.to_owned())
}

fn trainer_is_noted(place: &Place) -> bool {
    let path = place.path(".stepvault/runs/demo%2Fa/notes/starts.json");
    let history: Option<Value> = std::fs::read(path)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    history.is_some_and(|history| {
        let starts = history["starts"].as_array().unwrap();
        starts.iter().any(|start| start["trainer"].is_object())
    })
}

#[test]
fn training_goes_on_when_nothing_can_be_saved() {
    let place = place("");
    let holder = Running::start(&place, &[], "touch first; until test -e end; do sleep 0.1; done");
    holder.until("first");
    let vault_lock = place.path(".stepvault/lock");
    until("the agent to hold the vault", || {
        std::fs::File::open(&vault_lock).is_ok_and(|file| file.try_lock_shared().is_err())
    });
    let second = run(&place, &[], "exit 8").expect_code(8);
    assert!(
        second
            .stderr
            .contains("another process holds the vault and must save the checkpoints: "),
        "{second:#?}"
    );
    std::fs::write(place.path("end"), "").unwrap();
    holder.ended().expect_code(0);

    // No remote: nothing to save to.
    let outcome = place
        .run(&["run", "--node", "node-0", "--", "sh", "-c", "exit 9"])
        .expect_code(9);
    assert!(
        outcome
            .stderr
            .contains("the trainer's checkpoints are not saved: "),
        "{outcome:#?}"
    );
    // No vault: its place is taken. What the remote has is had all the same.
    place.push_steps(&[1]);
    std::fs::write(place.path("file"), "").unwrap();
    let outcome = run(&place, &["--local", "file"], "exit 4$STEPVAULT_RESTORED_STEP").expect_code(41);
    assert!(
        outcome.stderr.contains("warning: continuing without the vault: "),
        "{outcome:#?}"
    );
}

#[test]
fn as_process_one_it_reaps_what_the_trainer_leaves() {
    let place = place("");
    let can = std::process::Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "true"])
        .output();
    // Not every machine lets anybody make a namespace of processes.
    if !can.is_ok_and(|output| output.status.success()) {
        return;
    }
    // An orphan that ends while the trainer runs must not stay as a zombie.
    let script = "(sh -c 'echo $$ > orphan' &); until test -s orphan; do sleep 0.1; done; \
                  while test -e /proc/$(cat orphan); do sleep 0.1; done; echo reaped $(cat /proc/1/comm); exit 5";
    let program = env!("CARGO_BIN_EXE_stepvault");
    let remote = place.remote();
    let command = place.command(&[]);
    let arguments = arguments(&remote, &[], script);
    let mut unshare = std::process::Command::new("unshare");
    unshare
        .args(["--pid", "--fork", "--mount-proc", program])
        .args(arguments)
        .current_dir(command.get_current_dir().unwrap())
        .env_clear()
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("PATH", std::env::var_os("PATH").unwrap());
    let outcome = Outcome::of(unshare.output().unwrap()).expect_code(5);
    assert_eq!(outcome.stdout, "reaped stepvault\n");
}
