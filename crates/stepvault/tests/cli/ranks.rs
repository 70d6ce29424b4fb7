//! The ranks of a node, each of which restores and starts an agent: one does it for all.

use stepvault_testkit::process::TestProcess;

use crate::support::{Place, list};

/// Starts processes of one launcher, which is this test.
fn start_ranks<const COUNT: usize>() -> [TestProcess; COUNT] {
    std::array::from_fn(|_| TestProcess::idle())
}

#[test]
fn they_restore_once_and_a_later_start_restores_what_is_newest_then() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    place.remove("checkpoints");
    place.remove(".stepvault");
    let restore = |rank: &str| {
        let arguments = ["restore", "--into", "checkpoints", "--rank-process", rank];
        place.document_here(0, &arguments)
    };
    let ranks = start_ranks::<3>();
    let [first, second, third] = ranks.each_ref().map(|rank| rank.id().to_string());
    let restored = restore(&first);
    assert_eq!(restored["step"], 2);
    assert_eq!(list(&restored, "sources").len(), 1);
    let text =
        place.run_here(&["restore", "--into", "checkpoints", "--rank-process", &second]).expect_code(0);
    let path = place.path("checkpoints/step_2");
    text.expect_stdout(&[&format!("another rank has restored step 2: {}", path.display())]);
    assert_eq!(restore(&third), restored);
    // A rank that asks again, and a step that is gone, are restored anew.
    assert_eq!(restore(&first)["already_there"], true);
    place.remove("checkpoints/step_2");
    assert_eq!(list(&restore(&second), "sources").len(), 1);

    drop(ranks);
    place.checkpoint("step_3", "newer");
    place.succeed_here(&["push", "checkpoints/step_3"]);
    place.remove("checkpoints/step_3");
    let ranks = start_ranks::<2>();
    for rank in &ranks {
        assert_eq!(restore(&rank.id().to_string())["step"], 3);
    }
    place
        .run_here(&["restore", "--into", "checkpoints", "--rank-process", &first])
        .expect_code(2)
        .expect_stderr(&["no such process"]);
}

#[test]
fn an_agent_that_comes_second_says_nothing() {
    let place = Place::new();
    let [process] = start_ranks();
    let rank = &process.id().to_string();
    let remote = place.remote();
    let arguments = ["--run", "demo/a", "--local", "vault", "--remote", &remote];
    let first = place.start_agent(&[&arguments[..], &["--follow", rank]].concat(), &[]);
    place.agent_status(&arguments);
    let second = place.run(&[&["agent"], &arguments[..], &["--follow", rank]].concat());
    let second = second.expect_code(13);
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("", ""));
    first.kill();
}
