//! Restart loops made with `stepvault run`, and how trainers ended.

use crate::explain::Found;
use crate::support::Place;

fn start(place: &Place, script: &str) -> i32 {
    let remote = place.remote();
    let arguments = [
        "run", "-q", "--remote", &remote, "--run", "demo/a", "--node", "node-0", "--into", "out", "--", "sh",
        "-c", script,
    ];
    place.run(&arguments).code
}

fn explain(place: &Place, more: &[&str]) -> Found {
    let remote = place.remote();
    let arguments = [&["out", "--remote", &remote, "--run", "demo/a"], more].concat();
    place.explain(&arguments)
}

fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("out")).unwrap();
    place.write("stepvault.toml", "[restart]\nloop-starts = 3\n");
    place
}

/// A `git` that does what matters here of the real one: it clones into nothing that is there.
const CLONE: &str = "if [ -d AReaL ]; then \
    echo \"fatal: destination path 'AReaL' already exists and is not an empty directory.\" >> docker.log; exit 128; fi; \
    mkdir AReaL; echo cloned >> docker.log; exit 1";

#[test]
fn a_start_command_that_fails_over_a_directory_is_a_restart_loop() {
    let place = place();
    assert_eq!(start(&place, CLONE), 1);
    for _ in 0..3 {
        assert_eq!(start(&place, CLONE), 128);
    }
    let found = explain(&place, &["--log", "docker.log"]);
    assert_eq!(found.causes(), ["path-exists", "restart-loop"], "{found:#?}");
    let evidence = found.evidence("path-exists");
    assert!(evidence.contains("destination path 'AReaL' already exists"), "{evidence}");
    let evidence = found.evidence("restart-loop");
    assert!(
        evidence.contains("the trainer of 'demo/a' was started 4 times within 10 min on node-0")
            && evidence.contains("exit 1, exit 128, exit 128, exit 128"),
        "{evidence}"
    );
    assert_eq!(found.cause("restart-loop")["likelihood"], "very-likely");
    // The starts alone show it too.
    assert_eq!(explain(&place, &[]).causes(), ["restart-loop"]);
}

#[test]
fn a_trainer_that_was_killed_says_by_what() {
    let place = place();
    assert_eq!(start(&place, "kill -9 $$"), 137);
    let found = explain(&place, &[]);
    assert_eq!(found.causes(), ["out-of-memory"], "{found:#?}");
    assert_eq!(found.cause("out-of-memory")["likelihood"], "likely");
    assert!(found.evidence("out-of-memory").contains("SIGKILL"), "{found:#?}");
}

#[test]
fn trainers_that_end_well_say_nothing() {
    let place = place();
    assert_eq!(start(&place, "exit 0"), 0);
    let found = explain(&place, &[]);
    assert!(found.causes().is_empty(), "{found:#?}");
}
