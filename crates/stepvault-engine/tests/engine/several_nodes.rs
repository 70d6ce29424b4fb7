//! Steps that several nodes write together.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use stepvault_core::ErrorKind;
use stepvault_core::clock::Clock as _;
use stepvault_core::codec::encode;
use stepvault_core::commit::Commit;
use stepvault_core::ids::{Attempt, NodeName, Step, StepId};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::{NodePlace, NodeSet, Writer, ranked};
use stepvault_core::path::RelativePath;
use stepvault_core::placement::LiveSave;
use stepvault_core::records::Tombstone;
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::launches::record_beginning;
use stepvault_engine::push::{CheckpointToSeal, PushReport};
use stepvault_engine::restore::{
    HandoffOptions, Parts, RestorePlan, RestoreReport, RestoreRequest, Target, Together, plan, restore,
};
use stepvault_engine::tier::catalog::read_commit;
use stepvault_engine::tier::step_state::visible_and_incomplete;
use stepvault_engine::upload::Uploaded;
use stepvault_local::clock::SystemClock;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, id, in_launch, in_launch_since, run_name};

/// Nodes that share one remote, each with a disk of its own.
struct Cluster {
    rigs: Vec<Rig>,
    launch: String,
    shared: bool,
}

impl Cluster {
    async fn new(count: usize) -> Self {
        let mut rigs = vec![Rig::with_directory().await];
        while rigs.len() < count {
            let mut rig = Rig::new();
            rig.remotes.clone_from(&rigs[0].remotes);
            rig.stores.clone_from(&rigs[0].stores);
            rigs.push(rig);
        }
        Self { rigs, launch: "first".to_owned(), shared: false }
    }

    fn writer(&self, rank: usize) -> Writer {
        let nodes = NodeSet::counted(self.rigs.len()).unwrap();
        Writer {
            place: NodePlace::new(ranked(rank).unwrap(), nodes).unwrap(),
            launch: Some(LaunchName::new(self.launch.as_str()).unwrap()),
            shared: self.shared,
        }
    }

    fn request(&self, rank: usize, source: &Path) -> CheckpointToSeal {
        self.rigs[rank].request_of(self.writer(rank), source)
    }

    /// Writes and pushes a node's own files of a step that its agent saw appear.
    async fn save_live(
        &self,
        rank: usize,
        step: u64,
        written_seconds: i64,
        after: Option<u64>,
    ) -> PushReport {
        let own = format!("rank_{rank}.distcp");
        let files = [(own.as_str(), 3000), ("common.json", 200)];
        let source = self.rigs[rank].write_step(step, &files, step + 7, written_seconds);
        let mut request = self.request(rank, &source);
        request.origin.live = Some(LiveSave { after: after.map(|step| id(1, step).step) });
        self.rigs[rank].push_as(request).await.unwrap()
    }

    async fn push(&self, rank: usize, source: &Path) -> PushReport {
        self.rigs[rank].push_as(self.request(rank, source)).await.unwrap()
    }

    /// Writes and pushes a node's own files of a step.
    async fn save(&self, rank: usize, step: u64, written_seconds: i64) -> PushReport {
        let own = format!("rank_{rank}.distcp");
        let source =
            self.rigs[rank].write_step(step, &[(&own, 3000), ("common.json", 200)], step, written_seconds);
        self.push(rank, &source).await
    }

    fn restore_request(&self, rank: usize) -> RestoreRequest {
        RestoreRequest {
            together: Some(Together {
                writer: self.writer(rank),
                since: Timestamp::default(),
                patience: Duration::from_secs(2),
            }),
            resumes: true,
            ..self.rigs[rank].restore_request()
        }
    }

    async fn restore(&self, rank: usize) -> stepvault_core::Result<RestoreReport> {
        restore(&self.rigs[rank].context(), &self.restore_request(rank)).await
    }

    /// Restores beside the trainer, which does not resume from it.
    async fn restore_beside(&self, rank: usize) -> stepvault_core::Result<RestoreReport> {
        let request = RestoreRequest { resumes: false, ..self.restore_request(rank) };
        restore(&self.rigs[rank].context(), &request).await
    }

    /// Both nodes start at once; returns what each of them restored.
    async fn restore_both(&self) -> [RestoreReport; 2] {
        let (left, right) = tokio::join!(Box::pin(self.restore(0)), Box::pin(self.restore(1)));
        [left.unwrap(), right.unwrap()]
    }

    async fn plan(&self, rank: usize) -> RestorePlan {
        plan(&self.rigs[rank].context(), &self.restore_request(rank)).await.unwrap()
    }

    fn remote(&self) -> &stepvault_engine::tier::run_remote::RunRemote {
        &self.rigs[0].remotes[0]
    }
}

