//! Three nodes with a trainer and an agent each, and the store that they share.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use stepvault_testkit::process::{Outcome, PATIENCE, TestCommand};
use stepvault_testkit::random::Random;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};
use stepvault_testkit::tree;
use tempfile::TempDir;

use crate::PROGRAM;
use crate::nodes::agent::Agent;
use crate::nodes::ledger::Ledger;
use crate::nodes::namespaces::Network;
use crate::nodes::schedule::{INCOMPLETE_AFTER_SECONDS, NODES, Schedule};

pub(crate) const RUN: &str = "demo";
const BUCKET: &str = "bucket";
/// The prefix of the keys of the layout.
pub(crate) const PREFIX: &str = "bucket/checkpoints/";
/// The number of last lines of each agent that a failure shows.
const LINES_SHOWN: usize = 25;

/// One node, as far as the test controls it.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) agent: Option<Agent>,
    /// The number of agents started here.
    pub(crate) lives: u32,
    pub(crate) frozen: bool,
    pub(crate) cut: bool,
    /// Whether it must not be started again for now.
    pub(crate) lost: bool,
}

/// The whole cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Network,
    pub(crate) store: StrictS3,
    pub(crate) ledger: Ledger,
    launch: Option<&'static str>,
    seed: u64,
    directory: TempDir,
}

/// Files by their path in the checkpoint.
pub(crate) type Tree = BTreeMap<PathBuf, Vec<u8>>;

impl Cluster {
    /// Creates the network, the store, and the nodes' disks; nothing runs yet.
    ///
    /// # Errors
    /// What keeps this machine from having the network.
    pub(crate) fn make(schedule: &Schedule) -> Result<Self, String> {
        let network = Network::make(NODES)?;
        let store = StrictS3::start_on(network.listen(), StrictS3Options::default());
        store.create_bucket(BUCKET);
        let ledger = Ledger::watch(store.objects());
        let cluster = Self {
            nodes: (0..NODES).map(|_| Node::default()).collect(),
            network,
            store,
            ledger,
            launch: schedule.named_launch.then_some("launch-1"),
            seed: schedule.seed,
            directory: tempfile::tempdir().unwrap(),
        };
        for node in 0..NODES {
            cluster.furnish(&cluster.disk(node), schedule.lost.is_some());
        }
        Ok(cluster)
    }

