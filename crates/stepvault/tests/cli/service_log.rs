//! What services write to their logs: under systemd, between the lines of other nodes, and over weeks.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Place, TestProcess};

const CONFIGURATION: &str = "[run.\"demo/a\"]\nwatch = \"out\"\ncomplete = \"rename\"\n[restart]\nloop-starts = 3\n[keep.local]\nlast = 1\n[local]\ndirectory = \"vault\"\n";

fn place() -> Place {
    let place = Place::new();
    place.write("stepvault.toml", CONFIGURATION);
    std::fs::create_dir(place.path("out")).unwrap();
    place
}

fn start_agent(place: &Place, arguments: &[&str]) -> TestProcess {
    let remote = place.remote();
    place.start_agent(&[&["--remote", &remote], arguments].concat(), &[])
}

/// Runs a line of a shell whose error stream is, or is not, the journal.
fn log_with_journal(place: &Place, journal: &str, line: &str) -> Vec<String> {
    let shell = format!("export JOURNAL_STREAM={journal}; {line}");
    let outcome = place.shell(&shell).run();
    outcome.stderr.lines().map(str::to_owned).collect()
}

#[test]
fn lines_for_the_journal_say_their_priority_and_lines_for_a_file_do_not() {
    let place = place();
    place.save_into("out", "step_1");
    let own = "$(stat -L -c %d:%i /proc/self/fd/2)";
    let remote = place.remote();
    let agent = format!("stepvault agent --once --remote {remote}; stepvault agent --remote nowhere");
    let lines = log_with_journal(&place, own, &agent);
    let has = |beginning: &str| lines.iter().any(|line| line.starts_with(beginning));
    assert!(has("<6>stepvault: local: sealed step 1"), "{lines:#?}");
    assert!(has("<3>stepvault: error: ") && has("<3>stepvault:   hint: "), "{lines:#?}");
    // A broken file does not keep the agent from its work.
    place.write("vault/runs/demo%2Fa/notes/starts.json", "{");
    place.write(
        "stepvault.toml",
        format!("{CONFIGURATION}[run.\"demo/b\"]\nprofile = \"hf-trainer\"\ncomplete = \"quiet\"\n"),
    );
    let warned = log_with_journal(&place, own, &format!("stepvault agent --once --remote {remote}"));
    assert!(warned.iter().any(|line| line.starts_with("<4>stepvault: warning: ")), "{warned:#?}");
    // The log too.
    let logged = log_with_journal(&place, own, &format!("stepvault -v agent --once --remote {remote}"));
    assert!(logged.iter().all(|line| line.starts_with('<')), "{logged:#?}");
    for other in ["1:1", "", "x"] {
        let lines = log_with_journal(&place, other, &agent);
        assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with("stepvault: ")), "{lines:#?}");
    }
}

#[test]
fn each_line_of_a_run_of_several_nodes_names_its_node() {
    let place = place();
    let remote = place.remote();
    let node = ["--remote", &remote, "--nodes", "2", "--node", "node-1"];
    place.save_into("out", "step_1");
    let agent = place.run(&[&["agent", "--once"], &node[..]].concat());
    let run = place.run(&[&["run", "--start-anyway"], &node[..], &["--", "sh", "-c", "exit 4"]].concat());
    let failed = place.run(&[&["run"], &node[..], &["--step", "77", "--", "true"]].concat());
    for outcome in [agent, run.expect_code(4), failed.expect_code(10)] {
        assert!(!outcome.stderr.is_empty());
        for line in outcome.stderr.lines() {
            assert!(line.starts_with("stepvault: node-1: "), "{line:?} of {outcome:#?}");
        }
    }
}

#[test]
fn a_step_has_a_handful_of_lines() {
    let place = place();
    let mut agent = start_agent(&place, &[]);
    for step in 1..=3 {
        place.save_into("out", &format!("step_{step}"));
        agent.wait_for_log(&format!("step {step} (attempt 1) is durable"));
    }
    agent.wait_for_log("local: removed step 2");
    agent.signal(Signal::TERM);
    let outcome = agent.wait().expect_code(0);
    let about = |line: &&str| line.contains("step 2 ") || line.contains("step_2");
    let lines: Vec<&str> = outcome.stderr.lines().filter(about).collect();
    assert_eq!(lines.len(), 3, "sealed, durable, removed: {lines:#?}");
}

