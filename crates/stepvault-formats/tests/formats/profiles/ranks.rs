//! A loss of the highest ranks leaves no gap: what detects it, and what must not be mistaken for it.

use stepvault_core::timestamp::Timestamp;
use stepvault_formats::find::{FindOptions, FoundStep, find_steps};
use stepvault_formats::profile::ProfileSet;

use crate::directory::memory::Memory;

/// Returns Accelerate steps with these numbers of ranks.
fn run(ranks: &[u32]) -> Memory {
    let mut memory = Memory::default();
    for (step, ranks) in ranks.iter().enumerate() {
        memory.write(&format!("checkpoints/checkpoint_{step}/model.safetensors"));
        for rank in 0..*ranks {
            memory.write(&format!("checkpoints/checkpoint_{step}/random_states_{rank}.pkl"));
        }
    }
    memory
}

fn steps(memory: &Memory, now: Timestamp, options: &FindOptions) -> Vec<FoundStep> {
    let profiles = ProfileSet::default();
    let profile = profiles.get("accelerate").unwrap();
    find_steps(profile, &memory.tree(), memory, now, options).steps
}

fn verdicts(ranks: &[u32], options: FindOptions) -> Vec<bool> {
    let memory = run(ranks);
    let steps = steps(&memory, memory.settled(), &options);
    steps.iter().map(FoundStep::is_complete).collect()
}

#[test]
fn fewer_ranks_than_before_are_a_save_that_was_cut_off() {
    assert_eq!(verdicts(&[4, 3], FindOptions::default()), [true, false]);
    let memory = run(&[4, 3]);
    assert_eq!(
        steps(&memory, memory.settled(), &FindOptions::default())[1].reasons(),
        ["3 ranks wrote it, but 4 wrote the previous step"]
    );
    // One step was cut off; the run then continued with all ranks.
    assert_eq!(verdicts(&[4, 3, 4], FindOptions::default()), [true, false, true]);
}

#[test]
fn a_run_that_goes_on_with_fewer_ranks_is_believed_at_its_second_step() {
    assert_eq!(verdicts(&[4, 2, 2], FindOptions::default()), [true, true, true]);
    let told = FindOptions { expected_world: Some(2), ..FindOptions::default() };
    assert_eq!(verdicts(&[4, 2], told), [true, true]);
    assert_eq!(verdicts(&[2, 4], FindOptions::default()), [true, true]);
}

#[test]
fn the_first_step_needs_to_be_told() {
    assert_eq!(verdicts(&[3], FindOptions::default()), [true]);
    let world = FindOptions { expected_world: Some(4), ..FindOptions::default() };
    assert_eq!(verdicts(&[3], world), [false]);
    let before = FindOptions { previous_ranks: Some(4), ..FindOptions::default() };
    assert_eq!(verdicts(&[3], before), [false]);
}

#[test]
fn a_gap_is_seen_by_itself() {
    let mut memory = run(&[3]);
    memory.write("- checkpoints/checkpoint_0/random_states_1.pkl");
    assert_eq!(
        steps(&memory, memory.settled(), &FindOptions::default())[0].reasons(),
        ["the random states (random_states_*.pkl) of rank 1 are missing: 2 of 3 exist"]
    );
}

#[test]
fn a_step_is_over_when_a_newer_one_was_begun() {
    let memory = run(&[1, 1]);
    // One second after the last write, nothing counts as quiet yet.
    let now = Timestamp::from_seconds(memory.clock_seconds + 1);
    let seen = steps(&memory, now, &FindOptions::default());
    assert!(seen[0].is_complete());
    assert_eq!(seen[1].reasons(), ["it was written 1 s ago, and must be unchanged for 30 s"]);
    // A run that went back writes an old number again, while the newer step still exists.
    let mut back = memory.clone();
    back.write("checkpoints/checkpoint_0/model.safetensors");
    let now = Timestamp::from_seconds(back.clock_seconds + 1);
    let seen = steps(&back, now, &FindOptions::default());
    assert_eq!(seen[0].reasons(), ["it was written 1 s ago, and must be unchanged for 30 s"]);
}
