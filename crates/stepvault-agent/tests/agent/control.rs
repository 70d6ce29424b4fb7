//! The control socket as commands and trainers use it.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use stepvault_agent::control::{
    AnnounceRequest, AnnouncementState, AttachRequest, Client, DetachRequest, DrainRequest, WaitAnswer,
    WaitRequest,
};
use stepvault_agent::step_progress::{Goal, Outcome};
use stepvault_core::ErrorKind;
use stepvault_core::config::{Completion, ControlSocket};
use stepvault_core::ids::{Attempt, NodeName, RunName, Step};
use stepvault_core::keys::RunKeys;
use stepvault_core::path::RelativePath;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::process::TestProcess;
use stepvault_testkit::s3::StrictS3;

use crate::fixtures::unpack;
use crate::harness::{Node, PATIENCE, id, run_name};
use crate::support::{committed, sealed, text};

fn wait_for(step: u64, goal: Goal, timeout_seconds: u64) -> WaitRequest {
    WaitRequest { run: None, step: Step::new(step).unwrap(), attempt: None, goal, timeout_seconds }
}

async fn wait(client: &Client, step: u64, goal: Goal, timeout_seconds: u64) -> WaitAnswer {
    let request = wait_for(step, goal, timeout_seconds);
    client.wait(&request, PATIENCE).await.unwrap()
}

fn announce(path: impl Into<std::path::PathBuf>) -> AnnounceRequest {
    AnnounceRequest {
        run: None,
        path: path.into(),
        step: None,
        name: None,
        metrics: BTreeMap::new(),
        rank: None,
    }
}

fn remote_reasons(answer: &WaitAnswer) -> String {
    let reasons = answer.progress.remotes.iter();
    let reasons = reasons.map(|on| format!("{}: {}", on.remote, on.reason.as_deref().unwrap_or("-")));
    reasons.collect::<Vec<_>>().join("; ")
}

#[tokio::test]
async fn the_socket_is_its_users_alone_and_goes_with_the_service() {
    let node = Node::new();
    std::fs::create_dir_all(node.vault_directory()).unwrap();
    // What a killed service leaves.
    let dead = node.place.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let options = node.disk_options().await;
    let (service, client) = node.start_controlled(options.clone()).await;
    let facts = client.path().symlink_metadata().unwrap();
    assert!(facts.file_type().is_socket());
    assert_eq!(facts.permissions().mode() & 0o777, 0o600);
    let status = client.status(PATIENCE).await.unwrap();
    assert_eq!(status.process.process_id, std::process::id());
    assert!(
        status.process.healthy && status.process.problems.is_empty() && status.process.stopping.is_none()
    );
    assert_eq!(status.runs[0].run, run_name());
    assert_eq!(status.runs[0].remotes[0].remote.as_str(), "disk");
    service.stop();
    assert!(!client.path().exists());
    let gone = client.status(PATIENCE).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Unreachable);
    assert!(gone.to_string().contains("there is no such socket"), "{gone}");

    std::fs::rename(&dead, node.socket()).unwrap();
    let (service, _) = node.start_controlled(options).await;
    service.stop();
}

#[tokio::test]
async fn what_is_not_taken_over_yet_is_told_once_and_shown_until_it_is() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Marker(RelativePath::new("DONE").unwrap());
    let path = node.save_small(7, 9);
    let (service, client) = node.start_controlled(options).await;
    let begun = format!(
        "info: {}: watching {}, for the vault {} and disk",
        run_name(),
        node.outputs().display(),
        node.vault_directory().display()
    );
    node.until_heard(&begun).await;
    let told = format!("{} exists but is not sealed yet: ", path.display());
    node.until_heard(&told).await;
    let status = client.status(PATIENCE).await.unwrap();
    let unfinished = &status.runs[0].seen.unfinished;
    assert_eq!(unfinished.len(), 1, "{unfinished:?}");
    assert_eq!(unfinished[0].path, path);
    let answer = wait(&client, 7, Goal::Staged, 0).await;
    let reason = answer.progress.reason.unwrap();
    let expected = format!("{} is not sealed yet: {}", path.display(), unfinished[0].reason);
    assert_eq!((answer.outcome, reason), (Outcome::Unknown, expected));

    std::fs::write(path.join("DONE"), "").unwrap();
    node.until_durable("disk", 7).await;
    let status = client.status(PATIENCE).await.unwrap();
    assert_eq!(status.runs[0].seen.unfinished, []);
    service.stop();
    assert_eq!(node.recorder.lines_with(&told).len(), 1);
}

