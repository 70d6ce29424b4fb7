//! One configuration for every task of an array job or a sweep.

use crate::support::{Outcome, Place, listed_steps};

const CONFIGURATION: &str = "[run.sweep]\nrun-name = \"sweep-{SLURM_ARRAY_TASK_ID}\"\nwatch = \"out\"\n\
     complete = \"rename\"\nkeep.remote.last = 3\n[local]\ndirectory = \"vault\"\n[agent]\npoll-interval = \"200ms\"\n";

fn place() -> Place {
    let place = Place::new();
    let remote = format!("[remote.main]\nurl = \"{}\"\n", place.remote());
    place.write("c.toml", format!("{CONFIGURATION}{remote}"));
    std::fs::create_dir_all(place.path("out")).unwrap();
    place
}

/// Runs a command with the configuration, as this task of the array.
fn run_as(place: &Place, task: Option<&str>, arguments: &[&str]) -> Outcome {
    let (command, others) = arguments.split_first().unwrap();
    let mut command = place.command([&[*command, "--config", "c.toml"], others].concat());
    if let Some(task) = task {
        command.env("SLURM_ARRAY_TASK_ID", task);
    }
    command.run()
}

fn steps(place: &Place, run: &str) -> Vec<u64> {
    let list = ["list", "--run", run, "--config", "c.toml"];
    listed_steps(&place.document(0, &list))
}

fn save(place: &Place, name: &str) {
    let made = place.checkpoint(&format!("made-{name}"), name);
    std::fs::rename(made, place.path("out").join(name)).unwrap();
}

#[test]
fn each_task_has_its_own_run_in_every_command() {
    let place = place();
    let script = "mkdir t && echo 3 >t/m && mv t out/step_5; echo from $STEPVAULT_RESTORED_STEP";
    let first = run_as(&place, Some("3"), &["run", "--", "sh", "-c", script]).expect_code(0);
    assert_eq!(first.stdout, "from\n");
    assert_eq!(steps(&place, "sweep-3"), [5]);
    // Another task resumes from nothing.
    place.remove("out");
    place.remove("vault");
    std::fs::create_dir(place.path("out")).unwrap();
    let other = run_as(&place, Some("4"), &["run", "--", "sh", "-c", "echo from $STEPVAULT_RESTORED_STEP"]);
    assert_eq!(other.expect_code(0).stdout, "from\n");
    save(&place, "step_6");
    run_as(&place, Some("4"), &["agent", "--once"]).expect_code(0);
    assert_eq!(steps(&place, "sweep-4"), [6]);
    let pushed = place.checkpoint("step_7", "seven");
    run_as(&place, Some("4"), &["push", pushed.to_str().unwrap()]).expect_code(0);
    assert_eq!(steps(&place, "sweep-4"), [7, 6]);
    // The rules of the table count for the name that the template can have.
    let plan = run_as(&place, None, &["prune", "--run", "sweep-4", "--dry-run", "--tier", "remote"]);
    plan.expect_code(0).expect_stdout(&["last 3"]);
    run_as(&place, None, &["list"]).expect_one_error(2, &["the variable SLURM_ARRAY_TASK_ID is not set"]);
}

#[test]
fn the_round_after_the_jobs_end_knows_the_task() {
    for arguments in [&["run"][..], &["run", "--run", "sweep-3"]] {
        let place = place();
        let task = (arguments.len() == 1).then_some("3");
        let save = "mkdir t && echo 3 >t/m && mv t out/step_5; while ! [ -e vault/invocation.json ]; do sleep 0.1; done; kill -9 $PPID";
        run_as(&place, task, &[arguments, &["--", "sh", "-c", save]].concat());
        let round = run_as(&place, None, &["agent", "--once", "--trainer-ended"]).expect_code(0);
        assert_eq!(steps(&place, "sweep-3"), [5], "{round:?}");
    }
}

#[test]
fn a_selected_run_may_watch_what_another_one_watches() {
    let place = place();
    let script = "mkdir t && echo 3 >t/m && mv t out/step_5";
    let run = ["run", "--run", "mine", "--into", "out", "--", "sh", "-c", script];
    run_as(&place, Some("3"), &run).expect_code(0);
    assert_eq!(steps(&place, "mine"), [5]);
}

#[test]
fn a_second_trainer_of_an_exclusive_run_is_not_started() {
    let place = place();
    let text = place.read("c.toml").replace("complete", "exclusive = true\ncomplete");
    place.write("c.toml", text);
    let start = |vault: &str, script: &str| {
        let run = ["run", "--config", "c.toml", "--run", "sweep-1", "--local", vault, "--node", vault];
        let mut command = place.command([&run[..], &["--", "sh", "-c", script]].concat());
        command.own_group().start()
    };
    let mut first = start("one", "touch began; sleep 60");
    first.wait_until("the first trainer", || place.path("began").exists());
    let mut second = start("two", "touch second");
    second
        .wait_for_log("cannot train: another training job writes the run: 'sweep-1' on main: the job of one");
    // The first one ends, and the second one goes on.
    first.signal(rustix::process::Signal::TERM);
    first.wait();
    second.wait().expect_code(0);
    assert!(place.path("second").exists());
}
