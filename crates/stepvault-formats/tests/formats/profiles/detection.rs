//! Which of several matching frameworks is selected.

use stepvault_formats::detect::detect;
use stepvault_formats::find::{FindOptions, find_steps};
use stepvault_formats::profile::{Profile, ProfileSet};

use crate::directory::memory::Memory;

#[test]
fn the_most_telling_framework_wins_and_the_others_are_named() {
    let memory =
        Memory::new(&["5000/params/_METADATA", "5000/train_state/_METADATA", "5000/_CHECKPOINT_METADATA"]);
    let profiles = ProfileSet::default();
    let tree = memory.tree();
    let detection = detect(&tree, &memory, &profiles).unwrap();
    assert_eq!(detection.profile.name, "openpi-jax");
    assert_eq!(detection.why, ["5000/params/_METADATA exists", "5000/train_state/_METADATA exists"]);
    assert_eq!(detection.others, ["orbax"]);
    let nothing = Memory::new(&["notes.txt"]);
    let detection = detect(&nothing.tree(), &nothing, &profiles).unwrap();
    assert_eq!(detection.profile.name, "generic");
    assert_eq!(detection.why, ["it contains no file that identifies a known framework"]);
}

#[test]
fn a_profile_of_a_users_own_wins_over_equally_telling_ones() {
    let own: Profile = toml::from_str(
        r#"
        name = "mine"
        description = "my own trainer"
        links = "hard"
        resume = { by = "highest-number", text = "train --from {path}" }
        [[detect]]
        all = ["*/_CHECKPOINT_METADATA"]
        specificity = 40
        [[series]]
        name = "steps"
        kind = "directory"
        path = 'snap-(?<step>[0-9]+)'
        complete = { proof = { marker = ["DONE"] }, required = [{ any = ["*.bin"] }] }
        "#,
    )
    .unwrap();
    let profiles = ProfileSet::new(vec![own]).unwrap();
    let memory = Memory::new(&[
        "snap-1/_CHECKPOINT_METADATA",
        "snap-1/a.bin",
        "snap-1/DONE",
        "snap-2/_CHECKPOINT_METADATA",
        "snap-2/a.bin =",
        "snap-2/DONE =",
    ]);
    let tree = memory.tree();
    let detection = detect(&tree, &memory, &profiles).unwrap();
    assert_eq!(detection.profile.name, "mine");
    let found = find_steps(detection.profile, &tree, &memory, memory.settled(), &FindOptions::default());
    assert!(found.steps[0].is_complete());
    assert_eq!(found.steps[1].reasons(), ["a.bin is empty (0 bytes)", "DONE is empty (0 bytes)"]);
}
