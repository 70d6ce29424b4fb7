//! Trainers that save every step under one name: `out/last`, `best.pt`.

use crate::support::{Outcome, Place, listed_steps};

/// Rewrites `last/`; with `other_names` its files get other names each time.
fn save(place: &Place, step: u64, other_names: bool) {
    if other_names {
        place.remove("out/last");
    }
    let weights = format!("weights of {step}").repeat(100);
    place.write(&format!("out/{}", model(step, other_names)), weights);
    place.write("out/best.pt", format!("best at {step}"));
}

fn model(step: u64, other_names: bool) -> String {
    if other_names { format!("last/model-{step}.bin") } else { "last/model.bin".to_owned() }
}

fn push(place: &Place, what: &str, run: &str, step: u64) {
    on(place, run, &["push", what, "--step", &step.to_string()]).expect_code(0);
}

fn on(place: &Place, run: &str, arguments: &[&str]) -> Outcome {
    let remote = place.remote();
    place.run(&[arguments, &["--remote", &remote, "--run", run]].concat())
}

#[test]
fn each_step_of_one_name_restores_its_own_bytes() {
    for other_names in [false, true] {
        let place = Place::new();
        for step in [1000, 2000, 3000] {
            save(&place, step, other_names);
            push(&place, "out/last", "dirs", step);
            push(&place, "out/best.pt", "files", step);
        }
        // The node is lost.
        place.remove("out");
        place.remove(".stepvault");
        for step in [1000_u64, 2000, 3000] {
            let number = step.to_string();
            let into = format!("back/{step}");
            let arguments = ["restore", "--into", &into, "--step", &number];
            on(&place, "dirs", &arguments).expect_code(0);
            on(&place, "files", &arguments).expect_code(0);
            let read = |path: &str| place.read(&format!("{into}/{path}"));
            assert_eq!(read(&model(step, other_names)), format!("weights of {step}").repeat(100));
            assert_eq!(read("best.pt"), format!("best at {step}"));
        }
    }
}

#[test]
fn a_prune_of_one_step_leaves_the_others_of_its_name_alone() {
    let place = Place::new();
    for step in [1000, 2000] {
        save(&place, step, true);
        push(&place, "out/last", "dirs", step);
    }
    // Somebody else's, beside the step's own files.
    let note = place.path("remote/dirs/000000001000.a1/last/note.txt");
    std::fs::write(&note, "keep me").unwrap();
    on(&place, "dirs", &["prune", "--tier", "remote", "--keep-last", "1"]).expect_code(0);
    assert!(!place.path("remote/dirs/000000001000.a1/last/model-1000.bin").exists());
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "keep me");
    assert_eq!(listed_steps(&on(&place, "dirs", &["list", "--json", "--local", "none"]).json()), [2000]);
    on(&place, "dirs", &["verify", "--deep"]).expect_code(0);
    place.remove("out");
    place.remove(".stepvault");
    on(&place, "dirs", &["restore", "--into", "back"]).expect_code(0);
    assert_eq!(place.read("back/last/model-2000.bin"), "weights of 2000".repeat(100));
}
