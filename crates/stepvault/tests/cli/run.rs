//! `run` with trainers of a few lines of shell, from restore to drain.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{ANY_KEYS, Outcome, Place, TestCommand, TestProcess, wait_until};

const CONFIGURATION: &str =
    "[run.\"demo/a\"]\nwatch = \"out\"\ncomplete = \"rename\"\n[agent]\npoll-interval = \"200ms\"\n";

/// A place with a configuration whose trainer writes to `out`, which is there.
fn place(more: &str) -> Place {
    let place = Place::new();
    place.write("stepvault.toml", format!("{CONFIGURATION}{more}"));
    std::fs::create_dir(place.path("out")).unwrap();
    place
}

/// Steps on the remote, and a node that is new.
fn place_with_steps(steps: &[u64], more: &str) -> Place {
    let place = place(more);
    place.push_steps(steps);
    place.remove("checkpoints");
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

/// Starts a run that goes on while the test does something.
fn start(place: &Place, options: &[&str], script: &str) -> TestProcess {
    let remote = place.remote();
    let mut command = place.command(arguments(&remote, options, script));
    command.own_group().start()
}

/// Waits for a file of the place.
fn wait_for_file(place: &Place, name: &str) {
    wait_until(name, || place.path(name).exists());
}

fn has_ended(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z"))
}

fn status(place: &Place) -> Value {
    place.document_here(0, &["status", "--local", ".stepvault", "--node", "node-0"])
}

/// What the latest trainer's start came to.
fn last_ending(place: &Place) -> String {
    latest_ending(&status(place)).unwrap()
}

fn latest_ending(status: &Value) -> Option<String> {
    let mut starts = status["starts"].as_array()?.iter();
    let latest = starts.find(|start| start["who"] == "trainer")?;
    Some(latest["ending"].as_str()?.to_owned())
}

#[test]
fn the_newest_step_is_restored_and_what_the_trainer_leaves_is_durable_when_it_ends() {
    let place = place_with_steps(&[1, 2], "");
    let script = "echo step=$STEPVAULT_RESTORED_STEP path=$STEPVAULT_RESTORED_PATH own=$OWN; \
                  test -f out/step_2/model.bin || exit 9; read line; echo $line; echo to-stderr >&2; \
                  mkdir out/tmp-3; echo weights > out/tmp-3/model.bin; mv out/tmp-3 out/step_3; exit 7";
    let remote = place.remote();
    let mut command = place.command(arguments(&remote, &[], script));
    let outcome = command.env("OWN", "kept").run_with_input("a line\n").expect_code(7);
    let path = place.path("out/step_2").canonicalize().unwrap();
    assert_eq!(outcome.stdout, format!("step=2 path={} own=kept\na line\n", path.display()));
    outcome.expect_stderr(&[
        "stepvault: restored step 2 (attempt 1) of 'demo/a'",
        "to-stderr\n",
        "stepvault: the trainer ended: exit 7",
    ]);
    assert!(place.remote_file("step_3", "model.bin").exists());
    assert_eq!(last_ending(&place), "exit 7");
}

#[test]
fn a_first_start_begins_anew_and_quiet_is_silent() {
    let place = place("");
    let outcome =
        run(&place, &["-q"], "echo [$STEPVAULT_RESTORED_STEP][$STEPVAULT_RESTORED_PATH]").expect_code(0);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("[][]\n", ""));
    run(&place, &[], "kill -USR1 $$")
        .expect_code(138)
        .expect_stderr(&["this is the first start", "the trainer ended: signal 10"]);
}

#[test]
fn a_first_start_finds_no_step_that_is_not_whole() {
    let place = place("");
    place.write("out/step_1/__0_0.distcp", "cut off before .metadata was written");
    place.write("out/step_2/model.bin", "weights");
    let outcome = run(&place, &[], "ls out").expect_code(0);
    assert_eq!(outcome.stdout, "step_2\n", "{}", outcome.stderr);
    outcome.expect_stderr(&["out/step_1 is moved to ", ": it is not whole, and there is no step to restore"]);
    assert!(place.path(".stepvault/moved-aside/0001-step_1/__0_0.distcp").exists());
}

