//! The step that a trainer's state names as the best: it stays on the remotes, and is restored beside the newest.

use serde_json::{Value, json};
use stepvault_testkit::torch::{archive, state};

use crate::support::{Place, list};
use crate::watched::{configured, lose_the_node, on, round};

/// Keeps one step on the remote.
const PRUNE: [&str; 5] = ["prune", "--tier", "main", "--keep-last", "1"];

/// Saves as the Hugging Face trainer does on another machine. The best steps are 10 and, from then on, 40.
fn save(place: &Place, step: i64) {
    let best = if step < 40 { 10 } else { 40 };
    let directory = format!("out/checkpoint-{step}");
    place.write(&format!("{directory}/pytorch_model.bin"), state(&[("step", step)], "weights"));
    // Python writes NaN, which is no JSON.
    let text = format!(
        "{{\"log_history\": [{{\"loss\": NaN}}], \"global_step\": {step}, \
         \"best_model_checkpoint\": \"/mnt/node-7/out/checkpoint-{best}\"}}"
    );
    place.write(&format!("{directory}/trainer_state.json"), text);
}

/// Returns the verdict and the reasons for each step on the remote, by `prune --dry-run`.
fn verdicts(place: &Place) -> Vec<(u64, String, Vec<String>)> {
    let document = on(place, &[&PRUNE[..], &["--dry-run", "--json"]].concat()).expect_code(0).json();
    let decisions = list(&document["tiers"][0]["plan"], "decisions").iter();
    let texts = |reasons: &Value| {
        let reasons = reasons.as_array().unwrap().iter();
        reasons.map(|reason| reason.as_str().unwrap().to_owned()).collect()
    };
    decisions
        .map(|decision| {
            (
                decision["step"].as_u64().unwrap(),
                decision["verdict"].as_str().unwrap().to_owned(),
                texts(&decision["reasons"]),
            )
        })
        .collect()
}

fn kept(step: u64, reasons: &[&str]) -> (u64, String, Vec<String>) {
    (step, "keep".to_owned(), reasons.iter().map(|&text| text.to_owned()).collect())
}

fn dropped(step: u64) -> (u64, String, Vec<String>) {
    (step, "drop".to_owned(), vec!["no rule keeps it".to_owned()])
}

#[test]
fn it_stays_as_long_as_the_newest_state_names_it_and_comes_back_with_it() {
    let place = configured();
    for step in [10, 20, 30] {
        save(&place, step);
        round(&place);
    }
    assert_eq!(
        verdicts(&place),
        [
            kept(10, &["the best according to step 30"]),
            dropped(20),
            kept(30, &["last 1", "newest valid step"]),
        ]
    );
    on(&place, &PRUNE).expect_code(0);

    lose_the_node(&place);
    on(&place, &["show", "30"]).expect_code(0).expect_stdout(&["best     checkpoint-10"]);
    let plan = on(&place, &["restore", "--into", "out", "--plan", "--json"]).expect_code(0).json();
    let best = json!([{ "step": 10, "attempt": 1, "path": place.path("out/checkpoint-10"), "bytes": plan["best"][0]["bytes"],
                        "already_there": false }]);
    assert_eq!((&plan["step"], &plan["best"]), (&json!(30), &best));
    on(&place, &["restore", "--into", "out"]).expect_code(0).expect_stdout(&[
        "step 30",
        "the best step so far, 10",
        "out/checkpoint-10",
    ]);
    for step in [10, 30] {
        assert!(place.path(&format!("out/checkpoint-{step}/pytorch_model.bin")).is_file());
    }
    // Again, after a restore that was cut off in between.
    place.remove("out/checkpoint-10");
    let document = on(&place, &["restore", "--into", "out", "--json"]).expect_code(0).json();
    assert_eq!((&document["already_there"], &document["best"]), (&json!(true), &best));
    // What was restored is no new step, and later steps follow the newest.
    round(&place);
    assert_eq!(verdicts(&place).len(), 2);

    save(&place, 40);
    round(&place);
    assert_eq!(verdicts(&place), [dropped(10), dropped(30), kept(40, &["last 1", "newest valid step"])]);
}