#[test]
fn restarts_that_were_ordered_are_no_restart_loop() {
    let place = place();
    for _ in 0..4 {
        let mut agent = start_agent(&place, &[]);
        agent.wait_for_log("watching ");
        place.agent_status(&["--remote", &place.remote(), "--run", "demo/a"]);
        agent.signal(Signal::TERM);
        let outcome = agent.wait().expect_code(0);
        assert!(!outcome.stderr.contains("restart loop"), "{outcome:#?}");
    }
    for killed in 0..3 {
        let mut agent = start_agent(&place, &[]);
        agent.wait_for_log("watching ");
        place.agent_status(&["--remote", &place.remote(), "--run", "demo/a"]);
        if killed == 2 {
            agent.wait_for_log("restart loop: the agent of 'demo/a' was started 3 times within 10 min on ");
        }
        agent.kill();
    }
}

#[test]
fn a_directory_that_the_unit_makes_read_only_is_named_at_the_start() {
    let place = place();
    let read_only = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    let wrapped = |directory: &str| {
        let path = place.path(directory).display().to_string();
        ["unshare", "--mount", "sh", "-c", read_only, &path].map(str::to_owned)
    };
    let remote = place.remote();
    let mut command = place.command(["agent", "--remote", &remote, "--local", "vault/new"]);
    std::fs::create_dir(place.path("vault")).unwrap();
    let can = place.command([] as [&str; 0]).program("true").under(wrapped("vault")).run();
    if !can.is_success() {
        eprintln!("not run: only the superuser can mount a directory read-only");
        return;
    }
    for directory in ["remote", "vault"] {
        command
            .under(wrapped(directory))
            .run()
            .expect_one_error(1, &[&place.path(directory).display().to_string(), "read-only file system"])
            .expect_hint("ReadWritePaths=");
    }
    // The trainer of `run` trains all the same, and its steps are sealed.
    let script = "mkdir out/tmp-1; echo x > out/tmp-1/model.bin; mv out/tmp-1 out/step_1";
    let mut run = place.command(["run", "--remote", &remote, "--local", "vault/new", "--start-anyway"]);
    run.env("STEPVAULT_AGENT_DRAIN_DEADLINE", "3s");
    run.args(["--", "sh", "-c", script]).under(wrapped("remote"));
    run.run().expect_code(0).expect_stderr(&[
        "warning: cannot write: ",
        "ReadWritePaths=",
        "local: sealed step 1",
    ]);
}

#[test]
fn with_the_format_json_each_line_is_an_object_with_the_same_members() {
    let place = place();
    place.save_into("out", "step_1");
    let remote = place.remote();
    let logged = |arguments: &[&str], log: &str| {
        let mut command = place.command([&["agent", "--once"], arguments].concat());
        command.env("STEPVAULT_AGENT_LOG_FORMAT", "json").env("STEPVAULT_LOG", log);
        let outcome = command.run();
        let lines = outcome.stderr.lines().map(|line| {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        });
        lines.collect::<Vec<_>>()
    };
    let lines = logged(&["--remote", &format!("main={remote}"), "--node", "gpu-7"], "debug,stepvault=trace");
    for line in &lines {
        let text = |member: &str| line[member].as_str().unwrap_or_else(|| panic!("{member}: {line}"));
        assert!(text("time").ends_with('Z') && !text("message").contains("stepvault: "), "{line}");
        assert!(["debug", "info", "warning", "error"].contains(&text("level")), "{line}");
        assert_eq!(text("node"), "gpu-7");
    }
    let about = |message: &str| {
        let found = lines.iter().find(|line| line["message"].as_str().unwrap().contains(message));
        let line = found.unwrap_or_else(|| panic!("{message}: {lines:#?}"));
        (
            line["run"].clone(),
            line["step"].clone(),
            line["attempt"].clone(),
            line["remote"].clone(),
            line["trace_id"].clone(),
        )
    };
    let (run, step, attempt, on, trace) = about("sealed step 1");
    assert_eq!((run, step, attempt, on), ("demo/a".into(), 1.into(), 1.into(), Value::Null));
    assert_eq!(trace.as_str().map(str::len), Some(32));
    let uploaded = about("main: step 1 (attempt 1) is durable");
    assert_eq!((uploaded.3, uploaded.4), ("main".into(), trace), "one trace for a step");
    assert!(lines.iter().any(|line| line["target"].is_string()), "events of the log, too");

    place.write("blocked", "");
    let refused = logged(&["--remote", &remote, "--local", "blocked/vault"], "");
    let last = refused.last().unwrap();
    assert_eq!(last["level"], "error");
    assert!(last["message"].as_str().unwrap().contains("blocked"), "{last}");
}
