//! Steps whose objects are in an archive class: they are requested if that is asked for, and restored later.

use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree;

use crate::support::{Place, TestCommand};

struct Scene {
    place: Place,
    server: StrictS3,
}

impl Scene {
    /// Two steps, of which the newer one has two files.
    fn new() -> Self {
        let scene = Self { place: Place::new(), server: StrictS3::start() };
        scene.server.create_bucket("bucket");
        for step in ["step_1", "step_2"] {
            scene.place.checkpoint(step, step);
            scene.command(&["push", &format!("checkpoints/{step}")]).run().expect_code(0);
        }
        scene.place.remove(".stepvault");
        scene
    }

    fn command(&self, arguments: &[&str]) -> TestCommand {
        let remote = format!("main=s3://bucket/p?endpoint={}&region=us-east-1", self.server.endpoint());
        let mut command = self.place.command(arguments);
        command.args(["--run", "demo/a", "--remote", &remote]);
        let (key, secret) = (self.server.access_key(), self.server.secret_key());
        command.envs([("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)]);
        command
    }

    fn requested(&self) -> usize {
        let requests = self.server.faults().requests();
        requests.iter().filter(|request| request.method == "POST" && request.path.contains("restore")).count()
    }
}

#[test]
fn an_archived_step_is_requested_once_and_restored_later() {
    let scene = Scene::new();
    scene.server.archive("DEEP_ARCHIVE", false);
    let restore = ["restore", "--into", "out"];
    scene
        .command(&restore)
        .run()
        .expect_code(15)
        .expect_stderr(&["the object is archived", "--thaw standard"]);
    assert_eq!(scene.requested(), 0);
    // What reads no data needs nothing from the archive.
    scene.command(&["list"]).run().expect_code(0);
    scene.command(&["verify"]).run().expect_code(0);
    assert_eq!(scene.requested(), 0);
    let thaw = [&restore[..], &["--thaw", "bulk"]].concat();
    for _ in 0..2 {
        let asked = scene.command(&thaw).run().expect_code(15);
        asked.expect_stderr(&[
            "2 objects on main in the archive (DEEP_ARCHIVE)",
            "bulk retrieval, which takes up to 48 hours",
        ]);
        assert_eq!(scene.requested(), 2, "each object is requested once");
    }
    assert!(!scene.place.path("out/step_2").exists());
    assert_eq!(scene.server.finish_thaws(), 2);
    scene.command(&thaw).run().expect_code(0);
    let (restored, step) = (scene.place.path("out/step_2"), scene.place.path("checkpoints/step_2"));
    assert_eq!(tree::read_tree(&restored), tree::read_tree(&step));
    assert_eq!(scene.requested(), 2);
}

#[test]
fn a_restore_waits_for_archived_objects_and_records() {
    let scene = Scene::new();
    scene.server.archive("GLACIER", true);
    let restore = ["restore", "--into", "out", "--thaw", "standard", "--timeout", "5m"];
    let mut waiting = scene.command(&restore).start();
    for what in ["records", "files"] {
        waiting.wait_until(what, || scene.server.finish_thaws() == if what == "records" { 2 } else { 4 });
    }
    let waited = waiting.wait().expect_code(0);
    waited.expect_stderr(&[
        "in the archive (GLACIER), requested with standard retrieval, which takes 3 to 5 hours",
    ]);
    assert!(scene.place.path("out/step_2").exists());
}

#[test]
fn an_older_step_that_can_be_read_comes_only_if_that_is_allowed() {
    let scene = Scene::new();
    scene.server.objects().with(|objects| {
        for (_, object) in objects.iter_mut().filter(|(key, _)| key.contains("000000000002.a1/step_2/")) {
            object.attributes.insert("x-amz-storage-class".to_owned(), "GLACIER".to_owned());
        }
    });
    scene.command(&["restore", "--into", "out"]).run().expect_code(15);
    scene.command(&["restore", "--into", "out", "--allow-older"]).run().expect_code(0);
    assert!(scene.place.path("out/step_1").exists());
    scene.command(&["restore", "--into", "out", "--timeout", "1h"]).run().expect_code(2);
    scene.command(&["restore", "--into", "out", "--thaw", "fast"]).run().expect_code(2);
}

#[test]
fn a_marker_in_the_archive_stops_no_vault_that_has_seen_it() {
    let scene = Scene::new();
    let restore = |into: &'static str, more: &[&str]| {
        scene.command(&[&["restore", "--local", "vault", "--into", into], more].concat())
    };
    std::fs::create_dir(scene.place.path("vault")).unwrap();
    restore("before", &[]).run().expect_code(0);
    scene.server.archive("GLACIER", true);
    restore("out", &[]).run().expect_code(15);
    let thaw = ["--thaw", "standard"];
    for objects in ["2 objects", "2 objects"] {
        restore("out", &thaw).run().expect_code(15).expect_stderr(&[objects]);
        scene.server.finish_thaws();
    }
    restore("out", &thaw).run().expect_code(0);
    assert!(scene.place.path("out/step_2").exists());
}

#[test]
fn run_and_follow_request_archived_objects_too() {
    let scene = Scene::new();
    scene.server.archive("GLACIER", false);
    let mut run = scene.command(&["run", "--into", "out", "--thaw", "bulk"]);
    run.args(["--", "sh", "-c", "echo resumed from $STEPVAULT_RESTORED_STEP"]);
    run.run().expect_code(15).expect_stderr(&["2 objects", "bulk retrieval"]);
    assert_eq!(scene.requested(), 2);
    scene.server.finish_thaws();
    run.run().expect_code(0).expect_stdout(&["resumed from 2"]);

    let scene = Scene::new();
    scene.server.archive("GLACIER", false);
    let mut follower = scene
        .command(&["follow", "--into", "followed", "--once", "--interval", "1s", "--thaw", "standard"])
        .start();
    follower.wait_until("the requests", || scene.server.finish_thaws() == 2);
    assert_eq!(scene.requested(), 2);
    follower.wait().expect_code(0);
    assert!(scene.place.path("followed/000000000002.a1/step_2").exists());
}
