//! Notifications to receivers on loopback and to commands.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepvault_agent::notifications::{Notifier, Occurrence};
use stepvault_agent::{AgentOptions, StopReason};
use stepvault_core::Observer;
use stepvault_core::config::{FileText, NotifyEvent, NotifyTarget, Sources, load};
use stepvault_core::remote_settings::ReadBack;
use stepvault_core::starts::RestartLoopRule;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::webhook::{WebhookAnswer, WebhookReceiver};
use tokio::time::Instant;

use crate::harness::{Node, run_name};

/// The targets of a configuration.
fn targets(list: &str) -> Vec<NotifyTarget> {
    let file = FileText { path: "stepvault.toml".into(), text: format!("notify = {list}") };
    load(&Sources { file: Some(file), ..Sources::default() }).unwrap().notify
}

fn to(receiver: &WebhookReceiver) -> Vec<NotifyTarget> {
    targets(&format!("[{{ url = \"{}\" }}]", receiver.url("/hook")))
}

fn notifier(node: &Node, targets: &[NotifyTarget]) -> Notifier {
    let observer = Arc::clone(&node.recorder) as Arc<dyn Observer>;
    Notifier::start(targets, "node-0".parse().unwrap(), None, observer)
}

fn occurrence(event: NotifyEvent, message: &str) -> Occurrence {
    Occurrence::new(event, &run_name(), message)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

fn late() -> Instant {
    Instant::now() + Duration::from_mins(2)
}

/// Fails unless a document has these members with these values.
#[track_caller]
fn assert_members(document: &Value, expected: &Value) {
    for (member, value) in expected.as_object().unwrap() {
        assert_eq!(&document[member], value, "{member}: {document:#}");
    }
}

#[tokio::test]
async fn a_receiver_that_fails_first_is_tried_again_and_gets_one_document() {
    let (node, receiver) = (Node::new(), WebhookReceiver::start());
    receiver.answer_next([WebhookAnswer::Status(503), WebhookAnswer::TooMany(1)]);
    let notifier = notifier(&node, &to(&receiver));
    notifier.notify(occurrence(NotifyEvent::RestartLoop, "5 starts\nin 10 minutes"));
    notifier.finish(late()).await;
    let documents = receiver.documents();
    assert_eq!(documents.len(), 3);
    for document in documents {
        let expected = json!({
            "format": 1, "event": "restart-loop", "run": run_name(), "step": null, "remote": null,
            "node": "node-0", "message": "5 starts in 10 minutes",
        });
        assert_members(&document, &expected);
        assert!(document["time"].as_str().unwrap().ends_with('Z'));
    }
    assert_eq!(node.recorder.lines_with("warning"), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_refused_for_good_is_tried_once_and_told_without_the_secret() {
    let (node, receiver) = (Node::new(), WebhookReceiver::start());
    receiver.answer_always(WebhookAnswer::Status(404));
    let list = format!(
        "[{{ url = \"{}\" }}, {{ command = [\"/no/such/program\"] }}]",
        receiver.url("/s3cr3t?s3cr3t")
    );
    let notifier = notifier(&node, &targets(&list));
    notifier.notify(occurrence(NotifyEvent::RestartLoop, "a loop"));
    notifier.finish(late()).await;
    assert_eq!(receiver.requests().len(), 1);
    let told = node.recorder.lines_with("nobody was notified of 'restart-loop'");
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(node.recorder.lines_with("HTTP 404").len(), 1);
    assert_eq!(node.recorder.lines_with("s3cr3t"), Vec::<String>::new());
}

#[tokio::test]
async fn a_receiver_that_hangs_holds_up_neither_the_others_nor_the_end() {
    let (node, hanging, receiver) = (Node::new(), WebhookReceiver::start(), WebhookReceiver::start());
    hanging.answer_always(WebhookAnswer::Hang);
    let both = [to(&hanging), to(&receiver)].concat();
    let notifier = notifier(&node, &both);
    // More than the queues hold: none of them waits.
    for number in 0..500 {
        notifier.notify(occurrence(NotifyEvent::VerificationFailed, &format!("damage {number}")));
    }
    node.until("the other one's document", || !receiver.requests().is_empty()).await;
    notifier.finish(soon()).await;
    assert_eq!(node.recorder.lines_with("not every notification was delivered").len(), 1);
    assert_eq!(hanging.requests().len(), 1);
}

#[tokio::test]
async fn a_target_gets_what_it_wants_in_its_own_shape_and_nothing_twice_within_an_hour() {
    let (node, receiver) = (Node::new(), WebhookReceiver::start());
    let list = format!(
        "[{{ url = \"{}\", format = \"slack\" }}, {{ url = \"{}\", format = \"discord\", on = [\"restored-older\"] }}]",
        receiver.url("/slack"),
        receiver.url("/discord"),
    );
    let notifier = notifier(&node, &targets(&list));
    let restart_loop = |message| occurrence(NotifyEvent::RestartLoop, message);
    for message in ["a loop", "a loop", "another loop"] {
        notifier.notify(restart_loop(message));
    }
    notifier.notify(restart_loop("a loop").over());
    notifier.notify(restart_loop("another loop"));
    notifier.notify(restart_loop("a loop"));
    notifier.notify(occurrence(NotifyEvent::RestoredOlder, "a loop"));
    notifier.finish(late()).await;
    let texts = |path: &str, member: &str| -> Vec<String> {
        let its = receiver.requests().into_iter().filter(|request| request.path == path);
        its.map(|request| request.document()[member].as_str().unwrap().to_owned()).collect()
    };
    let begin = format!("stepvault {} on node-0: ", run_name());
    let of = |rest: &str| format!("{begin}{rest}");
    let expected = [
        of("restart-loop: a loop"),
        of("restart-loop: another loop"),
        // It was over meanwhile.
        of("restart-loop: a loop"),
        of("restored-older: a loop"),
    ];
    assert_eq!(texts("/slack", "text"), expected);
    assert_eq!(texts("/discord", "content"), expected[3..]);
}

#[tokio::test]
async fn a_command_gets_the_document_and_is_ended_with_what_it_has_started() {
    let node = Node::new();
    let (file, pid) = (node.place.path().join("received.json"), node.place.path().join("pid"));
    let script = format!("cat > {}", file.display());
    let hanging = format!("sleep 1000 & echo $! > {}; wait", pid.display());
    let list = format!(
        "[{{ command = [\"sh\", \"-c\", \"{script}\"] }}, {{ command = [\"sh\", \"-c\", \"{hanging}\"] }}]"
    );
    let notifier = notifier(&node, &targets(&list));
    notifier.notify(occurrence(NotifyEvent::VerificationFailed, "damaged"));
    node.until("the document", || {
        std::fs::read(&file).is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok())
    })
    .await;
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_members(&document, &json!({ "event": "verification-failed", "message": "damaged" }));
    node.until("the other one", || std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')))
        .await;
    let sleeping = format!("/proc/{}/exe", std::fs::read_to_string(&pid).unwrap().trim());
    assert!(std::fs::read_link(&sleeping).is_ok());
    notifier.finish(soon()).await;
    node.until("its end", || std::fs::read_link(&sleeping).is_err()).await;
}

#[tokio::test]
async fn a_service_that_ends_with_steps_that_are_not_durable_notifies_once() {
    let (node, receiver, server) = (Node::new(), WebhookReceiver::start(), StrictS3::start());
    server.faults().inject("PUT", "model.safetensors", u64::MAX, FaultAction::Hang);
    let mut options = node.options(vec![node.s3_remote("s3", &server, 60).await]);
    options.notify = to(&receiver);
    options.lifecycle.restart_loop = None;
    // Another process of the same node remembers what was sent.
    for _ in 0..2 {
        let service = node.start(options.clone());
        if receiver.requests().is_empty() {
            node.save_small(7, 5);
        }
        node.until_heard("sealed: step 7").await;
        let deadline = std::time::Instant::now() + Duration::from_secs(2);
        service.ask_to_stop(StopReason::Signal, Some(deadline));
        assert!(!service.ended().unwrap().is_durable());
    }
    let [document] = receiver.documents().try_into().unwrap();
    let expected =
        json!({ "event": "not-durable", "run": run_name(), "step": 7, "attempt": 1, "remote": "s3" });
    assert_members(&document, &expected);
    let message = document["message"].as_str().unwrap();
    assert!(
        message.starts_with("the agent ended before step 7 (attempt 1) was durable on s3: "),
        "{message}"
    );
}

#[tokio::test]
async fn an_upload_that_is_read_back_with_other_bytes_notifies() {
    let (node, receiver, server) = (Node::new(), WebhookReceiver::start(), StrictS3::start());
    server.faults().inject("GET", "model.safetensors", u64::MAX, FaultAction::FlipBit);
    let remote =
        node.s3_remote_with("s3", &server, 60, |settings| settings.read_back = ReadBack::Always).await;
    let mut options = node.options(vec![remote]);
    options.notify = to(&receiver);
    let service = node.start(options);
    node.save_small(7, 5);
    node.until("the notification", || !receiver.requests().is_empty()).await;
    let document = receiver.documents().remove(0);
    assert_members(&document, &json!({ "event": "verification-failed", "step": 7, "remote": "s3" }));
    service.kill();
}

#[tokio::test]
async fn a_service_goes_on_while_a_receiver_hangs() {
    let (node, receiver, server) = (Node::new(), WebhookReceiver::start(), StrictS3::start());
    receiver.answer_always(WebhookAnswer::Hang);
    server.faults().inject("GET", "model.safetensors", u64::MAX, FaultAction::FlipBit);
    let s3 = node.s3_remote_with("s3", &server, 60, |settings| settings.read_back = ReadBack::Always).await;
    let mut options = node.options(vec![node.directory_remote("disk").await, s3]);
    options.notify = to(&receiver);
    let service = node.start(options);
    node.save_small(7, 5);
    node.until("the request that hangs", || !receiver.requests().is_empty()).await;
    for step in [8, 9] {
        node.save_small(step, 5);
        node.until_durable("disk", step).await;
    }
    service.ask_to_stop(StopReason::Signal, Some(std::time::Instant::now() + Duration::from_secs(3)));
    assert!(!service.ended().unwrap().is_durable());
    assert_eq!(node.recorder.lines_with("not every notification was delivered").len(), 1);
}

#[tokio::test]
async fn a_restart_loop_notifies_once_however_often_it_goes_on() {
    let (node, receiver) = (Node::new(), WebhookReceiver::start());
    let mut options: AgentOptions = node.disk_options().await;
    options.notify = to(&receiver);
    options.lifecycle.restart_loop = Some(RestartLoopRule { starts: 3, within_seconds: 600 });
    for start in 1..=5 {
        let service = node.start(options.clone());
        node.until("its start", || node.recorder.lines_with("watching ").len() == start).await;
        if start >= 3 {
            node.until("the notification", || !receiver.requests().is_empty()).await;
            node.until("the warning", || node.recorder.lines_with("restart loop").len() + 2 >= start).await;
        }
        // The last one delivers whatever it has to say.
        if start < 5 { service.kill() } else { drop(service.stop()) }
    }
    let [document] = receiver.documents().try_into().unwrap();
    assert_members(&document, &json!({ "event": "restart-loop", "run": run_name() }));
}
