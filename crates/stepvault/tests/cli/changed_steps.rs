//! Changes to an old step, and the order of arrival, never change which step is the newest.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use stepvault_testkit::torch::state;
use stepvault_testkit::tree::write;

use crate::support::{Place, at_once, list};
use crate::watched::{configured, lose_the_node, on};

fn checkpoint(place: &Place, step: u64, seconds_ago: u64) {
    let directory = place.path("out").join(format!("checkpoint-{step}"));
    for name in ["model.pt", "optimizer.pt", "scheduler.pt"] {
        write(&directory.join(name), state(&[], &format!("{name} of {step}")));
        let time = SystemTime::now() - Duration::from_secs(seconds_ago);
        let file = std::fs::File::open(directory.join(name)).unwrap();
        file.set_modified(time).unwrap();
    }
}

/// Three steps, sealed and durable, with the default rules and with one step to keep.
fn three_steps(keep: &str) -> Place {
    let place = configured();
    let text = place.read("n.toml");
    place.write("n.toml", format!("{text}{keep}"));
    for step in [100, 200, 300] {
        checkpoint(&place, step, 3600 - step);
    }
    round(&place);
    place
}

fn round(place: &Place) -> Value {
    let command = place.command(["agent", "--once", "--config", "n.toml", "--json"]);
    command.run().json()
}

/// A new node restores step 300 with its optimizer, and no attempt has begun.
#[track_caller]
fn the_newest_is_300(place: &Place, what: &str) {
    let steps = on(place, &["list", "--json"]).expect_code(0).json();
    for step in list(&steps, "steps") {
        assert_eq!(step["attempt"], 1, "{what}: {steps:#}");
    }
    lose_the_node(place);
    on(place, &["restore", "--into", "out"]).expect_code(0);
    let back = place.path("out/checkpoint-300/optimizer.pt");
    assert!(back.exists(), "{what}: {steps:#}");
}

/// Does something to a directory of a step.
type Change = fn(&Path);

#[test]
fn a_changed_old_step_stays_where_it_is() {
    let changes: &[(&str, Change)] = &[
        ("a model card", |step| write(&step.join("README.md"), "# card")),
        ("results of an evaluation", |step| {
            write(&step.join("eval_results.json"), "{}");
        }),
        ("a tokenizer", |step| write(&step.join("tokenizer.json"), "{}")),
        ("a notebook", |step| {
            write(&step.join(".ipynb_checkpoints/model-checkpoint.pt"), "x");
        }),
        ("a hub client", |step| {
            write(&step.join(".cache/huggingface/download/model.pt.metadata"), "x");
            write(&step.join(".gitattributes"), "*.pt filter=lfs");
        }),
        ("an archive of macOS", |step| {
            write(&step.join("._model.pt"), "x");
            write(&step.join(".DS_Store"), "x");
        }),
        ("an averaged model", |step| {
            write(&step.join("ema.pt"), state(&[], "averaged"));
        }),
        ("weights of half the precision", |step| {
            write(&step.join("model.pt"), state(&[], "half"));
        }),
        ("a removed optimizer", |step| {
            std::fs::remove_file(step.join("optimizer.pt")).unwrap();
        }),
        ("notes, without the optimizer", |step| {
            write(&step.join("notes.txt"), "no optimizer");
        }),
        ("new times", |step| {
            for entry in std::fs::read_dir(step).unwrap() {
                let file = std::fs::File::open(entry.unwrap().path()).unwrap();
                file.set_modified(SystemTime::now()).unwrap();
            }
        }),
    ];
    at_once(["", "[keep.local]\nlast = 1\n[keep.remote]\nlast = 1\n"], |keep| {
        let place = three_steps(keep);
        for (what, change) in changes {
            for step in ["out/checkpoint-100", "out/checkpoint-200"] {
                change(&place.path(step));
            }
            let report = round(&place);
            assert_eq!(report["durable"], true, "{what}: {report:#}");
        }
        the_newest_is_300(&place, keep);
    });
}

#[test]
fn steps_that_arrive_in_any_order_are_ordered_by_number() {
    let orders = [[100, 200, 300], [300, 200, 100], [200, 300, 100], [300, 100, 200]];
    at_once(orders, |order| {
        let place = configured();
        for (index, step) in order.into_iter().enumerate() {
            checkpoint(&place, step, 600 - 10 * index as u64);
        }
        round(&place);
        the_newest_is_300(&place, &format!("{order:?} in one round"));

        let place = configured();
        for (index, step) in order.into_iter().enumerate() {
            checkpoint(&place, step, 600 - 10 * index as u64);
            round(&place);
        }
        the_newest_is_300(&place, &format!("{order:?} in rounds"));
    });
}

#[test]
fn one_step_that_is_fetched_while_the_agent_runs_is_stored_in_its_place_and_warned_of() {
    let place = configured();
    for step in [200, 300] {
        checkpoint(&place, step, 600);
    }
    let mut agent = place.start_agent(&["--config", "n.toml"], &[]);
    let durable = |step: &str| format!("step {step} (attempt 1) is durable");
    agent.wait_for_log(&durable("300"));
    place.write("arriving/checkpoint-100/model.pt", state(&[], "m"));
    place.write("arriving/checkpoint-100/optimizer.pt", state(&[], "o"));
    place.write("arriving/checkpoint-100/scheduler.pt", state(&[], "s"));
    std::fs::rename(place.path("arriving/checkpoint-100"), place.path("out/checkpoint-100")).unwrap();
    agent.wait_for_log(&durable("100"));
    assert!(agent.logged().contains("step 100 was written after step 300 (attempt 1)"), "{}", agent.logged());
    agent.kill();
    the_newest_is_300(&place, "fetched");
}