fn missing(report: &PushReport) -> Vec<String> {
    match report.remotes[0].result.as_ref().unwrap() {
        Uploaded::Incomplete { missing } => missing.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    }
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_step_is_committed_by_the_node_that_brings_the_last_part_and_never_before() {
    let cluster = Cluster::new(3).await;
    let first = cluster.save(0, 100, 1000).await;
    assert_eq!(missing(&first), ["node-1", "node-2"]);
    assert_eq!(missing(&cluster.save(2, 100, 1500).await), ["node-1"]);
    let error = read_commit(cluster.remote(), id(1, 100)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = cluster.restore_beside(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);

    let last = cluster.save(1, 100, 1200).await;
    assert_eq!(*last.remotes[0].result.as_ref().unwrap(), Uploaded::Durable);
    let commit = read_commit(cluster.remote(), id(1, 100)).await.unwrap();
    assert_eq!(commit.parts.len(), 3);
    assert_eq!(commit.written_at.seconds, 1500);
    // The others find it committed.
    let again = cluster.save(0, 100, 1000).await;
    assert_eq!(*again.remotes[0].result.as_ref().unwrap(), Uploaded::AlreadyDurable);

    let elsewhere = Rig::new();
    let mut context = elsewhere.context();
    context.remotes.clone_from(&cluster.rigs[0].remotes);
    let restored = restore(&context, &elsewhere.restore_request()).await.unwrap();
    assert_eq!(
        names(&restored.plan.path),
        ["common.json", "rank_0.distcp", "rank_1.distcp", "rank_2.distcp"]
    );
    let request = RestoreRequest {
        target: Target::As(elsewhere.directory.path().join("own")),
        parts: Parts::Of(ranked(1).unwrap()),
        ..elsewhere.restore_request()
    };
    restore(&context, &request).await.unwrap();
    assert_eq!(names(&elsewhere.directory.path().join("own")), ["common.json", "rank_1.distcp"]);
    let request = RestoreRequest {
        target: Target::As(elsewhere.directory.path().join("nobody")),
        parts: Parts::Of(ranked(7).unwrap()),
        ..elsewhere.restore_request()
    };
    let error = restore(&context, &request).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no part of the step is selected: step 100 (attempt 1): the part of node-7 was requested, and the step has \
         parts of node-0, node-1, node-2"
    );
}

#[tokio::test]
async fn later_steps_are_committed_while_an_earlier_one_waits() {
    let cluster = Cluster::new(2).await;
    assert_eq!(missing(&cluster.save(0, 100, 1000).await), ["node-1"]);
    cluster.save(0, 200, 2000).await;
    let late = cluster.save(1, 200, 2000).await;
    assert_eq!(late.id, id(1, 200));
    assert!(late.remotes[0].result.as_ref().unwrap().is_durable());
    // Found late by a node that was away, and older than what it has: no new attempt.
    let completed = cluster.save(1, 100, 1000).await;
    assert_eq!(completed.id, id(1, 100));
    assert!(completed.remotes[0].result.as_ref().unwrap().is_durable());
}

#[tokio::test]
async fn nodes_that_commit_at_the_same_moment_write_one_commit() {
    for _ in 0..8 {
        let cluster = Cluster::new(2).await;
        let (left, right) = tokio::join!(cluster.save(0, 100, 1000), cluster.save(1, 100, 1001));
        let mut durable = 0;
        for (rank, report) in [left, right].iter().enumerate() {
            let outcome = report.remotes[0].result.as_ref().unwrap();
            durable += usize::from(outcome.is_durable());
            let rig = &cluster.rigs[rank];
            let sealed = rig.vault.step(&run_name(), report.id).unwrap().unwrap();
            assert!(rig.upload_session().await.commit_if_complete(&sealed).await.unwrap().is_durable());
        }
        assert!(durable >= 1, "the node that comes last commits");
        read_commit(cluster.remote(), id(1, 100)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_wait_leave_the_commit_to_the_one_that_came_last() {
    const NODES: usize = 12;
    let server = StrictS3::start();
    let mut cluster = Cluster::new(NODES).await;
    for rig in &mut cluster.rigs {
        rig.remotes.clear();
        rig.add_s3("main", &server).await;
    }
    for rank in 1..NODES {
        let report = cluster.save(rank, 100, 1000).await;
        assert!(!report.remotes[0].result.as_ref().unwrap().is_durable());
    }
    let mut waiting = Vec::new();
    for rig in &cluster.rigs[1..] {
        let sealed = rig.vault.step(&run_name(), id(1, 100)).unwrap().unwrap();
        waiting.push((rig.upload_session().await, sealed));
    }
    // All parts exist, and the others look, before the commit does.
    server.faults().inject("PUT", "/commits/", 1, FaultAction::Delay(Duration::from_millis(500)));
    server.faults().clear_requests();
    let others = async {
        while asked(server.faults(), "PUT", "/commits/") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        join_all(waiting.iter().map(|(session, sealed)| session.commit_if_complete(sealed))).await
    };
    let (last, others) = tokio::join!(cluster.save(0, 100, 1000), others);
    assert!(last.remotes[0].result.as_ref().unwrap().is_durable());
    assert!(others.into_iter().all(|other| other.unwrap().is_durable()));
    // The one that commits reads each manifest twice: for the commit, and to see that its files are there.
    let manifests = server.faults().requests().into_iter().filter(|request| {
        request.method == "GET" && request.path.contains("/parts/") && !request.path.contains("list-type=2")
    });
    assert!(manifests.count() <= 2 * NODES + 1);
    assert_eq!(asked(server.faults(), "PUT", "/commits/"), 1);
}

#[tokio::test]
async fn files_that_nodes_have_in_common_are_sent_once() {
    let server = StrictS3::start();
    let mut cluster = Cluster::new(2).await;
    for rig in &mut cluster.rigs {
        rig.remotes.clear();
        rig.add_s3("main", &server).await;
    }
    let common = ("tokenizer.json", 500_000);
    for rank in [0, 1] {
        let own = format!("rank_{rank}.distcp");
        let source = cluster.rigs[rank].write_step(100, &[(&own, 1000), common], 7, 1000);
        cluster.push(rank, &source).await;
    }
    assert_eq!(*cluster.rigs[0].recorder.moved.lock().unwrap(), 501_000);
    assert_eq!(*cluster.rigs[1].recorder.moved.lock().unwrap(), 1000);
    let commit = read_commit(&cluster.rigs[0].remotes[0], id(1, 100)).await.unwrap();
    assert_eq!(commit.file_count(), 4, "each part lists what its node had");
}

#[tokio::test]
async fn a_file_that_differs_between_nodes_fails_the_step_by_name_and_nothing_is_torn() {
    let cluster = Cluster::new(2).await;
    let one = cluster.rigs[0].write_step(100, &[("state.json", 300)], 1, 1000);
    let other = cluster.rigs[1].write_step(100, &[("state.json", 300)], 2, 1000);
    cluster.push(0, &one).await;
    let report = cluster.push(1, &other).await;
    let error = report.remotes[0].result.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(
        error.to_string().starts_with(
            "cannot upload a file: another node has a different file under the same path: state.json: "
        ),
        "{error}"
    );
    let key = cluster.remote().keys.data("step_100", id(1, 100), &RelativePath::new("state.json").unwrap());
    let there = cluster.remote().read_small(&key.unwrap()).await.unwrap().unwrap();
    assert_eq!(there, std::fs::read(one.join("state.json")).unwrap());
}

#[tokio::test]
async fn a_step_that_lacks_a_part_is_listed_as_incomplete_until_it_is_removed() {
    let cluster = Cluster::new(2).await;
    cluster.save(0, 100, 1000).await;
    let listed = async || visible_and_incomplete(cluster.remote(), None).await.unwrap();
    let steps = listed().await;
    assert_eq!(steps.ids, [id(1, 100)].into());
    let told: Vec<(StepId, &str)> =
        steps.incomplete.iter().map(|step| (step.id, step.name.as_str())).collect();
    assert_eq!(told, [(id(1, 100), "step_100")]);
    cluster.rigs[0].tombstone(100).await;
    let steps = listed().await;
    assert!(steps.ids.is_empty() && steps.incomplete.is_empty(), "{steps:?}");
}

#[tokio::test]
async fn nodes_that_declare_different_things_are_told_so() {
    let mut cluster = Cluster::new(2).await;
    cluster.save(0, 100, 1000).await;
    let source = cluster.rigs[1].write_step(100, &[("rank_1.distcp", 10)], 1, 1000);
    let single = CheckpointToSeal {
        attempt: Some(Attempt::FIRST),
        ..cluster.rigs[1].request_of(Writer::single_node(NodeName::new("node-1").unwrap()), &source)
    };
    let error = cluster.rigs[1].push_as(single).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    "second".clone_into(&mut cluster.launch);
    let other_launch = CheckpointToSeal { attempt: Some(Attempt::FIRST), ..cluster.request(1, &source) };
    let report = cluster.rigs[1].push_as(other_launch).await.unwrap();
    let error = report.remotes[0].result.as_ref().unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("it was begun in launch 'first', but on this node it belongs to launch 'second'"),
        "{error}"
    );
    assert!(error.is_name_taken(), "another attempt solves it");
}

/// They would not agree on another attempt either, so none is begun.
#[tokio::test]
async fn a_node_that_counts_more_nodes_is_told_so_and_begins_no_attempt() {
    let cluster = Cluster::new(2).await;
    cluster.save(0, 100, 1000).await;
    let source = cluster.rigs[1].write_step(100, &[("rank_1.distcp", 10)], 1, 1000);
    let mut request = CheckpointToSeal { attempt: Some(Attempt::FIRST), ..cluster.request(1, &source) };
    let place = NodePlace::new(ranked(1).unwrap(), NodeSet::counted(3).unwrap()).unwrap();
    request.current.writer.place = place;
    let report = cluster.rigs[1].push_as(request).await.unwrap();
    let error = report.remotes[0].result.as_ref().unwrap_err();
    assert_eq!((error.kind(), error.is_name_taken()), (ErrorKind::Conflict, false), "{error}");
    let hint = "declare the same nodes everywhere, with --nodes or nodes = in the configuration";
    let text = error.text_with_hint();
    assert!(text.contains(hint), "{text}");
}

#[tokio::test]
async fn a_restart_is_another_attempt_for_all_nodes() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
        cluster.save(rank, 200, 2000).await;
    }
    "second".clone_into(&mut cluster.launch);
    assert_eq!(cluster.save(1, 200, 3000).await.id, id(2, 200));
    assert_eq!(cluster.save(0, 200, 3001).await.id, id(2, 200));
    read_commit(cluster.remote(), id(2, 200)).await.unwrap();
    // A node that was replaced learns its attempt from the others.
    cluster.rigs[0].lose_node();
    assert_eq!(cluster.save(0, 300, 4000).await.id, id(2, 300));
}

/// An agent may join the launch and claim a step of it between two listings. A node that sees the claim has to see the
/// launch's record as well, or takes the attempt for another launch's, and makes a second one.
#[tokio::test]
async fn records_of_launches_are_listed_after_all_that_may_be_of_one() {
    let server = StrictS3::start();
    let mut cluster = Cluster::new(2).await;
    cluster.rigs[0].remotes.clear();
    cluster.rigs[0].add_s3("main", &server).await;
    cluster.save(0, 100, 1000).await;
    let requests = server.faults().requests();
    let created = requests
        .iter()
        .position(|request| request.method == "PUT" && request.path.contains("/launches/"))
        .unwrap();
    let listed = |what: &str| {
        let before = requests[..created].iter();
        let is_list = |path: &str| path.contains("prefix=") && path.contains(what);
        before.rev().position(|request| is_list(&request.path)).unwrap()
    };
    // Counted from the creation backwards.
    for what in ["commits", "attempts", "tombstones"] {
        assert!(listed("launches") < listed(what), "{what}");
    }
}

#[tokio::test]
async fn going_back_without_a_restart_is_one_attempt_for_all_nodes() {
    let cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
        cluster.save(rank, 200, 2000).await;
        cluster.save(rank, 300, 3000).await;
    }
    // One save alone stays in its place, for both nodes.
    let beside = id(1, 100).next_revision().unwrap();
    assert_eq!(cluster.save_live(0, 100, 4000, None).await.id, beside);
    assert_eq!(cluster.save_live(1, 100, 4000, None).await.id, beside);
    assert_eq!(cluster.save_live(0, 200, 4100, Some(100)).await.id, id(2, 200));
    assert_eq!(cluster.save_live(1, 200, 4200, Some(100)).await.id, id(2, 200));
    assert_eq!(cluster.save_live(1, 300, 5000, None).await.id, id(2, 300));
    assert_eq!(cluster.save_live(0, 300, 5000, None).await.id, id(2, 300));
}