#[test]
fn nothing_else_is_restored_where_no_trainer_resumes() {
    let place = configured();
    for step in [10, 20] {
        save(&place, step);
        round(&place);
    }
    lose_the_node(&place);
    on(&place, &["restore", "--as", "elsewhere/checkpoint-20"]).expect_code(0);
    assert!(!place.path("elsewhere/checkpoint-10").exists());
    on(&place, &["restore", "--into", "out", "--include", "*.json"]).expect_code(0);
    on(&place, &["restore", "--into", "other", "--no-pointer"]).expect_code(0);
    assert!(!place.path("out/checkpoint-10").exists() && !place.path("other/checkpoint-10").exists());
}

#[test]
fn one_that_is_gone_is_warned_of_and_stops_nothing() {
    let place = configured();
    for step in [10, 20] {
        save(&place, step);
        round(&place);
        // As if retention had removed it before the trainer named it.
        if step == 10 {
            place.remove("out/checkpoint-10");
            lose_the_node(&place);
            place.remove("remote");
        }
    }
    lose_the_node(&place);
    on(&place, &["restore", "--into", "out"])
        .expect_code(0)
        .expect_stderr(&["names checkpoint-10 as the best step, and no tier has it"]);
    assert!(place.path("out/checkpoint-20/trainer_state.json").is_file());
    // The trainer's own copy needs no other.
    save(&place, 10);
    let document = on(&place, &["restore", "--into", "out", "--json"]).expect_code(0);
    assert!(!document.stderr.contains("best step"));
}

/// A callback keeps the best, and another one every epoch: the best one has two names.
#[test]
fn of_lightning() {
    let place = configured();
    let checkpoints = "out/version_0/checkpoints";
    let best = format!("{checkpoints}/best-epoch=0-step=10.ckpt");
    let every = |step: i64| format!("{checkpoints}/epoch=0-step={step}.ckpt");
    for step in [10, 20, 30] {
        let pickle = format!(
            "(dVglobal_step\nI{step}\nsVcallbacks\n(dVEarlyStopping\n(dVpatience\nI3\nssVModelCheckpoint{{'monitor': 'val'}}\n\
             (dVbest_model_path\nV/x/{best}\nsVdirpath\nV/x\nsss."
        );
        let bytes = archive(pickle.as_bytes());
        if step == 10 {
            place.write(&best, &bytes);
        }
        place.write(&every(step), bytes);
        round(&place);
    }
    on(&place, &PRUNE).expect_code(0);
    lose_the_node(&place);
    on(&place, &["restore", "--into", "out"])
        .expect_code(0)
        .expect_stdout(&["the best step so far, 10 (1.1 KiB)"]);
    let names = |place: &Place| -> Vec<String> {
        let files = std::fs::read_dir(place.path(checkpoints)).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.contains("step"))
            .collect();
        names.sort();
        names
    };
    let both = ["best-epoch=0-step=10.ckpt", "epoch=0-step=10.ckpt"];
    assert_eq!(names(&place), [both[0], both[1], "epoch=0-step=30.ckpt"]);
    assert!(both.iter().all(|name| place.path(checkpoints).join(name).is_file()));
    round(&place);
    on(&place, &["restore", "--into", "out"]).expect_code(0);
    assert_eq!(verdicts(&place).len(), 2, "what was restored is no new step");
}

#[test]
fn of_timm() {
    let place = configured();
    for epoch in [1_i64, 2, 3] {
        let bytes = state(&[("epoch", epoch)], "weights");
        for name in [format!("checkpoint-{epoch}.pth.tar"), "last.pth.tar".to_owned()] {
            place.write(&format!("out/{name}"), &bytes);
        }
        if epoch == 1 {
            place.write("out/model_best.pth.tar", &bytes);
        }
        round(&place);
    }
    on(&place, &PRUNE).expect_code(0);
    lose_the_node(&place);
    on(&place, &["restore", "--into", "out"]).expect_code(0);
    let read = |name: &str| std::fs::read(place.path("out").join(name)).unwrap();
    assert_eq!(read("model_best.pth.tar"), state(&[("epoch", 1)], "weights"));
    assert_eq!(read("last.pth.tar"), read("checkpoint-3.pth.tar"));
    assert_eq!(read("checkpoint-1.pth.tar"), read("model_best.pth.tar"));
}