#[tokio::test]
async fn a_socket_that_cannot_be_made_is_a_warning_and_the_work_goes_on() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.agent.control_socket = ControlSocket::At(node.place.path().join("x".repeat(120)));
    node.save_small(1, 5);
    let service = node.start(options.clone());
    node.until_durable("disk", 1).await;
    let heard = node.recorder.lines_with("the control socket is unavailable");
    assert_eq!(heard.len(), 1);
    assert!(
        heard[0].contains("the system takes at most 107") && heard[0].contains("agent.control-socket"),
        "{heard:?}"
    );
    service.stop();

    // Somebody else's agent is not pushed aside.
    let taken = node.place.path().join("taken.sock");
    let _listener = UnixListener::bind(&taken).unwrap();
    options.agent.control_socket = ControlSocket::At(taken.clone());
    let service = node.start(options);
    node.until_heard("another process listens on it").await;
    service.stop();
    assert!(taken.exists());
}

#[tokio::test]
async fn an_announced_step_is_sealed_at_once_and_again_is_no_error() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Quiet(Duration::from_hours(1));
    let (service, client) = node.start_controlled(options).await;
    let path = node.save("step_7", &[("weights.dat", 1000)], 0);
    let answer = client.announce(&announce(&path)).await.unwrap();
    assert_eq!(
        (
            answer.announced.state,
            answer.announced.step,
            answer.announced.attempt,
            answer.announced.newly_sealed
        ),
        (AnnouncementState::Sealed, Step::new(7).ok(), Attempt::new(1).ok(), true)
    );
    let reached = wait(&client, 7, Goal::Durable, 60).await;
    assert_eq!(reached.outcome, Outcome::Reached);
    let again = client.announce(&announce(&path)).await.unwrap();
    assert_eq!((again.announced.attempt, again.announced.newly_sealed), (answer.announced.attempt, false));
    let known = client.announcement(again.announcement_id).await.unwrap();
    assert_eq!(known, again);

    // Outside the watched directory, and with a number of its own.
    let elsewhere = node.place.path().join("final");
    crate::support::write_files(&elsewhere, &[("weights.dat", 50)], 0);
    let error = client.announce(&announce(&elsewhere)).await.unwrap_err();
    assert!(text(&error).contains("announce it with its step number"), "{}", text(&error));
    let numbered = AnnounceRequest { step: Step::new(8).ok(), ..announce(&elsewhere) };
    let answer = client.announce(&numbered).await.unwrap();
    assert_eq!((answer.announced.step, answer.announced.newly_sealed), (Step::new(8).ok(), true));
    let report = service.stop();
    assert_eq!(report.sealed.total, 2, "{report:?}");
    assert_eq!(sealed(&node), [id(1, 7), id(1, 8)]);
}

