//! `--metrics-file` and `--metrics-push`: what a command did, for the node exporter's collector of text files and for a
//! Pushgateway.

use stepvault_testkit::webhook::{WebhookAnswer, WebhookReceiver};

use crate::support::{Place, damage};

/// Returns the value of a sample whose labels, without those of every sample, are `labels`.
#[track_caller]
fn value(place: &Place, command: &str, sample: &str, labels: &str) -> String {
    let text = place.read("metrics.prom");
    let own = if labels.is_empty() { String::new() } else { format!(",{labels}") };
    let series = format!("stepvault_command_{sample}{{command=\"{command}\",run=\"demo/a\"{own}}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).to_owned()
}

#[test]
fn a_command_says_what_it_did_and_how_it_ended() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    let with_file = |words: &[&str], code| {
        place.run_here(&[words, &["--metrics-file", "metrics.prom"]].concat()).expect_code(code);
    };
    with_file(&["restore", "--into", "again"], 0);
    let restored = "operation=\"restore\",tier=\"file-remote\",outcome=\"success\"";
    assert_eq!(value(&place, "restore", "operations_total", restored), "1");
    let moved = value(&place, "restore", "moved_bytes_total", "tier=\"file-remote\"");
    assert!(moved.parse::<u64>().unwrap() >= 6000, "{moved}");
    let took = "operation=\"restore\",tier=\"file-remote\"";
    assert_eq!(value(&place, "restore", "operation_duration_seconds_count", took), "1");

    damage(&place.remote_file("step_2", "model.bin"));
    with_file(&["verify", "--deep"], 1);
    let verified = |outcome: &str| {
        let labels = format!("tier=\"file-remote\",outcome=\"{outcome}\"");
        value(&place, "verify", "verified_steps_total", &labels)
    };
    assert_eq!((verified("success"), verified("damaged")), ("1".to_owned(), "1".to_owned()));
    assert_eq!(value(&place, "verify", "exit_code", ""), "1");
    let ended = value(&place, "verify", "end_timestamp_seconds", "");
    assert!(ended.parse::<f64>().unwrap() > 1.7e9, "{ended}");

    // The same byte again: the newest step is sound.
    damage(&place.remote_file("step_2", "model.bin"));
    with_file(&["prune", "--keep-last", "1"], 0);
    let removed = "operation=\"removal\",tier=\"file-remote\",outcome=\"success\"";
    assert_eq!(value(&place, "prune", "operations_total", removed), "1");
    assert!(!place.read("metrics.prom").contains("verify"), "the file is replaced");
    // An error counts, too.
    with_file(&["restore", "--into", "other", "--step", "9"], 10);
    assert_eq!(value(&place, "restore", "exit_code", ""), "10");
}

#[test]
fn a_file_that_cannot_be_written_changes_nothing_else() {
    let place = Place::new();
    place.push_steps(&[1]);
    let listed = place.run_here(&["list", "--metrics-file", "no/such/directory/metrics.prom"]).expect_code(0);
    listed.expect_stderr(&["warning: cannot write the metrics"]).expect_stdout(&["file-remote"]);
}

#[test]
fn the_only_run_of_the_configuration_is_named_without_a_flag() {
    let place = Place::new();
    let remote = format!("[remote.main]\nurl = \"{}\"\n", place.remote());
    place.write("stepvault.toml", format!("{remote}[run.\"demo/a\"]\n"));
    place.run(&["list", "--metrics-file", "metrics.prom"]).expect_code(0);
    assert_eq!(value(&place, "list", "exit_code", ""), "0");
    // Of several runs, only an operation names its own.
    place.write("stepvault.toml", format!("{remote}[run.\"demo/a\"]\n[run.b]\n"));
    place.checkpoint("step_1", "x");
    place.run(&["push", "checkpoints/step_1", "--run", "demo/a"]).expect_code(0);
    place.run(&["runs", "--metrics-file", "metrics.prom"]).expect_code(0);
    assert!(place.read("metrics.prom").contains("stepvault_command_exit_code{command=\"runs\"} 0\n"));
}

#[test]
fn a_command_pushes_what_it_did_to_the_group_of_its_name_run_and_node() {
    let (place, receiver) = (Place::new(), WebhookReceiver::start());
    place.push_steps(&[1]);
    let pushed = |words: &[&str], code| {
        let push = ["--metrics-push", &receiver.url("/prefix/"), "--node", "node-0"];
        place.run_here(&[words, &push].concat()).expect_code(code)
    };
    pushed(&["verify"], 0);
    let [request] = receiver.requests().try_into().unwrap();
    let path = "/prefix/metrics/job/stepvault/command/verify/run@base64/ZGVtby9h/node/node-0";
    assert_eq!((request.method.as_str(), request.path.as_str()), ("PUT", path));
    assert_eq!(request.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let exit_code = "stepvault_command_exit_code{command=\"verify\",run=\"demo/a\"} 0\n";
    assert!(request.body.contains(exit_code), "{}", request.body);
    for answer in [WebhookAnswer::Status(400), WebhookAnswer::Status(503), WebhookAnswer::Hang] {
        receiver.answer_always(answer);
        let outcome = pushed(&["restore", "--into", "other", "--step", "9"], 10);
        outcome.expect_stderr(&["warning: cannot push the metrics: http://127.0.0.1:"]);
    }
}

#[test]
fn an_agent_pushes_its_last_metrics() {
    let receiver = WebhookReceiver::start();
    let configuration = |runs: &str| {
        let place = Place::new();
        let remote = format!("[remote.main]\nurl = \"{}\"\n[local]\ndirectory = \"vault\"\n", place.remote());
        let agent = format!("[agent]\nmetrics-push = \"{}\"\n", receiver.url(""));
        place.write("stepvault.toml", format!("{remote}{agent}{runs}"));
        std::fs::create_dir(place.path("out")).unwrap();
        place.save_into("out", "step_1");
        place
    };
    let run = "[run.demo]\nwatch = \"out\"\ncomplete = \"rename\"\n";
    let place = configuration(run);
    place.run(&["agent", "--once", "--node", "node-0"]).expect_code(0);
    let [request] = receiver.requests().try_into().unwrap();
    assert_eq!(request.path, "/metrics/job/stepvault/run/demo/node/node-0");
    assert!(request.body.contains("stepvault_sealed_steps_total{node=\"node-0\"} 1\n"), "{}", request.body);
    // A drain pushes too, and does not wait for a Pushgateway that hangs.
    receiver.answer_always(WebhookAnswer::Hang);
    let place = configuration(&format!("{run}[run.other]\n"));
    let mut agent = place.start_agent(&["--node", "node-0"], &[("STEPVAULT_AGENT_DRAIN_DEADLINE", "2s")]);
    agent.wait_for_log("step 1 (attempt 1) is durable");
    agent.signal(rustix::process::Signal::TERM);
    agent.wait().expect_code(0).expect_stderr(&["warning: cannot push the metrics: http://127.0.0.1:"]);
    let last = receiver.requests().pop().unwrap();
    assert_eq!(last.path, "/metrics/job/stepvault/runs@base64/ZGVtbyxvdGhlcg==/node/node-0");
}
