//! Checkpoints without a number in their names: each content is a step, and is restored under its own name.

use std::path::{Path, PathBuf};

use serde_json::Value;
use stepvault_testkit::torch::{archive, state};
use stepvault_testkit::tree::{FileTree, files_below, read_tree};

use crate::support::{Place, list};
use crate::watched::{configured, lose_the_node, on, round};

/// Returns attempt and number of every step, in order.
#[track_caller]
fn steps(place: &Place) -> Vec<(u64, u64)> {
    let document = on(place, &["list", "--json"]).expect_code(0).json();
    let number = |step: &Value, member: &str| step[member].as_u64().unwrap();
    let steps = list(&document, "steps").iter();
    let mut steps: Vec<_> = steps.map(|step| (number(step, "attempt"), number(step, "step"))).collect();
    steps.sort_unstable();
    steps
}

/// The files that restores have moved out of the trainer's way.
fn moved_aside(place: &Place) -> Vec<PathBuf> {
    let mut files = files_below(place.root());
    files.retain(|path| path.to_str().unwrap().contains("/moved-aside/"));
    files
}

fn number(save: u64) -> i64 {
    i64::try_from(save).unwrap()
}

/// Saves twice, loses the node, restores, and goes back to the first: `write` makes the numbered save of a trainer.
fn every_content_is_a_step(write: fn(&Place, u64), numbers: [u64; 2], of_the_trainer: &[&str]) {
    let place = configured();
    write(&place, 1);
    round(&place);
    let saved = |place: &Place| -> FileTree {
        let mut files = read_tree(&place.path("out"));
        files.retain(|path, _| of_the_trainer.contains(&path.to_str().unwrap()));
        assert_eq!(files.len(), of_the_trainer.len());
        files
    };
    let first = saved(&place);
    write(&place, 2);
    let report = round(&place);
    assert_eq!(report["skipped"]["total"], 0, "{report:#}");
    let second = saved(&place);
    let both = [(1, numbers[0]), (1, numbers[1])];
    assert_eq!(steps(&place), both);

    lose_the_node(&place);
    on(&place, &["restore", "--into", "out"]).expect_code(0);
    assert_eq!(saved(&place), second);
    // What was restored is no new step.
    round(&place);
    assert_eq!(steps(&place), both);

    // Newer content under the same name is moved aside.
    write(&place, 3);
    let third = saved(&place);
    let to_first = ["restore", "--into", "out", "--step", &numbers[0].to_string()].map(str::to_owned);
    let to_first: Vec<&str> = to_first.iter().map(String::as_str).collect();
    let plan = on(&place, &[&to_first[..], &["--plan", "--json"]].concat()).expect_code(0).json();
    let aside = list(&plan, "moved_aside");
    assert!(!aside.is_empty(), "{plan:#}");
    on(&place, &to_first).expect_code(0);
    assert_eq!(saved(&place), first);
    let kept: Vec<Vec<u8>> = moved_aside(&place).iter().map(|path| std::fs::read(path).unwrap()).collect();
    for (path, (_, bytes)) in &third {
        let is_unchanged = first[path].1 == *bytes;
        assert!(is_unchanged || kept.contains(bytes), "{} is lost", path.display());
    }
}

#[test]
fn of_ultralytics() {
    let write = |place: &Place, save: u64| {
        place.write("out/args.yaml", "model: yolo");
        let bytes = state(&[("epoch", number(save))], &format!("weights {save}"));
        place.write("out/weights/last.pt", &bytes);
        // The second epoch is worse.
        if save != 2 {
            place.write("out/weights/best.pt", &bytes);
        }
    };
    every_content_is_a_step(write, [1, 2], &["weights/last.pt", "weights/best.pt"]);
}

#[test]
fn of_lightning() {
    let write = |place: &Place, save: u64| {
        let step = number(save) * 10;
        let bytes = state(&[("epoch", 0), ("global_step", step)], &format!("weights {save}"));
        place.write("out/version_0/checkpoints/last.ckpt", bytes);
    };
    every_content_is_a_step(write, [10, 20], &["version_0/checkpoints/last.ckpt"]);
}

