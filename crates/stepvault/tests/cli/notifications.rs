//! Notifications by commands, to receivers on loopback.

use serde_json::{Value, json};
use stepvault_testkit::webhook::{WebhookAnswer, WebhookReceiver};

use crate::support::{Outcome, Place, assert_members, damage, wait_until};

/// Two steps on the remote, of which the newer one is damaged.
fn place_with_damage() -> Place {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    damage(&place.remote_file("step_2", "model.bin"));
    place.remove("checkpoints");
    place
}

/// Runs a command of the run `demo/a` that notifies these URLs.
fn run(place: &Place, urls: &str, arguments: &[&str]) -> Outcome {
    let remote = place.remote();
    let common = ["--remote", &remote, "--run", "demo/a", "--node", "node-0", "--local", "vault"];
    place.command(arguments).with(common).env("STEPVAULT_NOTIFY", urls).run()
}

fn only(receiver: &WebhookReceiver) -> Value {
    let [document] = receiver.documents().try_into().unwrap();
    document
}

#[test]
fn a_restore_of_an_older_step_notifies_once_and_one_of_the_newest_never() {
    let (place, receiver) = (place_with_damage(), WebhookReceiver::start());
    // A vault, which remembers what was sent.
    place.succeed(&["push", "--run", "other", "--local", "vault", "--remote", &place.remote(), {
        place.checkpoint("step_9", "x");
        "checkpoints/step_9"
    }]);
    for target in ["one", "two"] {
        run(&place, &receiver.url("/hook"), &["restore", "--into", target]).expect_code(0);
    }
    let document = only(&receiver);
    assert_members(
        &document,
        &json!({ "event": "restored-older", "run": "demo/a", "step": 1, "attempt": 1, "node": "node-0" }),
    );
    let message = document["message"].as_str().unwrap();
    assert!(message.starts_with("restored step 1 (attempt 1) instead of step 2 (attempt 1): "), "{message}");

    let (place, receiver) = (Place::new(), WebhookReceiver::start());
    place.push_steps(&[1]);
    run(&place, &receiver.url("/hook"), &["restore", "--into", "out"]).expect_code(0);
    assert_eq!(receiver.documents(), Vec::<Value>::new());
}

#[test]
fn a_run_notifies_of_an_older_step_and_does_not_keep_the_trainer_waiting() {
    let (place, receiver) = (place_with_damage(), WebhookReceiver::start());
    receiver.answer_always(WebhookAnswer::Hang);
    let arguments = ["run", "--into", "out", "--", "true"];
    let remote = place.remote();
    let (before, after) = arguments.split_at(3);
    let common = ["--remote", &remote, "--run", "demo/a", "--node", "node-0"];
    let mut command = place.command([before, &common, after].concat());
    command.env("STEPVAULT_NOTIFY", receiver.url("/hook")).run().expect_code(0);
    assert_members(&only(&receiver), &json!({ "event": "restored-older", "step": 1 }));
}

#[test]
fn a_verification_that_fails_notifies_of_the_damage() {
    let (place, receiver) = (place_with_damage(), WebhookReceiver::start());
    run(&place, &receiver.url("/hook"), &["verify", "--deep", "--tier", "remote"]).expect_code(1);
    let document = only(&receiver);
    assert_members(&document, &json!({ "event": "verification-failed", "run": "demo/a", "step": 2 }));
    let message = document["message"].as_str().unwrap();
    assert!(message.starts_with("verify found 1 damaged step: step 2 (attempt 1) on "), "{message}");
}

#[test]
fn a_receiver_that_fails_changes_no_result_and_its_url_is_told_nowhere() {
    let (place, receiver) = (place_with_damage(), WebhookReceiver::start());
    receiver.answer_always(WebhookAnswer::Status(410));
    let url = receiver.url("/services/s3cr3t?key=s3cr3t");
    let outcome = run(&place, &url, &["restore", "--into", "out", "-vvv", "--json"]).expect_code(0);
    assert_eq!(outcome.json()["step"], 1);
    let shown = run(&place, &url, &["config", "show", "--json"]).expect_code(0);
    let wrong = run(&place, &format!("{url} http://example.com/s3cr3t"), &["config", "check"]).expect_code(2);
    for told in [&outcome, &shown, &wrong] {
        assert!(!format!("{told:?}").contains("s3cr3t"), "{told:?}");
    }
    outcome.expect_stderr(&["nobody was notified of 'restored-older'", "HTTP 410"]);
    shown.expect_stdout(&["/…"]);
}

#[test]
fn doctor_tries_the_targets() {
    let (place, receiver) = (Place::new(), WebhookReceiver::start());
    place.write(
        "stepvault.toml",
        format!(
            "notify = [{{ url = \"{}\", format = \"slack\" }}, {{ command = [\"sh\", \"-c\", \"cat > got.json\"] }}, \
             {{ command = [\"false\"] }}]\n",
            receiver.url("/hook")
        ),
    );
    let doctor = |arguments: &[&str]| {
        let common = ["doctor", "--no-remotes", "--json", "--node", "node-0"];
        place.run(&[&common[..], arguments].concat()).json()
    };
    let document = doctor(&["--notify"]);
    let findings = document["findings"].as_array().unwrap().iter();
    let tried: Vec<&Value> = findings.filter(|finding| finding["check"] == "notify").collect();
    let outcomes: Vec<&Value> = tried.iter().map(|finding| &finding["outcome"]).collect();
    assert_eq!(outcomes, ["pass", "pass", "fail"], "{document:#}");
    let text = only(&receiver)["text"].as_str().unwrap().to_owned();
    assert_eq!(text, "stepvault on node-0: test: a test of stepvault doctor: notifications arrive here");
    wait_until("the command's file", || place.path("got.json").exists());
    let got: Value = serde_json::from_str(&place.read("got.json")).unwrap();
    assert_members(&got, &json!({ "format": 1, "event": "test", "run": null, "node": "node-0" }));
    // Without the flag nothing is sent.
    doctor(&[]);
    assert_eq!(receiver.documents().len(), 1);
}