#[tokio::test]
async fn what_is_broken_or_not_complete_is_refused_with_the_reason() {
    let node = Node::new();
    unpack(&node, "sigterm-torch-save");
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(Duration::from_hours(1));
    let (service, client) = node.start_controlled(options.clone()).await;
    let error = client.announce(&announce(node.outputs().join("step_3.pt"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(
        error.to_string().starts_with("refusing to seal a damaged step: ")
            && error.to_string().contains("the archive has no data/39: the save was cut off"),
        "{error}"
    );
    let whole = client.announce(&announce(node.outputs().join("step_2.pt"))).await.unwrap();
    assert!(whole.announced.newly_sealed, "{whole:?}");
    let missing = client.announce(&announce(node.outputs().join("step_9.pt"))).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    for wrong in [node.outputs(), "relative/step_1".into(), node.outputs().join("../step_1")] {
        let error = client.announce(&announce(&wrong)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{}: {error}", wrong.display());
    }
    service.stop();

    let node = Node::new();
    unpack(&node, "dcp-killed-before-metadata");
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(Duration::from_hours(1));
    let (service, client) = node.start_controlled(options).await;
    let error = client.announce(&announce(node.outputs().join("step_30"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SourceChanged);
    assert!(
        error.to_string().starts_with("refusing to seal an incomplete step: ")
            && error.to_string().contains(".metadata"),
        "{error}"
    );
    service.stop();
}

#[tokio::test]
async fn waiting_always_ends_with_what_is_known() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 600).await;
    let slow = FaultAction::Delay(Duration::from_mins(10));
    server.faults().inject("PUT", "model.safetensors", u64::MAX, slow);
    let (service, client) = node.start_controlled(node.options(remotes)).await;
    let ask = async |request: WaitRequest| client.wait(&request, PATIENCE).await.unwrap();

    let never = ask(wait_for(1, Goal::Staged, 0)).await;
    assert_eq!((never.outcome, never.progress.attempt), (Outcome::Unknown, None));
    // It comes while somebody waits.
    let waiting = ask(wait_for(1, Goal::Staged, 60));
    let (reached, _) = tokio::join!(waiting, async { node.save_small(1, 5) });
    assert_eq!(reached.outcome, Outcome::Reached);
    assert!(reached.progress.reached >= Some(Goal::Staged));

    node.until_durable("disk", 1).await;
    node.until_requested(&server, "model.safetensors").await;
    let late = ask(wait_for(1, Goal::Durable, 1)).await;
    assert_eq!((late.outcome, late.progress.reached), (Outcome::Late, Some(Goal::Staged)));
    assert_eq!(late.progress.remotes[0].reached, Some(Goal::Durable));
    assert_eq!(remote_reasons(&late), "disk: -; s3: it is being uploaded");
    let other = WaitRequest { attempt: Attempt::new(2).ok(), ..wait_for(1, Goal::Staged, 0) };
    assert_eq!(ask(other).await.outcome, Outcome::Unknown);

    let error = client.wait(&wait_for(1, Goal::Durable, 601), PATIENCE).await.unwrap_err();
    assert!(text(&error).contains("one request waits for at most 600 s"), "{error}");
    let stranger = WaitRequest { run: "other".parse().ok(), ..wait_for(1, Goal::Durable, 0) };
    let error = client.wait(&stranger, PATIENCE).await.unwrap_err();
    assert_eq!(
        text(&error),
        "this agent does not serve the run: other | use one of its runs: grpo/checkpoints"
    );

    // A client that waits when the service ends is told how far the step has come.
    let waiting = ask(wait_for(1, Goal::Durable, 600));
    let draining = async {
        let request = DrainRequest { deadline_seconds: Some(1), wait: true, ..DrainRequest::default() };
        client.drain(&request, PATIENCE).await.unwrap()
    };
    let (late, drained) = tokio::join!(waiting, draining);
    assert_eq!(late.outcome, Outcome::Late);
    assert_eq!((drained.ended, drained.durable), (true, Some(false)));
    assert_eq!(drained.left.not_durable[0].remote.as_str(), "s3");
    assert!(!service.ended().unwrap().is_durable());
}

#[tokio::test]
async fn a_step_that_is_given_up_fails_the_wait_with_the_reason() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let keys = RunKeys::new(run_name());
    let part = keys.part(id(1, 1), &NodeName::new("node-0").unwrap());
    let part = node.remote_root("disk").join(part);
    // A file where a directory has to be: only a person can mend that.
    let parts = part.parent().unwrap();
    std::fs::create_dir_all(parts.parent().unwrap()).unwrap();
    std::fs::write(parts, "x").unwrap();
    let (service, client) = node.start_controlled(node.options(vec![remote])).await;
    node.save_small(1, 5);
    let failed = wait(&client, 1, Goal::Durable, 60).await;
    assert_eq!(failed.outcome, Outcome::Failed, "{failed:?}");
    assert!(failed.progress.remotes[0].failed);
    assert!(remote_reasons(&failed).contains("parts/000000000001.a1"), "{failed:?}");
    let staged = wait(&client, 1, Goal::Staged, 0).await;
    assert_eq!(staged.outcome, Outcome::Reached);
    let status = client.status(PATIENCE).await.unwrap();
    assert_eq!(status.runs[0].remotes[0].failed[0].id, id(1, 1));
    service.stop();
}

/// The vault does not hold it any more, and it is durable.
#[tokio::test]
async fn a_step_that_was_evicted_is_found_on_the_remotes() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    for step in [1, 2] {
        node.save_small(step, 10 - step);
    }
    node.once(node.options(vec![remote.clone()]));
    std::fs::remove_dir_all(node.vault_directory()).unwrap();
    std::fs::remove_dir_all(node.outputs()).unwrap();
    std::fs::create_dir(node.outputs()).unwrap();
    let (service, client) = node.start_controlled(node.options(vec![remote])).await;
    let answer = wait(&client, 1, Goal::Durable, 0).await;
    assert_eq!((answer.outcome, answer.progress.id()), (Outcome::Reached, Some(id(1, 1))));
    service.stop();
}

#[tokio::test]
async fn a_drain_uploads_what_is_sealed_takes_nothing_new_and_says_how_it_ended() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let (service, client) = node.start_controlled(node.options(vec![remote.clone()])).await;
    node.save_small(1, 5);
    let staged = wait(&client, 1, Goal::Staged, 60).await;
    assert_eq!(staged.outcome, Outcome::Reached);
    let begun = Instant::now();
    let request = DrainRequest { deadline_seconds: Some(50), wait: true, ..DrainRequest::default() };
    let answer = client.drain(&request, PATIENCE).await.unwrap();
    assert_eq!((answer.ended, answer.durable), (true, Some(true)));
    assert!(begun.elapsed() < Duration::from_secs(50), "the deadline was waited out");
    assert_eq!(committed(&remote).await, [id(1, 1)]);
    assert!(service.ended().unwrap().is_durable());
    assert!(!node.socket().exists());
}

#[tokio::test]
async fn metrics_that_are_announced_are_the_steps() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(Duration::from_hours(1));
    let (service, client) = node.start_controlled(options).await;
    let path = node.save("step_3", &[("weights.dat", 100)], 0);
    let with_metrics =
        AnnounceRequest { metrics: BTreeMap::from([("loss".to_owned(), 0.25)]), ..announce(path) };
    assert!(client.announce(&with_metrics).await.unwrap().announced.newly_sealed);
    service.stop();
    let commit = node.on_disk(".stepvault/commits/000000000003.a1.json");
    let commit = std::fs::read_to_string(commit).unwrap();
    assert!(commit.contains(r#""metrics":{"loss":0.25}"#), "{commit}");
}

#[tokio::test]
async fn it_runs_for_as_long_as_the_processes_that_it_was_started_for() {
    let (node, first, second) = (Node::new(), TestProcess::idle(), TestProcess::idle());
    let mut options = node.disk_options().await;
    options.lifecycle.followed_process = Some(first.id());
    let (service, client) = node.start_controlled(options.clone()).await;
    let attach = |process_id| AttachRequest { run: Some(run_name()), process_id };
    let attached = client.attach(&attach(second.id())).await.unwrap();
    assert!(attached.followed && attached.process_ids.len() == 2, "{attached:?}");
    let of_another_run =
        AttachRequest { run: Some(RunName::new("another").unwrap()), process_id: second.id() };
    let error = client.attach(&of_another_run).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let detach = |process_id| DetachRequest { process_id, deadline_seconds: Some(60), wait: true };
    let answer = client.detach(&detach(second.id()), PATIENCE).await.unwrap();
    assert!(!answer.ended, "{answer:?}");
    node.save_small(1, 5);
    first.kill();
    let report = service.ended().unwrap();
    assert!(report.is_durable() && report.uploaded.total == 1, "{report:?}");
    assert_eq!(sealed(&node), [id(1, 1)]);

    // The last one detaches, and is told what is durable.
    options.lifecycle.followed_process = Some(second.id());
    let (service, client) = node.start_controlled(options.clone()).await;
    node.save_small(2, 5);
    let answer = client.detach(&detach(second.id()), PATIENCE).await.unwrap();
    assert!(answer.ended && answer.durable == Some(true), "{answer:?}");
    service.ended().unwrap();
    assert_eq!(sealed(&node), [id(1, 1), id(1, 2)]);

    // A service follows nobody.
    options.lifecycle.followed_process = None;
    let (service, client) = node.start_controlled(options).await;
    assert!(!client.attach(&attach(second.id())).await.unwrap().followed);
    let error = client.detach(&detach(second.id()), PATIENCE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    service.stop();
    second.kill();
}

async fn until_stopping(client: &Client) {
    while client.status(PATIENCE).await.unwrap().process.stopping.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Ranks that a launcher restarts in place do not wait for uploads, and resume what the vault holds.
#[tokio::test]
async fn a_drain_is_left_to_the_next_agent_when_all_is_sealed_and_no_client_waits() {
    let (node, server) = (Node::new(), StrictS3::start());
    let (first, second) = (TestProcess::idle(), TestProcess::idle());
    let remote = node.s3_remote("s3", &server, 600).await;
    server.faults().inject("PUT", "weights.dat", u64::MAX, FaultAction::Hang);
    let mut options = node.options(vec![remote]);
    options.runs[0].complete = Completion::Quiet(Duration::from_secs(2));
    options.agent.drain_deadline = Duration::from_hours(1);
    options.lifecycle.followed_process = Some(first.id());
    let (service, client) = node.start_controlled(options.clone()).await;
    let attach = AttachRequest { run: Some(run_name()), process_id: second.id() };
    node.save("step_1", &[("weights.dat", 100)], 5);
    node.until("step 1 to be sealed", || sealed(&node) == [id(1, 1)]).await;

    // While a client waits for the end, all of its time is used.
    let detach = DetachRequest { process_id: first.id(), deadline_seconds: None, wait: true };
    let socket = node.socket();
    let waiting = tokio::spawn(async move { Client::new(socket).detach(&detach, PATIENCE).await });
    until_stopping(&client).await;
    let of_another_run = AttachRequest { run: Some(RunName::new("another").unwrap()), ..attach.clone() };
    for attach in [&of_another_run, &attach] {
        let error = client.attach(attach).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(client.status(PATIENCE).await.is_ok() && !waiting.is_finished());
    waiting.abort();
    waiting.await.unwrap_err();
    let report = service.ended().unwrap();
    assert_eq!((report.sealed.total, report.left.not_durable.len()), (1, 1), "{report:?}");

    // What is not sealed yet is waited for.
    let (service, client) = node.start_controlled(options.clone()).await;
    node.save("step_2", &[("weights.dat", 100)], 0);
    first.kill();
    until_stopping(&client).await;
    let error = client.attach(&attach).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    let report = service.ended().unwrap();
    assert_eq!((report.sealed.total, report.left.not_durable.len()), (1, 2), "{report:?}");

    server.faults().clear();
    options.lifecycle.followed_process = Some(second.id());
    let (service, _) = node.start_controlled(options).await;
    node.until_durable("s3", 1).await;
    node.until_durable("s3", 2).await;
    second.kill();
    let report = service.ended().unwrap();
    assert_eq!((report.sealed.total, report.uploaded.total), (0, 2), "{report:?}");
}

#[tokio::test]
async fn what_should_be_announced_waits_for_that_until_the_trainer_has_ended() {
    let (node, trainer) = (Node::new(), TestProcess::idle());
    let mut options = node.disk_options().await;
    options.runs[0].announced = true;
    options.lifecycle.followed_process = Some(trainer.id());
    let (service, client) = node.start_controlled(options).await;
    let path = node.save("step_1", &[("weights.dat", 100)], 0);
    // Its name alone proves it complete: without the setting, it would be sealed by now.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(sealed(&node), []);
    let with_metrics =
        AnnounceRequest { metrics: BTreeMap::from([("loss".to_owned(), 0.25)]), ..announce(path) };
    assert!(client.announce(&with_metrics).await.unwrap().announced.newly_sealed);
    node.save("step_2", &[("weights.dat", 100)], 0);
    let detach = DetachRequest { process_id: trainer.id(), deadline_seconds: Some(60), wait: true };
    let answer = client.detach(&detach, PATIENCE).await.unwrap();
    assert!(answer.ended && answer.durable == Some(true), "{answer:?}");
    let report = service.ended().unwrap();
    assert_eq!(report.uploaded.total, 2, "{report:?}");
    assert_eq!(sealed(&node), [id(1, 1), id(1, 2)]);
}