#[test]
fn of_timm() {
    let write = |place: &Place, save: u64| {
        let bytes = state(&[("epoch", number(save))], &format!("weights {save}"));
        for name in ["last.pth.tar", "model_best.pth.tar"] {
            let temporary = place.write("out/tmp.pth.tar", &bytes);
            std::fs::rename(temporary, place.path("out").join(name)).unwrap();
        }
    };
    every_content_is_a_step(write, [1, 2], &["last.pth.tar", "model_best.pth.tar"]);
}

#[test]
fn of_fairseq() {
    let write = |place: &Place, save: u64| {
        let updates = ("optimizer_history.num_updates", number(save) * 100);
        let bytes = state(&[updates], &format!("weights {save}"));
        place.write("out/checkpoint_last.pt", &bytes);
        place.write("out/checkpoint_best.pt", &bytes);
    };
    every_content_is_a_step(write, [100, 200], &["checkpoint_last.pt", "checkpoint_best.pt"]);
}

#[test]
fn of_keras() {
    let write = |place: &Place, save: u64| {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stepvault-formats/tests/samples");
        let mut weights = std::fs::read(samples.join("model.weights.h5")).unwrap();
        weights.extend(save.to_le_bytes());
        place.write("out/backup/latest.weights.h5", weights);
        let metadata = format!("{{\"epoch\": {save}, \"batch\": 0}}");
        place.write("out/backup/training_metadata.json", metadata);
    };
    let files = ["backup/latest.weights.h5", "backup/training_metadata.json"];
    every_content_is_a_step(write, [1, 2], &files);
}

#[test]
fn of_one_file_that_is_overwritten() {
    let write = |place: &Place, save: u64| {
        let bytes = state(&[("step", number(save) * 7)], &format!("weights {save}"));
        place.write("out/checkpoint.pt", bytes);
    };
    every_content_is_a_step(write, [7, 14], &["checkpoint.pt"]);
}

#[test]
fn of_one_file_that_is_renamed_over_and_states_nothing() {
    let write = |place: &Place, save: u64| {
        let bytes = archive(format!("Vweights {save}\n.").as_bytes());
        let temporary = place.write("out/latest.pt.tmp", bytes);
        std::fs::rename(temporary, place.path("out/latest.pt")).unwrap();
    };
    every_content_is_a_step(write, [1, 2], &["latest.pt"]);
}

#[test]
fn newer_content_that_is_on_no_tier_is_kept_if_it_is_whole() {
    let place = configured();
    let content = |step: i64| state(&[("global_step", step)], &format!("weights {step}"));
    place.write("out/checkpoint.pt", content(10));
    round(&place);
    place.write("out/checkpoint.pt", content(20));
    let into = ["restore", "--into", "out"];
    let plan = on(&place, &[&into[..], &["--plan", "--json"]].concat()).expect_code(0).json();
    let restored = on(&place, &[&into[..], &["--json"]].concat()).expect_code(0).json();
    for document in [plan, restored] {
        let kept = document["kept"].as_str().unwrap();
        assert!(kept.ends_with("out/checkpoint.pt"), "{document:#}");
    }
    let there = || std::fs::read(place.path("out/checkpoint.pt")).unwrap();
    assert_eq!(there(), content(20));
    on(&place, &into).expect_stdout(&["not restored, as ", "has newer content: step 10 (attempt 1)"]);
    // Cut off, it is moved aside.
    let torn = &content(20)[..150];
    place.write("out/checkpoint.pt", torn);
    on(&place, &into).expect_code(0);
    assert_eq!(there(), content(10));
    let aside = moved_aside(&place);
    assert_eq!(aside.len(), 1);
    assert_eq!(std::fs::read(&aside[0]).unwrap(), torn);
}