#[tokio::test]
async fn what_a_restore_put_there_is_no_new_save() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
    }
    cluster.rigs[1].lose_node();
    "second".clone_into(&mut cluster.launch);
    let restored = cluster.restore(1).await.unwrap().plan.path;
    assert_eq!(names(&restored).len(), 3);
    let found = cluster.push(1, &restored).await;
    assert_eq!(found.id, id(1, 100));
    assert!(!found.newly_sealed);
    // The same bytes, saved again by the second launch: its own, as the other node's may differ.
    assert_eq!(cluster.save(1, 100, 5000).await.id, id(2, 100));
}

#[tokio::test]
async fn a_tombstoned_step_is_acknowledged_by_nobody() {
    let cluster = Cluster::new(2).await;
    cluster.save(0, 100, 1000).await;
    cluster.save(1, 100, 1000).await;
    let id = id(1, 100);
    let tombstone = Tombstone { format: 1, run: run_name(), id, name: "step_100".to_owned(), by_gc: false };
    let remote = cluster.remote();
    remote.create_record(&remote.keys.tombstone(id), &tombstone).await.unwrap();
    let rig = &cluster.rigs[0];
    let sealed = rig.vault.step(&run_name(), id).unwrap().unwrap();
    let session = rig.upload_session().await;
    for error in
        [session.commit_if_complete(&sealed).await.unwrap_err(), session.upload(&sealed).await.unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
}

#[tokio::test]
async fn a_node_does_not_wait_for_the_parts_of_a_removed_step() {
    let cluster = Cluster::new(2).await;
    cluster.save(0, 100, 1000).await;
    let (remote, rig) = (cluster.remote(), &cluster.rigs[0]);
    let sealed = rig.vault.step(&run_name(), id(1, 100)).unwrap().unwrap();
    let session = rig.upload_session().await;
    assert!(!session.commit_if_complete(&sealed).await.unwrap().is_durable());
    let tombstone =
        Tombstone { format: 1, run: run_name(), id: id(1, 100), name: "step_100".to_owned(), by_gc: true };
    remote.create_record(&remote.keys.tombstone(id(1, 100)), &tombstone).await.unwrap();
    let error = session.commit_if_complete(&sealed).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}

/// A node that waits for the others' parts finds what another node of its name has committed.
#[tokio::test]
async fn a_commit_with_another_part_of_this_node_is_not_its_own() {
    let cluster = Cluster::new(2).await;
    cluster.save(0, 100, 1000).await;
    cluster.save(1, 100, 1000).await;
    let (remote, rig) = (cluster.remote(), &cluster.rigs[0]);
    let sealed = rig.vault.step(&run_name(), id(1, 100)).unwrap().unwrap();
    let session = rig.upload_session().await;
    assert!(session.commit_if_complete(&sealed).await.unwrap().is_durable());
    let key = remote.keys.commit(id(1, 100));
    let (mut commit, _) = remote.read_record::<Commit>(&key).await.unwrap().unwrap();
    // Its part is there, and its name is, but not together.
    let own = commit.parts[0].manifest_sha256;
    commit.parts[0].manifest_sha256 = commit.parts[1].manifest_sha256;
    commit.parts[1].manifest_sha256 = own;
    remote.replace_record(&key, &commit).await.unwrap();
    let error = session.commit_if_complete(&sealed).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("another part of this node"), "{error}");
}

