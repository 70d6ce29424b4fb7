//! The agent's process, asked to stop by signals, a notice and a file: it exits by its deadline.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use stepvault_testkit::metadata::FakeMetadata;

use crate::support::{Outcome, Place, TestProcess, list};

/// A remote that answers nobody.
const GONE: &str = "gone=s3://bucket/prefix?endpoint=http://127.0.0.1:1&retry-deadline=1s";

/// Starts an agent that serves `demo/a` with these remotes, and looks for notices at `metadata` alone.
fn start(place: &Place, remotes: &[&str], settings: &[(&str, &str)], metadata: &str) -> TestProcess {
    std::fs::create_dir_all(place.path("watched")).unwrap();
    place.write(
        "agent.toml",
        "[run.\"demo/a\"]\nwatch = \"watched\"\ncomplete = \"rename\"\n[local]\ndirectory = \"vault\"\n",
    );
    let remotes: Vec<&str> = remotes.iter().flat_map(|remote| ["--remote", remote]).collect();
    let common = ["--json", "--config", "agent.toml", "--node", "node-0"];
    let metadata = [("AWS_EC2_METADATA_DISABLED", "false"), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)];
    place.start_agent(&[&common[..], &remotes].concat(), &[settings, &metadata].concat())
}

/// Its outcome, and when it was gone.
fn ended(agent: TestProcess) -> (Outcome, Instant) {
    let outcome = agent.wait();
    (outcome, Instant::now())
}

#[test]
fn a_signal_of_the_batch_system_drains_within_the_deadline_and_the_rest_is_told() {
    let place = Place::new();
    let main = format!("main={}", place.remote());
    let settings = [("STEPVAULT_AGENT_DRAIN_DEADLINE", "4s")];
    let remotes = [main.as_str(), GONE];
    let mut agent = start(&place, &remotes, &settings, "http://127.0.0.1:1");
    place.save_into("watched", "step_7");
    agent.wait_for_log("is not durable on gone");
    agent.wait_for_log("main: step 7 (attempt 1) is durable");
    let deadline = Instant::now() + Duration::from_secs(4);
    agent.signal(Signal::USR1);
    let (outcome, gone_at) = ended(agent);
    assert!(gone_at < deadline, "{:?} late", gone_at - deadline);
    let document = outcome.expect_code(3).json();
    assert_eq!(list(&document, "not_durable").len(), 1);
    assert_eq!(document["not_durable"][0]["remote"], "gone");

    std::fs::create_dir(place.path("elsewhere")).unwrap();
    let elsewhere = format!("gone=file://{}", place.path("elsewhere").display());
    let common = ["--local", "vault", "--run", "demo/a", "--remote", &main, "--remote", &elsewhere];
    for command in ["status", "list"] {
        place
            .run(&[&[command], &common[..]].concat())
            .expect_code(0)
            .expect_stdout(&["the drain of node-0 after SIGUSR1 (", "left step 7 (attempt 1) with"]);
    }
    // Made up for: nothing is told any more.
    place.succeed(&[&["push", "watched/step_7"], &common[..]].concat());
    for command in ["status", "list"] {
        let told = place.run(&[&[command], &common[..]].concat()).expect_code(0).stdout;
        assert!(!told.contains("the drain of"), "{told}");
    }
}

#[test]
fn a_spot_notice_ends_the_process_before_the_machine_does() {
    let (place, metadata) = (Place::new(), FakeMetadata::ec2());
    let mut agent = start(&place, &[&format!("main={}", place.remote())], &[], &metadata.endpoint());
    place.save_into("watched", "step_8");
    agent.wait_for_log("main: step 8 (attempt 1) is durable");
    // At most five seconds until the next look.
    let deadline = Instant::now() + Duration::from_secs(12);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let time = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_secs(now + 12));
    metadata.interrupt(format!("{{\"action\": \"terminate\", \"time\": \"{time}\"}}"));
    let (outcome, gone_at) = ended(agent);
    assert!(gone_at < deadline, "{:?} late", gone_at - deadline);
    assert_eq!(outcome.expect_code(0).json()["durable"], true);
}

#[test]
fn the_drain_file_counts_from_the_configuration() {
    let place = Place::new();
    let file = place.path("drain");
    let settings = [("STEPVAULT_AGENT_DRAIN_FILE", file.to_str().unwrap())];
    let main = format!("main={}", place.remote());
    let mut agent = start(&place, &[&main], &settings, "http://127.0.0.1:1");
    place.save_into("watched", "step_9");
    agent.wait_for_log("main: step 9 (attempt 1) is durable");
    std::fs::write(&file, "2").unwrap();
    agent.wait().expect_code(0);
}