#[test]
fn a_copy_of_a_numbered_step_is_no_other_step() {
    let place = configured();
    for epoch in [1, 2] {
        let step = epoch * 10;
        let bytes = state(&[("global_step", step)], "weights");
        place.write(&format!("out/epoch={epoch}-step={step}.ckpt"), bytes);
        // The trainer saves it twice, and the bytes differ.
        place.write("out/last.ckpt", state(&[("global_step", step)], "the same weights"));
        let report = round(&place);
        assert_eq!(report["skipped"]["total"], 0, "{report:#}");
    }
    assert_eq!(steps(&place), [(1, 10), (1, 20)]);
    // The trainer has removed the numbered file, and only its copy is left.
    place.remove("out/epoch=2-step=20.ckpt");
    let report = round(&place);
    assert_eq!(report["skipped"]["total"], 0, "{report:#}");
    assert_eq!(steps(&place), [(1, 10), (1, 20)]);
}

#[test]
fn the_last_write_of_a_training_is_the_next_step_and_the_resumable_one_stays() {
    let place = configured();
    place.write("out/args.yaml", "model: yolo");
    let save = |epoch: i64, weights: &str| {
        for name in ["last.pt", "best.pt"] {
            place.write(&format!("out/weights/{name}"), state(&[("epoch", epoch)], weights));
        }
        round(&place);
    };
    save(5, "with an optimizer");
    save(-1, "stripped");
    assert_eq!(steps(&place), [(1, 5), (1, 6)]);
    lose_the_node(&place);
    on(&place, &["restore", "--into", "out"]).expect_code(0);
    assert_eq!(
        std::fs::read(place.path("out/weights/last.pt")).unwrap(),
        state(&[("epoch", -1)], "stripped")
    );
    on(&place, &["restore", "--into", "out", "--step", "5"]).expect_code(0);
    assert_eq!(
        std::fs::read(place.path("out/weights/best.pt")).unwrap(),
        state(&[("epoch", 5)], "with an optimizer")
    );
}

#[test]
fn a_trainer_that_starts_from_scratch_or_saves_a_number_again_begins_an_attempt() {
    let place = configured();
    let save = |step: i64, weights: &str| {
        place.write("out/checkpoint.pt", state(&[("global_step", step)], weights));
        round(&place);
    };
    save(10, "a");
    save(20, "b");
    save(10, "from scratch");
    save(10, "again");
    assert_eq!(steps(&place), [(1, 10), (1, 20), (2, 10), (3, 10)]);
    // The same bytes with another time are the same step.
    save(10, "again");
    assert_eq!(steps(&place), [(1, 10), (1, 20), (2, 10), (3, 10)]);
    lose_the_node(&place);
    on(&place, &["restore", "--into", "out"]).expect_code(0);
    let newest = std::fs::read(place.path("out/checkpoint.pt")).unwrap();
    assert_eq!(newest, state(&[("global_step", 10)], "again"));
}

#[test]
fn a_number_is_never_used_twice_where_nothing_states_it() {
    let place = configured();
    let save = |weights: &str| {
        place.write("out/latest.pt", archive(format!("V{weights}\n.").as_bytes()));
        round(&place);
    };
    save("one");
    save("two");
    // Retention removes the first, and a new node knows nothing but the remote.
    on(&place, &["prune", "--tier", "remote", "--keep-last", "1"]).expect_code(0);
    lose_the_node(&place);
    save("three");
    assert_eq!(steps(&place), [(1, 2), (1, 3)]);
    // The file comes back with another time.
    save("three");
    assert_eq!(steps(&place), [(1, 2), (1, 3)]);
}

#[test]
fn damaged_content_is_not_sealed_and_inspect_and_push_agree() {
    let place = configured();
    let bytes = state(&[("step", 3)], "weights");
    place.write("out/checkpoint.pt", &bytes[..bytes.len() - 30]);
    let told = on(&place, &["agent", "--once", "--json"]).json();
    assert_eq!(told["skipped"]["total"], 1, "{told:#}");
    assert_eq!(on(&place, &["list", "--json"]).json()["steps"], serde_json::json!([]));
    place.write("out/checkpoint.pt", &bytes);
    let inspected = place.run(&["inspect", "out", "--json"]).json();
    let step = &list(&inspected, "steps")[0];
    assert_eq!((&step["step"], &step["path"]), (&3.into(), &"checkpoint.pt".into()));
    let pushed = on(&place, &["push", "out/checkpoint.pt", "--json"]).expect_code(0).json();
    assert_eq!(pushed["step"], 3);
    // Sealed by hand, and known to the agent.
    round(&place);
    assert_eq!(steps(&place), [(1, 3)]);
}

