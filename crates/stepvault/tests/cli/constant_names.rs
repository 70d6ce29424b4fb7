//! Trainers that save every step under one name: `out/last`, `best.pt`.

use crate::support::{Place, listed_steps};

/// Rewrites `last/`; with `other_names` its files get other names each time.
fn save(place: &Place, step: u64, other_names: bool) {
    let last = place.path("out/last");
    if other_names && last.exists() {
        std::fs::remove_dir_all(&last).unwrap();
    }
    std::fs::create_dir_all(&last).unwrap();
    let name = if other_names {
        format!("model-{step}.bin")
    } else {
        "model.bin".to_owned()
    };
    std::fs::write(last.join(name), format!("weights of {step}").repeat(100)).unwrap();
    std::fs::write(place.path("out/best.pt"), format!("best at {step}")).unwrap();
}

fn push(place: &Place, what: &str, run: &str, step: u64) {
    let (remote, step) = (place.remote(), step.to_string());
    place
        .run(&["push", what, "--step", &step, "--run", run, "--remote", &remote])
        .expect_code(0);
}

fn on(place: &Place, run: &str, arguments: &[&str]) -> crate::support::Outcome {
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
        std::fs::remove_dir_all(place.path("out")).unwrap();
        for vault in [".stepvault", "out/.stepvault"] {
            let _ = std::fs::remove_dir_all(place.path(vault));
        }
        for step in [1000_u64, 2000, 3000] {
            let number = step.to_string();
            let into = format!("back/{step}");
            let arguments = ["restore", "--into", &into, "--step", &number];
            on(&place, "dirs", &arguments).expect_code(0);
            on(&place, "files", &arguments).expect_code(0);
            let name = if other_names {
                format!("model-{step}.bin")
            } else {
                "model.bin".to_owned()
            };
            let read = |path: &str| std::fs::read_to_string(place.path(&into).join(path)).unwrap();
            assert_eq!(
                read(&format!("last/{name}")),
                format!("weights of {step}").repeat(100)
            );
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
    assert!(
        !place
            .path("remote/dirs/000000001000.a1/last/model-1000.bin")
            .exists()
    );
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "keep me");
    assert_eq!(
        listed_steps(&on(&place, "dirs", &["list", "--json"]).json()),
        [2000]
    );
    on(&place, "dirs", &["verify", "--deep"]).expect_code(0);
    std::fs::remove_dir_all(place.path("out")).unwrap();
    let _ = std::fs::remove_dir_all(place.path(".stepvault"));
    on(&place, "dirs", &["restore", "--into", "back"]).expect_code(0);
    let got = std::fs::read_to_string(place.path("back/last/model-2000.bin")).unwrap();
    assert_eq!(got, "weights of 2000".repeat(100));
}