#[tokio::test]
async fn a_commit_follows_from_its_parts_alone() {
    let cluster = Cluster::new(2).await;
    cluster.save(1, 100, 1000).await;
    cluster.save(0, 100, 1000).await;
    let remote = cluster.remote();
    let commit = read_commit(remote, id(1, 100)).await.unwrap();
    let bytes = remote.read_small(&remote.keys.commit(id(1, 100))).await.unwrap().unwrap();
    assert_eq!(encode::<Commit>(&commit).unwrap(), bytes);
    let nodes: Vec<&str> = commit.parts.iter().map(|part| part.node.as_str()).collect();
    assert_eq!(nodes, ["node-0", "node-1"]);
}

#[tokio::test]
async fn a_directory_that_all_nodes_see_is_shared_out_among_them() {
    let mut cluster = Cluster::new(3).await;
    cluster.shared = true;
    let files: &[(&str, usize)] = &[("a", 900), ("b", 800), ("c", 700), ("d", 10), ("e", 10), ("sub/f", 5)];
    let mut last = None;
    for rank in 0..3 {
        let source = cluster.rigs[rank].write_step(100, files, 1, 1000);
        last = Some(cluster.push(rank, &source).await);
    }
    assert!(last.unwrap().remotes[0].result.as_ref().unwrap().is_durable());
    let sent: Vec<u64> = cluster.rigs.iter().map(|rig| *rig.recorder.moved.lock().unwrap()).collect();
    assert_eq!(sent.iter().sum::<u64>(), 2425);
    assert!(sent.iter().all(|bytes| (700..=900).contains(bytes)), "{sent:?}");
    let restored = cluster.restore_beside(2).await.unwrap();
    assert_eq!(names(&restored.plan.path), ["a", "b", "c", "d", "e", "sub"]);

    // One that was seen with a file less is not whole.
    let fewer = cluster.rigs[0].write_step(200, &files[1..], 1, 2000);
    cluster.push(0, &fewer).await;
    let mut report = None;
    for rank in 1..3 {
        let source = cluster.rigs[rank].write_step(200, files, 1, 2000);
        report = Some(cluster.push(rank, &source).await);
    }
    let error = report.unwrap().remotes.remove(0).result.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the parts of step 200 (attempt 1) do not match: node-0 and node-1: they differ in the content of the shared \
         directory"
    );
}

