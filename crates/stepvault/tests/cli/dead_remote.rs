//! A remote that answers nobody, beside one that works: it costs its deadline once, and delays nothing else.

use std::net::TcpListener;

use serde_json::json;
use stepvault_testkit::process::wait_until;

use crate::support::{ANY_KEYS, Place, TestCommand};

/// A place with a remote that works, and one that takes connections and never answers, for longer than any test waits.
struct Scene {
    place: Place,
    dead: TcpListener,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        for step in [1, 2] {
            place.write(&format!("step_{step}/weights.bin"), format!("weights {step}"));
        }
        Self { place, dead: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    fn command(&self, arguments: &[&str], retry_deadline: &str) -> TestCommand {
        let port = self.dead.local_addr().unwrap().port();
        let dead = format!(
            "dead=s3://bucket/p?endpoint=http://127.0.0.1:{port}&region=us-east-1&retry-deadline={retry_deadline}"
        );
        let healthy = format!("healthy={}", self.place.remote());
        let mut command = self.place.command(arguments);
        command.args(["--run", "demo/a", "--remote", &dead, "--remote", &healthy]).envs(ANY_KEYS);
        command
    }
}

#[test]
fn a_restore_asks_it_for_some_seconds_if_another_one_answers() {
    let scene = Scene::new();
    let healthy = format!("healthy={}", scene.place.remote());
    let push = ["push", "step_1", "--run", "demo/a", "--local", "vault", "--remote", &healthy];
    scene.place.succeed(&push);
    scene.place.remove("vault");
    // Its own deadline is longer than a test may take.
    let restored = scene.command(&["restore", "--into", "out"], "1h").run();
    restored
        .expect_code(0)
        .expect_stdout(&["restored step 1"])
        .expect_stderr(&["dead is unreachable and may hold newer steps", "no answer within 15 s"]);
}

#[test]
fn a_push_seals_and_stores_on_the_other_one_meanwhile() {
    let scene = Scene::new();
    let push = scene.command(&["push", "step_1", "--local", "vault"], "1h").start();
    let commits = scene.place.path("remote/demo/a/.stepvault/commits");
    wait_until("the healthy remote has the step", || {
        std::fs::read_dir(&commits).is_ok_and(|files| files.count() == 1)
    });
    push.kill();
}

#[test]
fn it_costs_its_deadline_once() {
    let scene = Scene::new();
    let dead = scene.dead.try_clone().unwrap();
    // Every connection ends at once.
    std::thread::spawn(move || dead.incoming().for_each(drop));
    let outcome = scene.command(&["push", "step_1", "--local", "vault", "--json"], "4s").run().expect_code(3);
    assert!(outcome.stderr.contains("cannot list the steps on dead"), "{}", outcome.stderr);
    let remotes = &outcome.json()["remotes"];
    assert_eq!((&remotes[0]["durable"], &remotes[1]["durable"]), (&json!(false), &json!(true)));
    // Sealing has used the deadline up, so that the upload tries once.
    let message = remotes[0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("tried once"), "{message}");
}