/// Saves an epoch as torchtune 0.6.1 does: the last one of the run without a recipe state.
fn save_epoch(place: &Place, epoch: i64, of_run: i64) {
    place.write(&format!("out/epoch_{epoch}/ft-model.bin"), state(&[("epoch", epoch)], "weights"));
    if epoch + 1 < of_run {
        save_recipe(place, epoch, of_run);
    }
}

fn save_recipe(place: &Place, epoch: i64, of_run: i64) {
    let numbers = [("epochs_run", epoch + 1), ("total_epochs", of_run)];
    place.write("out/recipe_state/recipe_state.pt", state(&numbers, "optimizer"));
}

/// The epoch of the recipe state that the trainer finds.
#[track_caller]
fn recipe_epoch(place: &Place) -> i64 {
    let recipe = std::fs::read(place.path("out/recipe_state/recipe_state.pt")).unwrap();
    let is_of = |epoch: &i64| {
        let numbers = [("epochs_run", epoch + 1), ("total_epochs", 9)];
        recipe == state(&numbers, "optimizer")
    };
    (0..9).find(is_of).expect("a whole recipe state")
}

#[test]
fn of_torchtune_whose_recipe_state_belongs_to_one_epoch_after_the_other() {
    let place = configured();
    let epochs = |place: &Place| -> Vec<i64> {
        (0..9).filter(|epoch| place.path(&format!("out/epoch_{epoch}/ft-model.bin")).is_file()).collect()
    };
    for epoch in [0, 1] {
        save_epoch(&place, epoch, 9);
        round(&place);
    }
    lose_the_node(&place);
    on(&place, &["restore", "--into", "out"]).expect_code(0);
    assert_eq!((epochs(&place), recipe_epoch(&place)), (vec![1], 1));
    round(&place);
    assert_eq!(steps(&place), [(1, 0), (1, 1)]);

    // An older one: its recipe state takes the place of the newer, which is moved aside.
    on(&place, &["restore", "--into", "out", "--step", "0"]).expect_code(0);
    assert_eq!((epochs(&place), recipe_epoch(&place)), (vec![0], 0));
    on(&place, &["restore", "--into", "out"]).expect_code(0);
    assert_eq!((epochs(&place), recipe_epoch(&place)), (vec![0, 1], 1));

    // A whole one that no tier has stays.
    save_epoch(&place, 2, 9);
    let plan = ["restore", "--into", "out", "--plan"];
    for arguments in [&plan[..], &plan[..3]] {
        on(&place, arguments).expect_code(0).expect_stdout(&[
            "not restored",
            "the trainer resumes from",
            "out/epoch_2,",
        ]);
    }
    assert_eq!((epochs(&place), recipe_epoch(&place)), (vec![0, 1, 2], 2));
    // One without its recipe state does not, nor does a recipe state that is cut off.
    place.write("out/recipe_state/recipe_state.pt", &state(&[("epochs_run", 3)], "cut off")[..40]);
    on(&place, &["restore", "--into", "out"]).expect_code(0);
    assert_eq!((epochs(&place), recipe_epoch(&place)), (vec![0, 1], 1));
    // Going back and forth moved an epoch and two recipe states, and this another epoch and its recipe state.
    assert_eq!(moved_aside(&place).len(), 5, "{:?}", moved_aside(&place));
}

#[test]
fn of_torchtune_whose_last_epoch_has_no_recipe_state() {
    for of_run in [9, 3] {
        let place = configured();
        for epoch in [0, 1] {
            save_epoch(&place, epoch, of_run);
            round(&place);
        }
        place.write("out/epoch_2/ft-model.bin", state(&[("epoch", 2)], "weights"));
        if of_run == 3 {
            round(&place);
            assert_eq!(steps(&place), [(1, 0), (1, 1), (1, 2)]);
            continue;
        }
        let report = place.command(["agent", "--once", "--config", "n.toml"]).document(3).to_string();
        assert!(report.contains("it is written after the weights"), "{report}");
        assert_eq!(steps(&place), [(1, 0), (1, 1)]);
    }
}