/// Steps 100 durable and 200 sealed on both nodes, with 200 uploaded by one of them.
async fn with_a_newer_sealed_step() -> Cluster {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
    }
    cluster.save(0, 200, 2000).await;
    // Sealed, and cut off from the store.
    let rig = &mut cluster.rigs[1];
    let remotes = rig.remotes.clone();
    let source = rig.write_step(200, &[("rank_1.distcp", 3000), ("common.json", 200)], 200, 2000);
    let request = CheckpointToSeal { attempt: Some(Attempt::FIRST), ..cluster.request(1, &source) };
    cluster.rigs[1].remotes.clear();
    cluster.rigs[1].push_as(request).await.unwrap();
    cluster.rigs[1].remotes = remotes;
    "second".clone_into(&mut cluster.launch);
    cluster
}

/// A trainer that is started on a part of a step fails, or reads the others' parts of an older one (S3).
#[tokio::test]
async fn nodes_that_hold_all_parts_of_a_step_upload_it_and_each_restores_all_of_it() {
    let cluster = with_a_newer_sealed_step().await;
    for report in cluster.restore_both().await {
        assert_eq!(report.plan.id, id(1, 200));
        assert_eq!(names(&report.plan.path), ["common.json", "rank_0.distcp", "rank_1.distcp"]);
    }
    let commit = read_commit(cluster.remote(), id(1, 200)).await.unwrap();
    assert_eq!(commit.parts.len(), 2);
}

#[tokio::test]
async fn nodes_restore_their_own_parts_of_such_a_step_where_that_was_requested() {
    let cluster = with_a_newer_sealed_step().await;
    let restore_own = async |rank: usize| {
        let request =
            RestoreRequest { parts: Parts::Of(ranked(rank).unwrap()), ..cluster.restore_request(rank) };
        restore(&cluster.rigs[rank].context(), &request).await.unwrap()
    };
    let (left, right) = tokio::join!(restore_own(0), restore_own(1));
    assert_eq!((left.plan.id, right.plan.id), (id(1, 200), id(1, 200)));
    assert_eq!(names(&left.plan.path), ["common.json", "rank_0.distcp"]);
    assert_eq!(names(&right.plan.path), ["common.json", "rank_1.distcp"]);
}

#[tokio::test]
async fn nodes_that_were_renumbered_complete_the_step_that_they_hold() {
    let mut cluster = with_a_newer_sealed_step().await;
    cluster.rigs.reverse();
    for report in cluster.restore_both().await {
        assert_eq!(report.plan.id, id(1, 200));
        assert_eq!(names(&report.plan.path), ["common.json", "rank_0.distcp", "rank_1.distcp"]);
    }
}

#[tokio::test]
async fn the_part_of_a_lost_node_counts_if_it_was_uploaded() {
    let mut cluster = with_a_newer_sealed_step().await;
    cluster.rigs[0].lose_node();
    for report in cluster.restore_both().await {
        assert_eq!(report.plan.id, id(1, 200));
    }
}

/// torchrun counts restarts differently on its nodes, so that one name stands for all starts.
#[tokio::test]
async fn each_start_of_all_nodes_is_an_attempt_whatever_their_launcher_counts() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
    }
    for (attempt, newest, step) in [(2, id(1, 100), 110), (3, id(2, 110), 120)] {
        for report in cluster.restore_both().await {
            assert_eq!(report.plan.id, newest);
        }
        for rank in [1, 0] {
            let saved = cluster.save(rank, step, 1000 * i64::from(attempt)).await;
            assert_eq!(saved.id, id(attempt, step));
        }
        assert!(read_commit(cluster.remote(), id(attempt, step)).await.is_ok());
        // A node may be replaced in between.
        cluster.rigs[1].lose_node();
    }
}

/// Otherwise it would begin another attempt alone, and no step of this start would ever be durable (S3, L2).
#[tokio::test]
async fn a_node_that_comes_after_the_others_have_saved_follows_their_decision() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
    }
    "second".clone_into(&mut cluster.launch);
    assert_eq!(cluster.restore(0).await.unwrap().plan.id, id(1, 100));
    assert_eq!(cluster.save(0, 150, 4000).await.id, id(2, 150));
    assert_eq!(cluster.restore(1).await.unwrap().plan.id, id(1, 100));
    let saved = cluster.save(1, 150, 4000).await;
    assert_eq!(saved.id, id(2, 150));
    assert_eq!(*saved.remotes[0].result.as_ref().unwrap(), Uploaded::Durable);
}

/// It says what the nodes will agree on, as far as one of them can know, and what they have agreed on.
#[tokio::test]
async fn a_plan_of_one_node_decides_nothing_for_the_others() {
    let cluster = with_a_newer_sealed_step().await;
    assert_eq!(cluster.plan(0).await.id, id(1, 100));
    let warnings = cluster.rigs[0].recorder.warnings.lock().unwrap().join("\n");
    assert!(warnings.contains("step 200 (attempt 1) is sealed on this node and not durable"), "{warnings}");
    for report in cluster.restore_both().await {
        assert_eq!(report.plan.id, id(1, 200));
    }
    assert_eq!(cluster.plan(0).await.id, id(1, 200));
}

