//! The agent's process, asked to stop by signals, a notice and a file: it exits by its deadline.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stepvault_testkit::metadata::FakeMetadata;

use crate::support::Place;

const PATIENCE: Duration = Duration::from_mins(1);
/// A remote that answers nobody.
const GONE: &str = "gone=s3://bucket/prefix?endpoint=http://127.0.0.1:1&retry-deadline=1s";

struct Agent {
    process: Child,
    log: PathBuf,
}

impl Agent {
    /// Starts one that serves `demo/a` with these remotes, and looks for notices at `metadata` alone.
    fn start(place: &Place, remotes: &[&str], settings: &[(&str, &str)], metadata: &str) -> Self {
        std::fs::create_dir_all(place.path("watched")).unwrap();
        std::fs::write(
            place.path("agent.toml"),
            "[run.\"demo/a\"]\nwatch = \"watched\"\ncomplete = \"rename\"\n[local]\ndirectory = \"vault\"\n",
        )
        .unwrap();
        let log = place.path("agent.log");
        let mut command = place.command(&["agent", "--json", "--config", "agent.toml", "--node", "node-0"]);
        for remote in remotes {
            command.args(["--remote", remote]);
        }
        let process = command
            .envs(settings.iter().copied())
            .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)
            .env("STEPVAULT_AGENT_POLL_INTERVAL", "200ms")
            .stderr(std::fs::File::create(&log).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, log }
    }

    fn until_logged(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            let log = std::fs::read_to_string(&self.log).unwrap();
            if log.contains(text) {
                return;
            }
            let ended = self.process.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "{text}: {ended:?}\n{log}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Its code, its document, and when it was gone.
    fn ended(self) -> (i32, Value, Instant) {
        let output = self.process.wait_with_output().unwrap();
        let gone_at = Instant::now();
        let text = String::from_utf8(output.stdout).unwrap();
        let document = serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("{error}: {text}: {}", std::fs::read_to_string(self.log).unwrap())
        });
        (output.status.code().unwrap_or(-1), document, gone_at)
    }
}

fn save(place: &Place, name: &str) {
    let made = place.checkpoint(name, name);
    std::fs::rename(made, place.path("watched").join(name)).unwrap();
}

#[test]
fn a_signal_of_the_batch_system_drains_within_the_deadline_and_the_rest_is_told() {
    let place = Place::new();
    let main = format!("main={}", place.remote());
    let settings = [("STEPVAULT_AGENT_DRAIN_DEADLINE", "4s")];
    let remotes = [main.as_str(), GONE];
    let mut agent = Agent::start(&place, &remotes, &settings, "http://127.0.0.1:1");
    save(&place, "step_7");
    agent.until_logged("is not durable on gone");
    agent.until_logged("main: step 7 (attempt 1) is durable");
    let deadline = Instant::now() + Duration::from_secs(4);
    agent.signal(Signal::USR1);
    let (code, document, gone_at) = agent.ended();
    assert!(gone_at < deadline, "{:?} late", gone_at - deadline);
    assert_eq!(code, 3, "{document:#}");
    assert_eq!(document["not_durable"][0]["remote"], "gone");
    assert_eq!(document["not_durable"].as_array().unwrap().len(), 1);

    std::fs::create_dir(place.path("elsewhere")).unwrap();
    let elsewhere = format!("gone=file://{}", place.path("elsewhere").display());
    let common = [
        "--local", "vault", "--run", "demo/a", "--remote", &main, "--remote", &elsewhere,
    ];
    for command in ["status", "list"] {
        let told = place
            .run(&[&[command], &common[..]].concat())
            .expect_code(0)
            .stdout;
        assert!(
            told.contains("the drain of node-0 after SIGUSR1 (")
                && told.contains("left step 7 (attempt 1) with"),
            "{told}"
        );
    }
    // Made up for: nothing is told any more.
    place
        .run(&[&["push", "watched/step_7"], &common[..]].concat())
        .expect_code(0);
    for command in ["status", "list"] {
        let told = place
            .run(&[&[command], &common[..]].concat())
            .expect_code(0)
            .stdout;
        assert!(!told.contains("the drain of"), "{told}");
    }
}

#[test]
fn a_spot_notice_ends_the_process_before_the_machine_does() {
    let (place, metadata) = (Place::new(), FakeMetadata::ec2());
    let mut agent = Agent::start(
        &place,
        &[&format!("main={}", place.remote())],
        &[],
        &metadata.endpoint(),
    );
    save(&place, "step_8");
    agent.until_logged("main: step 8 (attempt 1) is durable");
    // At most five seconds until the next look.
    let deadline = Instant::now() + Duration::from_secs(12);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let time = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_secs(now + 12));
    metadata.interrupt(format!("{{\"action\": \"terminate\", \"time\": \"{time}\"}}"));
    let (code, document, gone_at) = agent.ended();
    assert!(gone_at < deadline, "{:?} late", gone_at - deadline);
    assert_eq!((code, &document["safe"]), (0, &Value::Bool(true)));
}

#[test]
fn the_drain_file_counts_from_the_configuration() {
    let place = Place::new();
    let file = place.path("drain");
    let settings = [("STEPVAULT_AGENT_DRAIN_FILE", file.to_str().unwrap())];
    let main = format!("main={}", place.remote());
    let mut agent = Agent::start(&place, &[&main], &settings, "http://127.0.0.1:1");
    save(&place, "step_9");
    agent.until_logged("main: step 9 (attempt 1) is durable");
    std::fs::write(&file, "2").unwrap();
    assert_eq!(agent.ended().0, 0);
}
