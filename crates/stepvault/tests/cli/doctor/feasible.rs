//! Feasibility: between two saves, within a notice, on the disk.

use crate::doctor::{Findings as _, place};
use crate::support::Place;

/// A configuration with a run of three sealed steps, 10 minutes apart, and a remote.
fn sealed(place: &Place, more: &str) {
    let remote = place.path("remote");
    std::fs::write(
        place.path("stepvault.toml"),
        format!(
            "[local]\ndirectory = \"vault\"\n[remote.main]\nurl = \"file://{}\"\n\
             [run.my-run]\nwatch = \"run\"\ncomplete = \"quiet\"\n{more}",
            remote.display()
        ),
    )
    .unwrap();
    for (step, minutes) in [(100_u64, 0_u64), (200, 10), (300, 20)] {
        let name = format!("step_{step}");
        // With three files of two bytes, 3 MB.
        place.save_in_run(&name, 2_999_994, 3);
        let when = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000 + minutes * 60);
        let step = place.path("run").join(&name);
        for entry in std::fs::read_dir(&step).unwrap() {
            let file = std::fs::File::open(entry.unwrap().path()).unwrap();
            file.set_modified(when).unwrap();
        }
        place.command(["push"]).arg(step).run().expect_code(0);
    }
}

#[test]
fn the_steps_so_far_say_what_fits() {
    let place = place();
    sealed(&place, "[keep.local]\nlast = 2\n");
    let ran = place.doctor_command(&["--json", "--upload-rate", "1 MB"]).run().expect_code(0);
    ran.finding("free bytes", "checkpoints").expect(
        "pass",
        "the next step takes 2.9 MiB (by the newest 3 steps in the vault)",
        "",
    );
    let saved = ran.finding("save and seal", "my-run");
    saved.expect("pass", "a step of 2.9 MiB is written and ", "");
    // Linked or cloned, as the filesystem can.
    assert!(saved.measured.contains("ed into the vault in "), "{saved:?}");
    ran.finding("upload", "my-run to main").expect(
        "pass",
        "a step of 2.9 MiB is uploaded in 3s; a step is saved every 10m",
        "",
    );
    ran.finding("drain", "my-run to main").expect("pass", " are available for it", "");
    ran.finding("steps on disk", "my-run").expect("pass", "[keep.local] keeps at most 2", "");
    assert_eq!(ran.json()["suggested"], serde_json::json!([]));
}

#[test]
fn what_does_not_fit_comes_with_lines_that_would() {
    let place = place();
    sealed(&place, "");
    // 3 MB at 2500 bytes in a second are 20 minutes.
    let options = ["--json", "--upload-rate", "2500 B", "--notice", "1m"];
    let ran = place.doctor_command(&options).run().expect_code(0);
    ran.finding("upload", "my-run to main").expect(
        "warn",
        "is uploaded in 20m; a step is saved every 10m",
        "save less often",
    );
    ran.finding("drain", "my-run to main").expect(
        "warn",
        "a notice of 1m: uploading a step that was just saved takes 20m; 49.5s are available for it",
        "up to one interval is lost",
    );
    ran.finding("steps on disk", "my-run").expect(
        "warn",
        "without [keep.local] every step is kept",
        "local.maximum-size",
    );
    assert_eq!(
        ran.json()["suggested"],
        serde_json::json!([
            "# In the trainer's own configuration: save every 25m or less often, in place of every 10m.",
            "# By steps: interval = 300 in place of 100.",
            "[run.\"my-run\".keep.local]",
            "last = 3",
        ])
    );
    // They can be pasted.
    let lines = "[run.\"my-run\".keep.local]\nlast = 3\n";
    let path = place.path("stepvault.toml");
    let text = std::fs::read_to_string(&path).unwrap() + lines;
    std::fs::write(path, text).unwrap();
    let ran = place.doctor_command(&["--json"]).run();
    ran.finding("steps on disk", "my-run").expect("pass", "[keep.local] keeps at most 3", "");
}

#[test]
fn a_person_sees_two_tables_and_a_count() {
    let place = place();
    let ran = place
        .doctor_command(&["-v", "run", "--step-size", "1 MB", "--save-interval", "10m"])
        .run()
        .expect_code(0);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("      CHECK"), "{ran:#?}");
    assert!(lines.iter().any(|line| line.starts_with("PASS  directory ")), "{ran:#?}");
    assert!(lines.iter().any(|line| line.trim_start().starts_with("FEASIBILITY")), "{ran:#?}");
    assert!(lines.last().unwrap().starts_with("0 failed, "), "{ran:#?}");
}

#[test]
fn nothing_to_look_at_is_a_mistake() {
    let place = place();
    place.doctor_command(&[]).run().expect_code(2).expect_stderr(&["nothing to check"]);
}
