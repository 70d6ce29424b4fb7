//! Steps that are sealed while the store is unreachable, and steps under a constant name: the attempt is right once the
//! store answers, and the sealed files are the announced ones.

use std::path::Path;

use serde_json::{Value, json};
use stepvault_testkit::s3::StrictS3;

use crate::support::{Outcome, Place, TestProcess, assert_members, list};

/// Nobody listens there.
const AWAY: &str = "http://127.0.0.1:1";

/// Two nodes with a disk each, and a store that is away now and then.
struct Nodes {
    place: Place,
    server: StrictS3,
}

impl Nodes {
    fn new() -> Self {
        let server = StrictS3::start();
        server.create_bucket("bucket");
        Self { place: Place::new(), server }
    }

    fn call(&self, endpoint: &str, arguments: &[&str]) -> Outcome {
        let remote = url(endpoint);
        let mut command = self.place.command(arguments);
        command.args(["--remote", &remote, "--run", "demo/a"]).envs(self.keys()).run()
    }

    fn keys(&self) -> [(&'static str, &str); 2] {
        [("AWS_ACCESS_KEY_ID", self.server.access_key()), ("AWS_SECRET_ACCESS_KEY", self.server.secret_key())]
    }

    fn there(&self, arguments: &[&str]) -> Outcome {
        self.call(&self.server.endpoint(), arguments)
    }

    fn away(&self, arguments: &[&str]) -> Outcome {
        self.call(AWAY, arguments)
    }

    /// Writes `step_N` on a node, with these weights.
    fn save(&self, node: &str, step: u64, weights: &str) -> String {
        let relative = format!("{node}/checkpoints/step_{step}");
        self.place.write(&format!("{relative}/model.bin"), weights.repeat(500));
        relative
    }

    /// The weights of the newest step, by a node that has nothing, and the step.
    fn newest(&self, target: &str) -> (String, u64, u64) {
        let restored = self.there(&["restore", "--as", target, "--json"]).expect_code(0).json();
        let bytes = self.place.read(&format!("{target}/model.bin"));
        let number = |key: &str| restored[key].as_u64().unwrap();
        (bytes, number("step"), number("attempt"))
    }

    fn sealed(&self, vault: &str) -> Vec<Value> {
        let status = self.away(&["status", "--local", vault, "--json"]).json();
        list(&status, "newest_steps").to_vec()
    }
}

fn url(endpoint: &str) -> String {
    format!("main=s3://bucket/prefix?endpoint={endpoint}&region=us-east-1&retry-deadline=1s&stall-timeout=1s")
}

#[test]
fn a_new_node_seals_in_an_outage_and_prune_keeps_what_it_sealed() {
    let nodes = Nodes::new();
    let first = nodes.save("old", 100, "a");
    nodes.there(&["push", &first]).expect_code(0);
    let second = nodes.save("old", 300, "b");
    nodes.there(&["push", &second, "--attempt", "2"]).expect_code(0);
    std::fs::remove_dir_all(nodes.place.path("old")).unwrap();

    nodes.there(&["restore", "--into", "new/checkpoints"]).expect_code(0);
    let saved = nodes.save("new", 400, "c");
    nodes.away(&["push", &saved]).expect_code(12);
    let sealed = nodes.sealed("new/.stepvault");
    assert_eq!(
        (&sealed[0]["step"], &sealed[0]["attempt"], &sealed[0]["provisional"]),
        (&400.into(), &2.into(), &true.into())
    );
    nodes.away(&["status", "--local", "new/.stepvault"]).expect_stdout(&[" 2? "]);
    let wait = ["wait", "400", "--for", "staged", "--local", "new/.stepvault", "--json"];
    assert_eq!(nodes.away(&wait).expect_code(0).json()["provisional"], true);

    let pushed = nodes.there(&["push", &saved, "--json"]).expect_code(0).json();
    assert_members(&pushed, &json!({ "attempt": 2, "newly_sealed": false }));
    assert_eq!(nodes.sealed("new/.stepvault")[0]["provisional"], false);
    assert_eq!(nodes.newest("back"), ("c".repeat(500), 400, 2));
    nodes.there(&["prune", "--keep-last", "1", "--tier", "remote"]).expect_code(0);
    assert_eq!(nodes.newest("again"), ("c".repeat(500), 400, 2));
}

#[test]
fn the_agent_of_a_new_node_seals_in_an_outage_and_its_steps_are_the_newest_afterwards() {
    let nodes = Nodes::new();
    for (step, weights) in [(100, "a"), (300, "b")] {
        let saved = nodes.save("old", step, weights);
        nodes.there(&["push", &saved]).expect_code(0);
    }
    // As 'run --step 100' has it, for a trainer that went wrong after it.
    nodes.there(&["restore", "--step", "100", "--into", "new/checkpoints"]).expect_code(0);
    nodes.save("new", 300, "c");
    nodes.place.write(
        "stepvault.toml",
        "node = \"node-0\"\n[local]\ndirectory = \"new/.stepvault\"\n[run.\"demo/a\"]\nwatch = \"new/checkpoints\"\n\
         complete = \"rename\"\n",
    );
    let agent = ["agent", "--once", "--json"];
    let served = nodes.away(&agent).expect_code(3).json();
    let left = served["not_durable"].as_array().unwrap();
    assert!(
        left.iter()
            .any(|step| step["step"] == 300 && step["reason"].as_str().unwrap().contains("provisional")),
        "{served:#}"
    );
    // Killed and started again in the outage, it does not forget.
    nodes.away(&agent).expect_code(3);
    nodes.there(&agent).expect_code(0);
    assert_eq!(nodes.newest("back"), ("c".repeat(500), 300, 2));
    // What the node before had is left as it was.
    let before = nodes.there(&["restore", "--step", "300", "--attempt", "1", "--as", "before"]);
    before.expect_code(0);
    let bytes = nodes.place.read("before/model.bin");
    assert_eq!(bytes, "b".repeat(500));
}

/// Starts an agent over `out`.
fn start_agent(nodes: &Nodes, endpoint: &str) -> TestProcess {
    std::fs::create_dir_all(nodes.place.path("out")).unwrap();
    nodes.place.write(
        "stepvault.toml",
        "node = \"node-0\"\n[local]\ndirectory = \"vault\"\n[run.\"demo/a\"]\nwatch = \"out\"\n",
    );
    let agent = nodes.place.start_agent(&["--remote", &url(endpoint)], &nodes.keys());
    nodes.place.agent_status(&[]);
    agent
}

fn overwrite(path: &Path, weights: &str) {
    use std::io::Write as _;
    let mut file = std::fs::File::options().write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all(weights.repeat(700).as_bytes()).unwrap();
}

/// Of one file that is overwritten in place every announced save has to be what it was, whenever its upload comes.
#[test]
fn an_announced_file_that_is_overwritten_in_place_keeps_its_bytes_in_the_vault() {
    let nodes = Nodes::new();
    let _agent = start_agent(&nodes, AWAY);
    let file = nodes.place.path("out/checkpoint.dat");
    for (step, weights) in [("5", "a"), ("10", "b"), ("15", "c")] {
        overwrite(&file, weights);
        let announced = nodes
            .place
            .document(0, &["announce", "out/checkpoint.dat", "--step", step, "--wait-for", "staged"]);
        assert_members(&announced, &json!({ "newly_sealed": true, "provisional": true }));
    }
    overwrite(&file, "d");
    for (step, weights) in [(5, "a"), (10, "b"), (15, "c")] {
        let kept = format!("vault/runs/demo%2Fa/steps/{step:012}.a1/data/checkpoint.dat");
        let bytes = nodes.place.read(&kept);
        assert!(bytes == weights.repeat(700), "step {step} changed with the trainer's file");
    }
}

#[test]
fn a_pushed_file_that_is_overwritten_in_place_keeps_its_bytes_in_the_vault() {
    let nodes = Nodes::new();
    let file = nodes.place.path("out/best.pt");
    std::fs::create_dir_all(nodes.place.path("out")).unwrap();
    overwrite(&file, "a");
    nodes.away(&["push", "out/best.pt", "--step", "5", "--local", "vault"]).expect_code(12);
    overwrite(&file, "b");
    let kept = nodes.place.read("vault/runs/demo%2Fa/steps/000000000005.a1/data/best.pt");
    assert_eq!(kept, "a".repeat(700));
}

#[test]
fn one_constant_directory_is_announced_under_successive_steps_and_each_comes_back() {
    let nodes = Nodes::new();
    let agent = start_agent(&nodes, &nodes.server.endpoint());
    let file = nodes.place.path("out/last/model.bin");
    std::fs::create_dir_all(nodes.place.path("out/last")).unwrap();
    for (step, weights) in [("5", "a"), ("10", "b"), ("15", "c")] {
        overwrite(&file, weights);
        let wait = ["--step", step, "--wait-for", "durable", "--json"];
        let announced = nodes.place.run(&[&["announce", "out/last"], &wait[..]].concat());
        assert_eq!(announced.expect_code(0).json()["newly_sealed"], true);
    }
    drop(agent);
    std::fs::remove_dir_all(nodes.place.path("vault")).unwrap();
    for (step, weights) in [("5", "a"), ("10", "b"), ("15", "c")] {
        let target = format!("back-{step}");
        nodes.there(&["restore", "--step", step, "--as", &target, "--local", "vault"]).expect_code(0);
        let bytes = nodes.place.read(&format!("{target}/model.bin"));
        assert!(bytes == weights.repeat(700), "step {step}");
    }
}

/// The commonest habit of trainers written by hand.
#[test]
fn one_constant_directory_is_pushed_under_successive_steps_and_each_comes_back() {
    let place = Place::new();
    let directory = place.path("out/last");
    std::fs::create_dir_all(&directory).unwrap();
    let push = |step: &str| place.run_here(&["push", "out/last", "--step", step, "--json"]);
    for (step, weights) in [("5", "a"), ("10", "b"), ("15", "b")] {
        overwrite(&directory.join("model.bin"), weights);
        let pushed = push(step).expect_code(0).json();
        assert_members(&pushed, &json!({ "attempt": 1, "newly_sealed": true }));
    }
    // Announced once more, and untouched.
    let again = push("15").expect_code(0).json();
    assert_eq!(again["remotes"][0]["already_durable"], true, "{again:#}");
    for (step, weights) in [("5", "a"), ("10", "b"), ("15", "b")] {
        let target = format!("back-{step}");
        place.succeed_here(&["restore", "--step", step, "--as", &target]);
        let bytes = place.read(&format!("{target}/model.bin"));
        assert!(bytes == weights.repeat(700), "step {step}");
    }
    place.succeed_here(&["restore", "--step", "5", "--into", "trainer"]);
    place.run_here(&["restore", "--step", "10", "--into", "trainer"]).expect_code(1);
    place.succeed_here(&["restore", "--step", "10", "--into", "trainer", "--replace"]);
    let bytes = place.read("trainer/last/model.bin");
    assert_eq!(bytes, "b".repeat(700));
    place.succeed_here(&["prune", "--keep-last", "1", "--tier", "remote"]);
    place.succeed_here(&["restore", "--as", "newest"]);
    let bytes = place.read("newest/model.bin");
    assert_eq!(bytes, "b".repeat(700));
}