#[test]
fn without_a_configuration_a_directory_is_enough() {
    let place = Place::new();
    std::fs::create_dir(place.path("out")).unwrap();
    let remote = place.remote();
    let options = ["--remote", &remote, "--run", "demo/a", "--into", "out"];
    place.succeed(&[&["run"], &options[..], &["--", "true"]].concat());
    let status = status(&place);
    assert_eq!(
        (&status["starts"][0]["who"], &status["starts"][0]["ending"]),
        (&"trainer".into(), &"exit 0".into())
    );
}

#[test]
fn what_cannot_be_had_is_not_begun_anew() {
    let place = place_with_steps(&[1], "");
    std::fs::write(place.remote_file("step_1", "model.bin"), "damaged").unwrap();
    run(&place, &[], "touch started").expect_code(11).expect_stderr(&["--start-anyway"]);
    assert!(!place.path("started").exists());
    assert!(
        last_ending(&place).starts_with("stepvault failed: no valid checkpoint: "),
        "{}",
        last_ending(&place)
    );
    let gone = "s3://b/p?endpoint=http://127.0.0.1:1&retry-deadline=1s";
    let options = ["run", "--remote", gone, "--local", "other", "--", "touch", "started"];
    place
        .command(options)
        .envs(ANY_KEYS)
        .env("AWS_REGION", "r")
        .env("STEPVAULT_AGENT_DRAIN_DEADLINE", "1s")
        .run()
        .expect_code(12);
    assert!(!place.path("started").exists());
    let outcome = run(&place, &["--start-anyway"], "touch started; exit 3").expect_code(3);
    outcome.expect_stderr(&["the trainer is started without a restored step: "]);
    assert!(place.path("started").exists());
    place.run(&["run", "--json", "--run", "a", "--", "true"]).expect_code(2);
    let unknown = place.run(&["run", "--remote", &place.remote(), "--start-anyway", "--", "/no/such"]);
    unknown.expect_code(2).expect_error("cannot start the trainer: /no/such: ");
}

#[test]
fn a_step_that_the_trainer_never_survives_is_skipped_and_the_loop_is_named() {
    let place = place_with_steps(&[1, 2], "[restart]\nloop-starts = 3\n");
    let crash = "test $STEPVAULT_RESTORED_STEP = 2 && exit 1; exit 5";
    run(&place, &[], crash).expect_code(1);
    run(&place, &[], crash).expect_code(1);
    let third = run(&place, &[], "kill -SEGV $$").expect_code(139);
    let named = "stepvault: warning: restart loop: the trainer of 'demo/a' was started 3 times within 10 min on node-0; \
                 the last starts ended with: exit 1, exit 1\n";
    let third = third.expect_stderr(&[named]);
    assert_eq!(third.stderr.matches("restart loop").count(), 1, "{third:#?}");
    let reason =
        "restored 3 times, and the trainer crashed within 5 min each time (exit 1, exit 1, signal 11)";
    let shown = status(&place);
    assert_eq!(shown["demoted"], serde_json::json!([{ "step": 2, "attempt": 1, "reason": reason }]));
    assert_eq!(shown["restart_loops"][0]["starts"], 3);

    // A new disk knows it from the remote.
    place.remove(".stepvault");
    place.remove("out");
    std::fs::create_dir(place.path("out")).unwrap();
    let restored = place.run_here(&["restore", "--into", "by-hand", "--local", "none"]).expect_code(0);
    let skipped = format!("skipped step 2 (attempt 1): {reason}\nto restore step 2 anyway: --step 2\n");
    assert!(restored.stdout.starts_with(&skipped), "{restored:#?}");
    assert!(place.path("by-hand/step_1").exists() && !place.path("by-hand/step_2").exists());
    run(&place, &[], crash).expect_code(5).expect_stderr(&[&format!("skipped step 2 (attempt 1): {reason}")]);
    let asked_for = run(&place, &["--step", "2"], crash).expect_code(1);
    assert!(!asked_for.stderr.contains("skipped step 2"), "{asked_for:#?}");
}