    /// Returns the directory of a node's files.
    pub(crate) fn disk(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("node-{node}"))
    }

    /// Replaces a node's disk by an empty one.
    pub(crate) fn empty_disk(&self, node: usize) -> PathBuf {
        let disk = self.directory.path().join(format!("node-{node}-anew"));
        self.furnish(&disk, true);
        disk
    }

    fn furnish(&self, disk: &Path, loses_a_node: bool) {
        for directory in ["checkpoints", "scratch", "tmp"] {
            fs::create_dir_all(disk.join(directory)).unwrap();
        }
        let incomplete_after =
            if loses_a_node { format!("{INCOMPLETE_AFTER_SECONDS}s") } else { "30m".to_owned() };
        let configuration = format!(
            r#"
format = 1
[local]
directory = "vault"
[upload]
incomplete-after = "{incomplete_after}"
[agent]
poll-interval = "200ms"
drain-deadline = "4s"
[remote.main]
url = "s3://{BUCKET}/checkpoints"
endpoint = "{}"
allow-http = true
stall-timeout = "2s"
retry-deadline = "4s"
[run."{RUN}"]
watch = "checkpoints"
complete = "rename"
pattern = "step_*"
"#,
            self.store.endpoint()
        );
        fs::write(disk.join("stepvault.toml"), configuration).unwrap();
    }

    fn command(&self, node: usize, disk: &Path, launch: Option<&str>, arguments: &[&str]) -> TestCommand {
        let mut command = TestCommand::new(PROGRAM, disk).with(arguments);
        command
            .option("--nodes", NODES.to_string())
            .option("--node", format!("node-{node}"))
            .env("TMPDIR", disk.join("tmp"))
            .env("AWS_ACCESS_KEY_ID", self.store.access_key())
            .env("AWS_SECRET_ACCESS_KEY", self.store.secret_key())
            .envs(launch.map(|launch| ("STEPVAULT_LAUNCH", launch)));
        command
    }

    /// Runs a command inside a node's namespace to its end.
    fn run_inside(&self, node: usize, command: &TestCommand) -> Result<Outcome, String> {
        let process = self.network.node(node).run(|| command.start());
        process.try_wait_within(PATIENCE)
    }

    /// Starts a node's agent.
    pub(crate) fn start(&mut self, node: usize) {
        let disk = self.disk(node);
        let command = self.command(node, &disk, self.launch, &["agent", "--json"]);
        let agent = Agent::start(
            self.network.node(node),
            &command,
            &disk.join("agent.log"),
            &disk.join("report.json"),
        );
        let node = &mut self.nodes[node];
        node.agent = Some(agent);
        node.lives += 1;
        node.frozen = false;
    }

    /// Ends a node's agent at once.
    pub(crate) fn kill(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.agent = None;
        node.frozen = false;
    }

    /// Freezes or resumes a node's agent.
    pub(crate) fn freeze(&mut self, node: usize, frozen: bool) {
        let node = &mut self.nodes[node];
        if let Some(agent) = &node.agent {
            agent.signal(if frozen { Signal::STOP } else { Signal::CONT });
            node.frozen = frozen;
        }
    }

    /// Runs a command on a node, in the job's launch.
    pub(crate) fn run(&self, node: usize, arguments: &[&str]) -> Result<Outcome, String> {
        let disk = self.disk(node);
        let command = self.command(node, &disk, self.launch, arguments);
        self.run_inside(node, &command)
    }

    /// Runs a command on a node with this disk, in the job's next launch.
    pub(crate) fn run_in_next_launch(
        &self,
        node: usize,
        disk: &Path,
        arguments: &[&str],
    ) -> Result<Outcome, String> {
        let command = self.command(node, disk, Some("launch-2"), arguments);
        self.run_inside(node, &command)
    }

    /// Returns the output of a node's agents so far.
    pub(crate) fn log(&self, node: usize) -> String {
        fs::read_to_string(self.disk(node).join("agent.log")).unwrap_or_default()
    }

    /// Writes the part of a node's trainer of a step, and gives it its name once it is whole.
    pub(crate) fn write(&self, node: usize, step: u64) {
        let disk = self.disk(node);
        let draft = disk.join("scratch").join(format!("step_{step}"));
        for (path, bytes) in self.part(node, step) {
            tree::write(&draft.join(path), bytes);
        }
        fs::rename(draft, disk.join("checkpoints").join(format!("step_{step}"))).unwrap();
    }

    /// Returns a node's part of a step: its own files, and one that is the same on all nodes.
    fn part(&self, node: usize, step: u64) -> Tree {
        let mut tree = Tree::new();
        let mut random = Random(self.seed ^ (step << 8) ^ node as u64);
        for shard in 0..2 {
            let bytes = random.index(6 << 10) + 1;
            let bytes = random.bytes(bytes);
            tree.insert(format!("rank_{node}/shard_{shard}.bin").into(), bytes);
        }
        let common = Random(self.seed ^ step).bytes(700);
        tree.insert("common.bin".into(), common);
        tree
    }

    /// Returns all files that the nodes wrote of a step.
    pub(crate) fn whole(&self, step: u64) -> Tree {
        (0..NODES).flat_map(|node| self.part(node, step)).collect()
    }

    /// Returns the ends of the agents' logs, for a failure report.
    pub(crate) fn story(&self) -> String {
        let mut story = String::new();
        for node in 0..NODES {
            let log = self.log(node);
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
            let state = &self.nodes[node];
            let _ = writeln!(
                story,
                "node-{node} (agent runs: {}, frozen: {}, cut: {}, starts: {}), the end of its log:\n  {}",
                state.agent.is_some(),
                state.frozen,
                state.cut,
                state.lives,
                shown.join("\n  ")
            );
        }
        let _ = writeln!(story, "the store holds:\n  {}", self.store.objects().keys().join("\n  "));
        story
    }

    /// Keeps the nodes' disks for inspection.
    pub(crate) fn keep(&mut self) -> PathBuf {
        self.directory.disable_cleanup(true);
        self.directory.path().to_owned()
    }
}

/// Returns the files below a directory.
pub(crate) fn read_tree(root: &Path) -> Tree {
    let files = tree::read_tree(root).into_iter();
    files.map(|(path, (_, bytes))| (path, bytes)).collect()
}
