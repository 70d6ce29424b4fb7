//! Leftovers of interrupted trainers and of stepvault's own processes.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use stepvault_testkit::tree::entries_below;

use crate::doctor::{Findings as _, place};

/// A file of long ago.
fn old_file(path: &Path, bytes: usize) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, vec![0; bytes]).unwrap();
    let file = std::fs::File::open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
    let above = std::fs::File::open(path.parent().unwrap()).unwrap();
    above.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
}

#[test]
fn each_kind_is_named_with_its_size_and_nothing_is_removed() {
    let place = place();
    old_file(&place.path("run/step_4/model.bin"), 100);
    old_file(&place.path("run/step_5/weights.pt.tmp"), 2048);
    old_file(&place.path("run/step_6.tmp/model.bin"), 1024);
    old_file(&place.path("vault/staging/0/data/model.bin"), 4096);
    old_file(&place.path("vault/staging/0/old"), 0);
    for above in ["vault/staging/0/data", "vault/staging/0"] {
        let directory = std::fs::File::open(place.path(above)).unwrap();
        directory.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
    }
    let before = entries_below(place.root());
    let ran = place.doctor(&[]).expect_code(0);
    let left = ran.finding("leftovers", "checkpoints");
    left.expect("warn", "2 entries with a temporary name, ", "rm -r /");
    assert!(left.measured.contains("weights.pt.tmp") && left.measured.contains("step_6.tmp"), "{left:?}");
    ran.finding("leftovers", "vault").expect(
        "warn",
        "1 entry partly sealed or partly deleted, 4.0 KiB in total",
        "the next start of the agent",
    );
    assert_eq!(entries_below(place.root()), before);
}

#[test]
fn half_of_a_step_is_told_by_its_framework() {
    let place = place();
    // DeepSpeed's own pointer names a step of which a rank's file was cut off.
    old_file(&place.path("run/global_step10/mp_rank_00_model_states.pt"), 17);
    std::fs::write(place.path("run/latest"), "global_step10").unwrap();
    let ran = place.doctor(&[]).expect_code(0);
    ran.finding("leftovers", "checkpoints").expect(
        "warn",
        "1 entry of incomplete steps, 17 B in total",
        "stepvault inspect",
    );
}
