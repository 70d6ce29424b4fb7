//! Runs scripted trainers of every kind against discovery, on a clock that only the test moves: every sealed step is a
//! save that the trainer had finished, byte for byte, and every save that exists for long enough is sealed.
#![allow(clippy::disallowed_methods, reason = "scripted trainers write and delete as trainers do")]

mod payload;
mod script;
mod trainers;
mod world;

use std::time::Duration;

use script::Script;
use stepvault_core::config::Completion;
use world::World;

/// How long a save must be unchanged if nothing else proves that it is over.
const QUIET: Duration = Duration::from_secs(30);
const SEEDS: [u64; 3] = [0x5EED, 0xBEAD, 0xFACE];

/// Runs one kind of trainer on several seeds, whose profile is detected.
async fn soak(trainer: fn(&mut Script)) {
    soak_configured(trainer, &Completion::Auto(QUIET), None).await;
}

/// Runs one kind of trainer on several seeds, by a configured rule.
async fn soak_configured(trainer: fn(&mut Script), completion: &Completion, pattern: Option<&str>) {
    for seed in SEEDS {
        let mut script = Script::new(seed);
        trainer(&mut script);
        let tally = World::new(script, completion, pattern).live().await;
        assert!(
            tally.sealed >= 8 && tally.uploaded >= 4,
            "seed {seed:#x}: too little happened to say anything: {tally:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn hugging_face_goes_back_and_rotates() {
    soak(trainers::hugging_face).await;
}

/// The trainer deletes each step within a second or two of its save, and the quiet time is half a minute: every step is
/// sealed from the links that were made while it was judged.
#[tokio::test(start_paused = true)]
async fn every_whole_save_of_a_hasty_trainer_is_sealed() {
    seal_all_of_hasty(2, Duration::from_millis(500)).await;
}

/// A step is finished as soon as the next one exists, and the trainer deletes it while it is sealed.
#[tokio::test(start_paused = true)]
async fn a_step_that_vanishes_while_it_is_sealed_is_sealed_from_its_links() {
    seal_all_of_hasty(1, Duration::from_secs(5)).await;
}

async fn seal_all_of_hasty(kept: u64, between: Duration) {
    for seed in SEEDS {
        let mut script = Script::new(seed);
        trainers::hasty(&mut script, kept, between);
        let world = World::new(script, &Completion::Auto(QUIET), None).watched_closely();
        let tally = world.live().await;
        assert_eq!((tally.sealed, tally.uploaded), (20, 20), "seed {seed:#x}: {tally:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lightning_overwrites_last_and_deletes_the_step_before() {
    soak(trainers::lightning).await;
}

#[tokio::test(start_paused = true)]
async fn orbax_renames_after_any_stall() {
    soak(trainers::orbax).await;
}

#[tokio::test(start_paused = true)]
async fn deepspeed_moves_latest_too_early() {
    soak(trainers::deepspeed).await;
}

#[tokio::test(start_paused = true)]
async fn megatron_goes_back_behind_its_tracker() {
    soak(trainers::megatron).await;
}

#[tokio::test(start_paused = true)]
async fn distributed_checkpoints_end_with_their_metadata() {
    soak(trainers::distributed_checkpoint).await;
}

#[tokio::test(start_paused = true)]
async fn one_file_is_overwritten_in_place() {
    soak(trainers::overwritten_file).await;
}

#[tokio::test(start_paused = true)]
async fn one_path_holds_one_step_after_another() {
    soak(trainers::one_path).await;
}

#[tokio::test(start_paused = true)]
async fn one_path_without_any_number_is_renamed_over() {
    soak(trainers::renamed_path).await;
}

#[tokio::test(start_paused = true)]
async fn last_and_best_are_one_step() {
    soak(trainers::last_and_best).await;
}

#[tokio::test(start_paused = true)]
async fn areal_overwrites_a_pair_of_directories() {
    soak(trainers::areal).await;
}

#[tokio::test(start_paused = true)]
async fn a_link_is_swapped_once_a_step_is_whole() {
    soak(trainers::atomic_link).await;
}

#[tokio::test(start_paused = true)]
async fn a_configured_rename_proves_a_step_after_any_stall() {
    soak_configured(trainers::orbax, &Completion::Rename, Some("*")).await;
}

#[tokio::test(start_paused = true)]
async fn a_configured_quiet_time_proves_a_step() {
    soak_configured(trainers::hugging_face, &Completion::Quiet(QUIET), None).await;
}