#[tokio::test]
async fn what_a_node_skips_while_it_decides_for_all_is_in_its_plan_and_its_report() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
        cluster.save(rank, 200, 2000).await;
    }
    for rig in &mut cluster.rigs {
        rig.lose_node();
    }
    "second".clone_into(&mut cluster.launch);
    let commit = cluster.remote().keys.commit(id(1, 200));
    std::fs::write(cluster.rigs[0].remote_root().join(commit), "{").unwrap();
    let planned = cluster.plan(0).await;
    let restored = cluster.restore(0).await.unwrap().plan;
    for plan in [planned, restored] {
        assert_eq!(plan.id, id(1, 100));
        assert_eq!((plan.skipped.len(), plan.skipped[0].id.step.number()), (1, 200));
    }
}

/// The bytes that are wrong on the remote are another node's: this node's own part is intact.
#[tokio::test]
async fn a_sealed_part_is_not_quarantined_for_the_files_of_another_node() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
        cluster.save(rank, 200, 2000).await;
    }
    "second".clone_into(&mut cluster.launch);
    let path = RelativePath::new("rank_1.distcp").unwrap();
    let damaged = cluster.remote().keys.data("step_200", id(1, 200), &path).unwrap();
    std::fs::write(cluster.rigs[0].remote_root().join(damaged), [0; 3000]).unwrap();
    let rig = &cluster.rigs[0];
    let restored = restore(&rig.context(), &rig.restore_request()).await.unwrap();
    assert_eq!(restored.plan.id, id(1, 100));
    assert!(rig.vault.step(&run_name(), id(1, 200)).unwrap().is_some());
}

#[tokio::test]
async fn a_node_without_its_part_makes_all_go_on_from_what_is_durable() {
    let mut cluster = with_a_newer_sealed_step().await;
    cluster.rigs[1].lose_node();
    let (left, right) = tokio::join!(cluster.restore(0), cluster.restore(1));
    for report in [left.unwrap(), right.unwrap()] {
        assert_eq!(report.plan.id, id(1, 100));
        assert_eq!(names(&report.plan.path), ["common.json", "rank_0.distcp", "rank_1.distcp"]);
    }
}

#[tokio::test]
async fn what_is_committed_after_the_first_node_decided_changes_nothing_for_the_others() {
    let mut cluster = with_a_newer_sealed_step().await;
    cluster.rigs[0].lose_node();
    let first = cluster.restore(0).await.unwrap();
    assert_eq!(first.plan.id, id(1, 100));
    // The late node brings its part: 200 is whole now, and the launch has decided.
    let rig = &cluster.rigs[1];
    let sealed = rig.vault.step(&run_name(), id(1, 200)).unwrap().unwrap();
    assert!(rig.upload_session().await.upload(&sealed).await.unwrap().is_durable());
    assert_eq!(cluster.restore(1).await.unwrap().plan.id, id(1, 100));
    // The next launch decides anew.
    "third".clone_into(&mut cluster.launch);
    let report = restore(
        &cluster.rigs[1].context(),
        &RestoreRequest {
            target: Target::As(cluster.rigs[1].directory.path().join("third")),
            ..cluster.restore_request(1)
        },
    )
    .await
    .unwrap();
    assert_eq!(report.plan.id, id(1, 200));
}

#[tokio::test]
async fn a_launch_that_is_restarted_in_place_goes_on_from_what_it_has_committed_since() {
    let mut cluster = with_a_newer_sealed_step().await;
    cluster.rigs[1].lose_node();
    assert_eq!(cluster.restore(0).await.unwrap().plan.id, id(1, 100));
    for rank in [0, 1] {
        cluster.save(rank, 150, 4000).await;
    }
    for report in cluster.restore_both().await {
        assert_eq!(report.plan.id, id(2, 150));
    }
}

#[tokio::test]
async fn a_step_that_one_node_finds_damaged_is_skipped_by_all_at_the_next_start() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
        cluster.save(rank, 200, 2000).await;
    }
    for rig in &mut cluster.rigs {
        rig.lose_node();
    }
    "second".clone_into(&mut cluster.launch);
    let remote = cluster.remote();
    let damaged = cluster.rigs[0].remote_root().join(
        remote.keys.data("step_200", id(1, 200), &RelativePath::new("rank_1.distcp").unwrap()).unwrap(),
    );
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[7] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let error = cluster.restore(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoneValid);
    assert!(error.hint_text().unwrap().starts_with("restart the job on all nodes"), "{error:?}");
    for rank in [1, 0] {
        assert_eq!(cluster.restore(rank).await.unwrap().plan.id, id(1, 100));
    }
}

#[tokio::test]
async fn a_node_that_stays_silent_is_waited_for_no_longer_than_said() {
    let cluster = with_a_newer_sealed_step().await;
    let request = RestoreRequest {
        together: Some(Together {
            writer: cluster.writer(0),
            since: Timestamp::default(),
            patience: Duration::ZERO,
        }),
        ..cluster.restore_request(0)
    };
    let report = restore(&cluster.rigs[0].context(), &request).await.unwrap();
    assert_eq!(report.plan.id, id(1, 100));
    let warnings = cluster.rigs[0].recorder.warnings.lock().unwrap().join("\n");
    assert!(warnings.contains("node-1 did not start within 0 s"), "{warnings}");
}

#[tokio::test]
async fn one_node_s_part_alone_is_no_step() {
    let cluster = Cluster::new(2).await;
    cluster.save(0, 100, 1000).await;
    let request = cluster.rigs[0].restore_request();
    let error = restore(&cluster.rigs[0].context(), &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoneValid);
    assert!(
        error.to_string().contains(
            "local: it holds only the part of node-0, and the step of node-0, node-1 is not durable"
        ),
        "{error}"
    );
    assert_eq!(StepId::from_label("000000000100.a1"), Some(id(1, 100)));
}

