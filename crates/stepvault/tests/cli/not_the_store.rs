//! Answers that are not the store's, or that prove nothing: a proxy's page in its place, a login, an empty body, a single
//! object that is refused, archived or denied to exist. None of them makes a run new, or a step damaged.

use std::time::{Duration, Instant};

use stepvault_testkit::faults::{FaultAction, FaultRule, Faults, RequestRecord};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

use crate::support::{Outcome, Place, TestCommand, at_once};

const PAGE: &str = "<html><body>default backend - 404</body></html>";
/// The newest step of the store, as its objects' names have it.
const NEWEST: &str = "000000000002.a1";
/// Longer than the lease of a pruner that nobody renews is valid.
const LEASES_RUN_OUT: Duration = Duration::from_secs(150);

/// A store with the steps 1 and 2, and a machine that has never seen it.
struct Scene {
    place: Place,
    remote: String,
    variables: Vec<(&'static str, &'static str)>,
    faults: Faults,
    /// Kept, because it stops when it is dropped.
    server: Box<dyn std::any::Any + Send>,
}

impl Scene {
    fn on_s3() -> Self {
        let server = StrictS3::start();
        server.create_bucket("bucket");
        let endpoint = server.endpoint();
        Self {
            place: Place::new(),
            remote: format!("main=s3://bucket/p?endpoint={endpoint}&region=us-east-1&retry-deadline=1s"),
            variables: vec![
                ("AWS_ACCESS_KEY_ID", server.access_key()),
                ("AWS_SECRET_ACCESS_KEY", server.secret_key()),
            ],
            faults: server.faults().clone(),
            server: Box::new(server),
        }
    }

    fn on_gcs() -> Self {
        let server = StrictGcs::start();
        server.create_bucket("bucket");
        let endpoint = server.endpoint();
        Self {
            place: Place::new(),
            remote: format!("main=gs://bucket/p?endpoint={endpoint}&retry-deadline=1s"),
            variables: Vec::new(),
            faults: server.faults().clone(),
            server: Box::new(server),
        }
    }

    fn command(&self, arguments: &[&str]) -> TestCommand {
        let mut command = self.place.command(arguments);
        command.args(["--run", "demo/a", "--local", "vault", "--remote", &self.remote]);
        command.envs(self.variables.iter().copied());
        command
    }

    /// The same, with what follows `--` behind the options.
    fn command_of(&self, arguments: &[&str]) -> TestCommand {
        let options = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
        self.command(&arguments[..options]).with(&arguments[options..])
    }

    /// The two stores, each with both steps.
    fn all() -> [Self; 2] {
        let scenes = [Self::on_s3(), Self::on_gcs()];
        for scene in &scenes {
            for step in ["step_1", "step_2"] {
                scene.place.checkpoint(step, step);
                let pushed = scene.command(&["push", &format!("checkpoints/{step}")]).run();
                pushed.expect_code(0);
            }
            scene.forget();
        }
        scenes
    }

    /// Ends all faults, and whatever the machine has restored or remembers.
    fn forget(&self) {
        self.faults.clear();
        for name in ["vault", ".stepvault", "out"] {
            self.place.remove(name);
        }
    }

    /// Lets every read whose path has this text end so.
    fn inject(&self, path_contains: &str, action: &FaultAction) {
        for method in ["GET", "HEAD"] {
            self.faults.inject(method, path_contains, u64::MAX, action.clone());
        }
    }

    /// Restores beside this fault of a listed object: the newest step does not come, and no older one in its place.
    #[track_caller]
    fn restore_beside(&self, path: &str, action: &FaultAction) {
        let before = self.faults.requests().len();
        self.inject(path, action);
        let restored = self.command(&["restore", "--into", "out"]).run();
        let requests = self.faults.requests_after(before);
        let is_met = |request: &RequestRecord| {
            matches!(request.method.as_str(), "GET" | "HEAD") && request.path.contains(path)
        };
        // An archive has a code of its own.
        let is_archived = format!("{action:?}").contains("InvalidObjectState");
        let wanted = match (requests.iter().any(is_met), is_archived) {
            (false, _) => 0,
            (true, true) => 15,
            (true, false) => 12,
        };
        assert_eq!(restored.code, wanted, "{path}, {action:?}: {restored:?}");
        assert!(!self.place.path("out/step_1").exists(), "{path}, {action:?}");
        self.forget();
    }
}

/// Answers of something that is no store, each with the exit code where every request gets it.
fn foreign() -> [(FaultAction, i32); 7] {
    let answers = [
        (404, PAGE, 12),
        (404, "", 12),
        (410, PAGE, 12),
        (200, PAGE, 12),
        (200, "", 12),
        (302, PAGE, 12),
        // As by wrong credentials.
        (403, PAGE, 1),
    ];
    answers.map(|(status, page, code)| (FaultAction::Foreign { status, page }, code))
}