/// The trainer takes the highest number in its directory, and the disk survives each of its crashes.
#[test]
fn a_step_that_crashes_the_trainer_is_moved_aside_where_the_disk_survives() {
    let place = place_with_steps(&[1, 2], "");
    let trainer = "test -e out/step_2 && exit 1; test -e out/step_1 && exit 5";
    for _ in 0..3 {
        run(&place, &[], trainer).expect_code(1);
        assert!(place.path("out/step_2/model.bin").exists());
    }
    for _ in 0..2 {
        let passed = run(&place, &[], trainer).expect_code(5);
        passed.expect_stderr(&["skipped step 2 (attempt 1): restored 3 times, and the trainer crashed"]);
        assert!(place.path("out/step_1/model.bin").exists());
    }
    assert!(place.path(".stepvault/moved-aside/0001-step_2/model.bin").exists());
    assert!(place.remote_file("step_2", "model.bin").exists());
}

#[test]
fn sigterm_is_passed_on_and_what_the_trainer_saves_last_is_durable() {
    let place = place("");
    // The shell does not wait by itself for what a trap interrupts.
    let script = "trap 'mkdir out/tmp-5; echo last > out/tmp-5/model.bin; mv out/tmp-5 out/step_5; exit 0' TERM; \
                  touch ready; while :; do sleep 0.1; done";
    let running = start(&place, &[], script);
    wait_for_file(&place, "ready");
    running.signal(Signal::TERM);
    running.wait().expect_code(0).expect_stderr(&["the trainer ended: stopped by SIGTERM, with exit 0"]);
    assert!(place.remote_file("step_5", "model.bin").exists());
    assert_eq!(status(&place)["demoted"], serde_json::json!([]));
}

#[test]
fn a_notice_ends_the_trainer_in_time_and_what_it_saves_then_is_durable() {
    let place = place("drain-file = \"drain\"\n");
    let script = "trap 'mkdir out/tmp-5; echo last > out/tmp-5/model.bin; mv out/tmp-5 out/step_5; exit 7' TERM; \
                  touch ready; while :; do sleep 0.1; done";
    let running = start(&place, &[], script);
    wait_for_file(&place, "ready");
    // Each time anew: one that is there before the agent listens is taken for a leftover.
    wait_until("the trainer to be asked", || {
        place.write("drain", "60");
        place.path("out/step_5").exists()
    });
    running.wait().expect_code(7).expect_stderr(&["sending SIGTERM to the trainer"]);
    assert!(place.remote_file("step_5", "model.bin").exists());
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
    let mut running = place
        .command(arguments(&remote, &["--start-anyway"], script))
        .envs(ANY_KEYS)
        .env("AWS_REGION", "r")
        .start();
    running.wait_for_log("the trainer ended: exit 4");
    running.signal(Signal::TERM);
    running.wait_for_log("a second signal ends them at once");
    running.signal(Signal::TERM);
    let outcome =
        running.wait().expect_code(4).expect_stderr(&["uploads stop; the next start continues them"]);
    assert_eq!(outcome.stdout, "");
}

#[test]
fn every_signal_reaches_the_trainer_again_and_again() {
    let place = place("");
    let script = "trap 'echo usr1' USR1; trap 'echo hup' HUP; count=0; \
                  trap 'count=$((count+1)); touch term-$count; test $count = 2 && exit 4' TERM; \
                  touch ready; while :; do sleep 0.1; done";
    let running = start(&place, &[], script);
    wait_for_file(&place, "ready");
    running.signal(Signal::TERM);
    wait_for_file(&place, "term-1");
    running.signal(Signal::TERM);
    running.wait().expect_code(4).expect_stderr(&["stopped by SIGTERM, with exit 4"]);

    let script = "trap 'touch got-usr1' USR1; trap 'touch got-hup; exit 6' HUP; touch ready-2; \
                  while :; do sleep 0.1; done";
    let running = start(&place, &[], script);
    wait_for_file(&place, "ready-2");
    running.signal(Signal::USR1);
    wait_for_file(&place, "got-usr1");
    running.signal(Signal::HUP);
    running.wait().expect_code(6);
}