#[tokio::test]
async fn without_the_store_every_node_seals_and_none_makes_up_an_attempt() {
    let server = StrictS3::start();
    let mut cluster = Cluster::new(2).await;
    for rig in &mut cluster.rigs {
        rig.remotes.clear();
        rig.add_s3("main", &server).await;
    }
    drop(server);
    let source = cluster.rigs[0].write_step(100, &[("model.pt", 10)], 1, 1000);
    let single = Writer { place: NodePlace::single_node(ranked(0).unwrap()), ..cluster.writer(0) };
    let request = cluster.rigs[0].request_of(single, &source);
    let report = cluster.rigs[0].push_as(request).await.unwrap();
    assert!(report.newly_sealed);
    assert_eq!(report.id, id(1, 100));
    let source = cluster.rigs[1].write_step(100, &[("rank_1.distcp", 10)], 1, 1000);
    let waits = cluster.rigs[1].push_as(cluster.request(1, &source)).await.unwrap();
    assert!(waits.newly_sealed && waits.provisional);
    let error = waits.remotes[0].result.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn what_nodes_sealed_without_the_store_is_one_step_of_their_launch_afterwards() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
        // A new disk, on which nothing is known of launches.
        cluster.rigs[rank].lose_node();
    }
    "second".clone_into(&mut cluster.launch);
    let there: Vec<_> = cluster.rigs.iter().map(|rig| rig.remotes.clone()).collect();
    for rig in &mut cluster.rigs {
        rig.remotes.clear();
        rig.add_one_that_is_away("main").await;
    }
    for rank in [0, 1] {
        assert!(cluster.save(rank, 90, 500).await.provisional);
    }
    for (rig, remotes) in cluster.rigs.iter_mut().zip(there) {
        rig.remotes = remotes;
    }
    assert_eq!(cluster.save(0, 90, 500).await.id, id(2, 90));
    let report = cluster.save(1, 90, 500).await;
    assert_eq!(report.id, id(2, 90));
    assert!(report.remotes[0].result.as_ref().unwrap().is_durable());
}

#[tokio::test]
async fn what_is_older_than_a_launch_goes_to_the_one_before() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
    }
    "second".clone_into(&mut cluster.launch);
    let since = Timestamp::from_seconds(5000);
    let own = "rank_0.distcp";
    let left = cluster.rigs[0].write_step(200, &[(own, 3000)], 7, 2000);
    let mut request = cluster.request(0, &left);
    request.current.launch_since = since;
    assert_eq!(cluster.rigs[0].push_as(request.clone()).await.unwrap().id, id(1, 200));
    // A disk that knows of no launch but this one has been written since.
    cluster.rigs[0].lose_node();
    let left = cluster.rigs[0].write_step(300, &[(own, 3000)], 8, 3000);
    let report = cluster.rigs[0]
        .push_as(CheckpointToSeal { checkpoint: cluster.request(0, &left).checkpoint, ..request })
        .await
        .unwrap();
    assert_eq!(report.id, id(2, 300));
}

/// Two nodes in their second launch, after retention has removed step 100 everywhere but in the trainers' directories.
async fn after_retention() -> Cluster {
    let mut cluster = Cluster::new(2).await;
    for (step, written) in [(100, 1000), (200, 2000)] {
        for rank in [0, 1] {
            cluster.save(rank, step, written).await;
        }
    }
    let evicted = cluster.rigs[1].evict(1).await;
    assert_eq!(evicted.removed, [id(1, 100)]);
    cluster.rigs[0].prune(1).await.unwrap();
    "second".clone_into(&mut cluster.launch);
    cluster
}

#[tokio::test]
async fn a_save_that_retention_removed_is_never_sealed_again_by_a_later_launch() {
    let cluster = after_retention().await;
    // The directory is still there, and the agent of this launch takes all that it finds for its own.
    let left = cluster.rigs[1].outputs().join("step_100");
    let request = |cluster: &Cluster| in_launch(cluster.request(1, &left));
    let error = cluster.rigs[1].push_as(request(&cluster)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("was removed by retention"), "{error}");
    assert_eq!(cluster.rigs[0].committed().await, [id(1, 200)]);
    // Written again, it is a save of this launch.
    let again = cluster.rigs[1].write_step(100, &[("rank_1.distcp", 3000)], 9, 3000);
    assert_eq!(again, left);
    let report = cluster.rigs[1].push_as(request(&cluster)).await.unwrap();
    assert_eq!(report.id, id(2, 100));
}

/// A process that is killed when it has sealed a step may not have recorded it.
#[tokio::test]
async fn a_save_whose_record_was_lost_is_recorded_when_it_is_found_again() {
    let mut cluster = Cluster::new(2).await;
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
    }
    assert!(cluster.rigs[1].vault.remove_note(&run_name(), "seen-checkpoints").unwrap());
    for (step, written) in [(100, 1000), (200, 2000)] {
        for rank in [0, 1] {
            cluster.save(rank, step, written).await;
        }
    }
    cluster.rigs[1].evict(1).await;
    cluster.rigs[0].prune(1).await.unwrap();
    "second".clone_into(&mut cluster.launch);
    let left = cluster.rigs[1].outputs().join("step_100");
    let request = in_launch(cluster.request(1, &left));
    let error = cluster.rigs[1].push_as(request).await.unwrap_err();
    assert!(error.to_string().contains("was removed by retention"), "{error}");
}

#[tokio::test]
async fn a_removed_save_that_was_sealed_during_an_outage_is_discarded_when_the_remote_answers() {
    let mut cluster = after_retention().await;
    let there = std::mem::take(&mut cluster.rigs[1].remotes);
    cluster.rigs[1].add_one_that_is_away("disk").await;
    let late = in_launch(cluster.request(1, &cluster.rigs[1].outputs().join("step_100")));
    let sealed = cluster.rigs[1].push_as(late).await.unwrap();
    assert!(sealed.provisional);
    cluster.rigs[1].remotes = there;
    cluster.save(1, 300, 3000).await;
    let steps = cluster.rigs[1].vault.steps(&run_name()).unwrap().steps;
    assert!(!steps.iter().any(|step| step.id().step == id(1, 100).step), "{steps:?}");
}