#[test]
fn a_page_in_the_place_of_every_answer_is_an_outage() {
    at_once(Scene::all(), |scene| {
        for (action, code) in foreign() {
            scene.inject("", &action);
            let restored = scene.command(&["restore", "--into", "out"]).run();
            assert_eq!(restored.code, code, "{action:?}: {restored:?}");
            let run = scene.command(&["run", "--into", "out"]);
            let run = run.with(["--", "touch", "began"]).run();
            assert_eq!(run.code, code, "{action:?}: {run:?}");
            assert!(!scene.place.path("began").exists(), "{action:?}");
            scene.forget();
        }
        let restored = scene.command(&["restore", "--into", "out"]).run();
        restored.expect_code(0);
        assert!(scene.place.path("out/step_2").exists());
    });
}

#[test]
fn one_answer_about_a_listed_object_does_not_make_the_step_older() {
    at_once(Scene::all(), |scene| {
        for (action, _) in foreign() {
            for object in [
                format!("commits%2F{NEWEST}"),
                format!("parts%2F{NEWEST}"),
                format!("p%2Fdemo%2Fa%2F{NEWEST}"),
            ] {
                // Strict S3 sees the slashes of a key as they are.
                for path in [object.clone(), object.replace("%2F", "/")] {
                    scene.restore_beside(&path, &action);
                }
            }
        }
    });
}

#[test]
fn an_object_that_is_refused_archived_or_denied_is_no_proof() {
    let [s3, gcs] = Scene::all();
    for (status, code) in [(403, "AccessDenied"), (403, "InvalidObjectState"), (404, "NoSuchKey")] {
        for object in ["commits/", "parts/", ""] {
            let path = format!("{object}{NEWEST}");
            s3.restore_beside(&path, &FaultAction::refuse(status, code));
        }
    }
    for (status, code) in [(403, "forbidden"), (404, "notFound")] {
        for object in ["commits%2F", "parts%2F", ""] {
            let path = format!("{object}{NEWEST}");
            gcs.restore_beside(&path, &FaultAction::refuse(status, code));
        }
    }
}

#[test]
fn a_listing_that_lags_behind_hides_no_newer_step() {
    let [s3, _] = Scene::all();
    let server: &StrictS3 = s3.server.downcast_ref().unwrap();
    server.hide_from_listings("bucket", &format!("commits/{NEWEST}"));
    let restored = s3.command(&["restore", "--into", "out"]).run();
    restored.expect_code(0);
    assert!(s3.place.path("out/step_2").exists());
}

/// Runs a command, with one answer replaced if that is given, and returns its number of requests. Where something else has
/// answered the release of a lease, waits until the lease has expired.
fn run_alone(scene: &Scene, arguments: &[&str], replaced: Option<(usize, &FaultAction)>) -> (Outcome, usize) {
    let begun = Instant::now();
    loop {
        if let Some((index, action)) = replaced {
            scene.faults.add(FaultRule {
                method: None,
                path_contains: String::new(),
                skip: index as u64,
                times: 1,
                action: action.clone(),
            });
        }
        let before = scene.faults.requests().len();
        let ended = scene.command_of(arguments).run();
        if ended.code != 13 || begun.elapsed() > LEASES_RUN_OUT {
            return (ended, scene.faults.requests().len() - before);
        }
        scene.forget();
        std::thread::sleep(Duration::from_secs(5));
    }
}

/// Answers one request of each command with a page that is not the store's, one request after the other, and checks
/// that the command ends as without it or with an error, and that the newest step is there afterwards.
fn sweep(scene: &Scene, every: usize) {
    let commands: [(&[&str], bool); 5] = [
        (&["restore", "--into", "out"], true),
        (&["run", "--into", "out", "--", "sh", "-c", "true"], true),
        (&["verify", "--deep"], false),
        (&["gc", "--grace", "0s"], false),
        (&["prune", "--tier", "remote", "--keep-last", "2"], false),
    ];
    let (pages, mut struck) = (foreign(), 0_usize);
    for (arguments, resumes) in commands {
        scene.forget();
        let (ended, requests) = run_alone(scene, arguments, None);
        ended.expect_code(0);
        for index in (struck % every..requests).step_by(every) {
            scene.forget();
            let (action, _) = &pages[struck % pages.len()];
            struck += 1;
            let (ended, _) = run_alone(scene, arguments, Some((index, action)));
            let beside = format!("{arguments:?}, request {index}, {action:?}: {ended:?}");
            assert!([0, 1, 3, 12].contains(&ended.code), "{beside}");
            let out = |name: &str| scene.place.path("out").join(name).exists();
            assert!(!out("step_1"), "{beside}");
            assert!(!resumes || ended.code != 0 || out("step_2"), "{beside}");
            scene.forget();
            let restored = scene.command(&["restore", "--into", "out"]).run();
            assert!(restored.code == 0 && out("step_2"), "after {beside}: {restored:?}");
        }
    }
    assert!(struck > 5);
    scene.forget();
    scene.command(&["verify", "--deep"]).run().expect_code(0);
}

#[test]
fn one_page_in_the_place_of_any_answer_costs_no_step() {
    let every = if std::env::var_os("FAULTS_FULL").is_some() { 1 } else { 4 };
    at_once(Scene::all(), |scene| sweep(&scene, every));
}