#[test]
fn a_trainer_that_ignores_sigterm_is_killed_with_all_its_children_before_the_deadline() {
    let place = place("drain-deadline = \"4s\"\n");
    // A child of its own group that ignores it as well, and tells that it lives.
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 0.1; done' & \
                  while :; do sleep 0.1; done";
    let running = start(&place, &[], script);
    wait_until("the child's number", || {
        std::fs::read_to_string(place.path("child")).is_ok_and(|text| text.ends_with('\n'))
    });
    running.signal(Signal::TERM);
    running.wait().expect_code(137).expect_stderr(&["killing it"]);
    let child = std::fs::read_to_string(place.path("child")).unwrap();
    wait_until("the child's end", || has_ended(child.trim()));
    assert_eq!(last_ending(&place), "stopped by SIGTERM, and killed because it did not exit");
}

#[test]
fn what_a_wrapper_started_may_end_in_order_too() {
    let place = place("");
    // The shell dies of the signal at once; what it started saves a last step first.
    let script = "sh -c 'trap \"sleep 0.5; mkdir out/tmp-8; echo x > out/tmp-8/model.bin; mv out/tmp-8 out/step_8; exit\" TERM; \
                  touch ready; while :; do sleep 0.1; done' & wait";
    let running = start(&place, &[], script);
    wait_for_file(&place, "ready");
    running.signal(Signal::TERM);
    running.wait().expect_code(143);
    assert!(place.remote_file("step_8", "model.bin").exists());
}

#[test]
fn after_a_kill_of_run_itself_the_next_start_knows() {
    let place = place("");
    let running = start(&place, &[], "echo $$ > trainer; while :; do sleep 0.1; done");
    let noted = || status_of_start(&place).is_some_and(|ending| ending == "running");
    wait_until("the start to be noted", || {
        place.path("trainer").exists() && place.path(".stepvault/vault.json").exists() && noted()
    });
    wait_until("the trainer to be noted", || trainer_is_noted(&place));
    running.kill();
    assert_eq!(last_ending(&place), "unknown");
    let trainer = std::fs::read_to_string(place.path("trainer")).unwrap().trim().to_owned();
    run(&place, &[], "touch second").expect_code(13).expect_stderr(&[&format!("kill -TERM -- -{trainer}")]);
    assert!(!place.path("second").exists());
    let ended = std::process::Command::new("kill").args(["-KILL", "--", &format!("-{trainer}")]).status();
    assert!(ended.unwrap().success());
    wait_until("the end of the trainer", || has_ended(&trainer));
    run(&place, &[], "touch second").expect_code(0);
}

#[test]
fn the_next_run_of_the_same_launch_ends_the_trainer_that_a_killed_run_left() {
    let place = place("");
    let remote = place.remote();
    // It takes its time to end, as one does that saves on SIGTERM.
    let script = "trap 'sleep 0.5; touch saved; exit' TERM; echo $$ > trainer; while :; do sleep 0.1; done";
    let mut command = place.command(arguments(&remote, &[], script));
    let running = command.env("STEPVAULT_LAUNCH", "job-7").own_group().start();
    wait_until("the trainer to be noted", || place.path("trainer").exists() && trainer_is_noted(&place));
    running.kill();
    let trainer = std::fs::read_to_string(place.path("trainer")).unwrap();
    assert!(!has_ended(trainer.trim()));

    let mut other = place.command(arguments(&remote, &[], "touch second"));
    other.env("STEPVAULT_LAUNCH", "job-8").run().expect_code(13);
    assert!(!has_ended(trainer.trim()));

    let mut next = place.command(arguments(&remote, &[], "test -e saved && touch second"));
    next.env("STEPVAULT_LAUNCH", "job-7").run().expect_code(0).expect_stderr(&[
        &format!("ended process {}", trainer.trim()),
        "the trainer of an earlier start of this launch",
    ]);
    assert!(has_ended(trainer.trim()));
    assert!(place.path("second").exists());
}

fn status_of_start(place: &Place) -> Option<String> {
    let outcome = place.run_here(&["status", "--json", "--local", ".stepvault", "--node", "node-0"]);
    latest_ending(&outcome.try_json().ok()?)
}