#[tokio::test]
async fn an_agent_that_starts_during_a_save_does_not_refuse_it() {
    let cluster = Cluster::new(2).await;
    let launch = LaunchName::new(cluster.launch.as_str()).unwrap();
    let vault = &cluster.rigs[0].vault;
    record_beginning(vault, &run_name(), &launch, SystemClock.now()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    let source = cluster.rigs[0].write_step(100, &[("rank_0.distcp", 3000)], 1, 1000);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let launch_since = SystemClock.now();
    tokio::time::sleep(Duration::from_millis(30)).await;
    std::fs::write(source.join("rank_1.distcp"), "of the same start").unwrap();
    let request = in_launch_since(launch_since, cluster.request(0, &source));
    cluster.rigs[0].push_as(request).await.unwrap();
}

#[tokio::test]
async fn a_directory_with_files_of_two_starts_is_not_sealed() {
    let cluster = Cluster::new(2).await;
    // Times that a copy keeps say nothing.
    let written = 1000;
    let linked =
        cluster.rigs[0].write_step(50, &[("rank_0.distcp", 3000), ("rank_1.distcp", 3000)], 1, written);
    let torn = cluster.rigs[0].write_step(100, &[("rank_0.distcp", 3000)], 1, written);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let since = SystemClock.now();
    tokio::time::sleep(Duration::from_millis(30)).await;
    let of_second_start = |source: &Path, step: Option<u64>| CheckpointToSeal {
        step: step.map(|step| Step::new(step).unwrap()),
        ..in_launch_since(since, cluster.request(0, source))
    };
    std::fs::write(torn.join("rank_4.distcp"), "of the second start").unwrap();
    let error = cluster.rigs[0].push_as(of_second_start(&torn, None)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("rank_0.distcp was written before this start"), "{error}");
    // Another node, or a seal that was interrupted, has linked one of the files of an older step.
    std::fs::hard_link(linked.join("rank_1.distcp"), cluster.rigs[0].outputs().join("link")).unwrap();
    cluster.rigs[0].push_as(of_second_start(&linked, None)).await.unwrap();
    // All of it is written again.
    std::fs::write(torn.join("rank_0.distcp"), "of the second start").unwrap();
    cluster.rigs[0].push_as(of_second_start(&torn, None)).await.unwrap();
    // A directory that is rewritten in part for each step.
    let last = cluster.rigs[0].outputs().join("last");
    std::fs::create_dir(&last).unwrap();
    for file in ["tokenizer.json", "rank_0.distcp"] {
        std::fs::copy(torn.join("rank_0.distcp"), last.join(file)).unwrap();
    }
    let later = in_launch_since(SystemClock.now(), of_second_start(&last, Some(200)));
    tokio::time::sleep(Duration::from_millis(30)).await;
    std::fs::write(last.join("rank_0.distcp"), "of the third start").unwrap();
    cluster.rigs[0].push_as(later).await.unwrap();
}

#[tokio::test]
async fn a_node_that_joins_does_not_follow_what_fewer_nodes_decided_before() {
    let mut cluster = Cluster::new(2).await;
    // Two nodes start from scratch, and save.
    let (left, right) = tokio::join!(Box::pin(cluster.restore(0)), Box::pin(cluster.restore(1)));
    for started in [left, right] {
        assert_eq!(started.unwrap_err().kind(), ErrorKind::NotFound);
    }
    for rank in [0, 1] {
        cluster.save(rank, 100, 1000).await;
    }
    // A third one joins the launch, and is the first to start again.
    let mut third = Rig::new();
    third.remotes.clone_from(&cluster.rigs[0].remotes);
    third.stores.clone_from(&cluster.rigs[0].stores);
    cluster.rigs.push(third);
    let late = |rank| {
        let cluster = &cluster;
        async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            cluster.restore(rank).await
        }
    };
    let (first, second, third) =
        tokio::join!(Box::pin(late(0)), Box::pin(late(1)), Box::pin(cluster.restore(2)));
    for report in [first, second, third] {
        assert_eq!(report.unwrap().plan.id, id(1, 100));
    }
}

#[tokio::test]
async fn what_one_node_has_of_an_earlier_start_is_moved_aside_where_nothing_is_whole_on_all() {
    let mut cluster = Cluster::new(2).await;
    let request = |cluster: &Cluster, rank: usize| RestoreRequest {
        target: Target::Into(cluster.rigs[rank].outputs()),
        handoff: Some(HandoffOptions { profiles: Arc::default(), profile: None, write: true }),
        ..cluster.restore_request(rank)
    };
    for launch in ["first", "second"] {
        launch.clone_into(&mut cluster.launch);
        // Before the first start they are the user's own, of whatever run.
        cluster.rigs[0].write_step(10, &[("weights.dat", 300)], 1, 100);
        let requests = [request(&cluster, 0), request(&cluster, 1)];
        let contexts = [cluster.rigs[0].context(), cluster.rigs[1].context()];
        let (left, right) =
            tokio::join!(restore(&contexts[0], &requests[0]), restore(&contexts[1], &requests[1]));
        for error in [left.unwrap_err(), right.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        }
        let left = names(&cluster.rigs[0].outputs());
        assert_eq!(left.is_empty(), launch == "second", "{launch}: {left:?}");
    }
}

#[tokio::test]
async fn a_restore_beside_the_trainer_decides_nothing_for_the_nodes() {
    let cluster = with_a_newer_sealed_step().await;
    let beside = cluster.restore_beside(0).await.unwrap();
    assert_eq!(beside.plan.id, id(1, 100));
    for report in cluster.restore_both().await {
        assert_eq!(report.plan.id, id(1, 200));
    }
}