fn trainer_is_noted(place: &Place) -> bool {
    let path = place.path(".stepvault/runs/demo%2Fa/notes/starts.json");
    let history: Option<Value> =
        std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    history.is_some_and(|history| {
        let starts = history["starts"].as_array().unwrap();
        starts.iter().any(|start| start["trainer"].is_object())
    })
}

#[test]
fn training_goes_on_when_nothing_can_be_saved() {
    let place = place("");
    let holder = place.start_agent(&["--remote", &place.remote(), "--local", ".stepvault"], &[]);
    let vault_lock = place.path(".stepvault/lock");
    wait_until("the agent to hold the vault", || {
        std::fs::File::open(&vault_lock).is_ok_and(|file| file.try_lock_shared().is_err())
    });
    run(&place, &[], "exit 8")
        .expect_code(8)
        .expect_stderr(&["another process holds the vault and must save the checkpoints: "]);
    holder.signal(Signal::TERM);
    holder.wait().expect_code(0);

    // No remote: nothing to save to.
    place
        .run(&["run", "--node", "node-0", "--", "sh", "-c", "exit 9"])
        .expect_code(9)
        .expect_stderr(&["the trainer's checkpoints are not saved: "]);
    // No vault: its place is taken. What the remote has is had all the same.
    place.push_steps(&[1]);
    place.write("file", "");
    run(&place, &["--local", "file"], "exit 4$STEPVAULT_RESTORED_STEP")
        .expect_code(41)
        .expect_stderr(&["warning: continuing without the vault: "]);
}

const OTHER_PROCESSES: [&str; 4] = ["unshare", "--pid", "--fork", "--mount-proc"];

/// Whether this machine lets this user make a namespace; prints that the test is skipped if not.
fn can_unshare(wrapper: &[&str]) -> bool {
    let tried = std::process::Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("not run: {} is not permitted", wrapper.join(" "));
    }
    can
}

#[test]
fn a_second_run_starts_no_trainer_beside_the_first_one_even_from_another_container() {
    let place = place("");
    let first = start(&place, &[], "touch first; until test -e end; do sleep 0.1; done");
    wait_for_file(&place, "first");
    let remote = place.remote();
    let second = place.command(arguments(&remote, &["--start-anyway"], "touch second"));
    let refused = |command: &mut TestCommand| {
        let refused = command.run().expect_code(13);
        refused.expect_stderr(&["error: cannot start a second trainer: ", "in another container"]);
        assert!(!place.path("second").exists());
    };
    refused(&mut second.clone());
    if can_unshare(&OTHER_PROCESSES) {
        refused(second.clone().under(OTHER_PROCESSES));
    }
    // Another run has a trainer of its own.
    let other = ["run", "--remote", &remote, "--run", "demo/b", "--into", "other", "--local", ".stepvault"];
    place.command(other).with(["--", "true"]).run().expect_code(0);
    place.write("end", "");
    first.wait().expect_code(0);
    second.run().expect_code(0);
    assert!(place.path("second").exists());
}

#[test]
fn as_process_one_it_reaps_what_the_trainer_leaves() {
    let place = place("");
    if !can_unshare(&OTHER_PROCESSES) {
        return;
    }
    // An orphan that ends while the trainer runs must not stay as a zombie.
    let script = "(sh -c 'echo $$ > orphan' &); until test -s orphan; do sleep 0.1; done; \
                  while test -e /proc/$(cat orphan); do sleep 0.1; done; echo reaped $(cat /proc/1/comm); exit 5";
    let remote = place.remote();
    let mut command = place.command(arguments(&remote, &[], script));
    let outcome = command.under(OTHER_PROCESSES).run().expect_code(5);
    assert_eq!(outcome.stdout, "reaped stepvault\n");
}

#[test]
fn the_agent_is_nice_and_the_trainer_is_not() {
    let script = "for i in $(seq 100); do \
                  awk '{ sub(/.*\\) /, \"\"); if ($17 != 12) exit 1 }' /proc/$PPID/task/*/stat && nice > nice && exit; sleep 0.1; done; exit 7";
    let place = place("nice = 12\n");
    run(&place, &[], script).expect_code(0);
    let own = std::fs::read_to_string(place.path("nice")).unwrap();
    assert!(own.trim().parse::<i32>().unwrap() < 12, "{own}");
}
