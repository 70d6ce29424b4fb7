//! Steps that a trainer deletes before they are sealed, and an agent that is killed meanwhile.

use std::path::PathBuf;

use rustix::process::Signal;
use stepvault_testkit::tree;

use crate::support::{Place, wait_until};

/// A step of Hugging Face's Trainer.
fn save(place: &Place, step: u64) -> PathBuf {
    // The agent sees all of it or nothing: a half-written step begins its waits anew.
    let (directory, written) = (place.path("out").join(format!("checkpoint-{step}")), place.path("written"));
    let header = br#"{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(header);
    weights.extend_from_slice(&step.to_le_bytes()[..4]);
    tree::write(&written.join("model.safetensors"), weights);
    tree::write(&written.join("trainer_state.json"), format!("{{\"global_step\": {step}}}"));
    std::fs::rename(&written, &directory).unwrap();
    directory
}

fn linked(place: &Place) -> usize {
    std::fs::read_dir(place.path(".stepvault/staging")).map_or(0, Iterator::count)
}

#[test]
fn links_of_a_killed_agent_are_neither_listed_nor_restored_and_the_next_one_removes_them() {
    let place = Place::new();
    std::fs::create_dir(place.path("out")).unwrap();
    place.write("stepvault.toml", "[local]\ndirectory = \".stepvault\"\n[run.\"demo/a\"]\nwatch = \"out\"\n");
    let remote = place.remote();
    let arguments = ["--remote", &remote];
    let agent = place.start_agent(&arguments, &[]);
    save(&place, 10);
    wait_until("the links", || linked(&place) == 1);
    agent.signal(Signal::KILL);
    agent.wait();
    assert_eq!(linked(&place), 1);
    place.run_here(&["list"]).expect_code(0);
    place.run_here(&["restore", "--into", "restored"]).expect_code(10);
    tree::remove(&place.path("out/checkpoint-10"));
    let agent = place.start_agent(&arguments, &[]);
    wait_until("the links are removed", || linked(&place) == 0);
    // It links and seals what the trainer deletes next.
    let first = save(&place, 20);
    wait_until("the links", || linked(&place) == 1);
    std::thread::sleep(std::time::Duration::from_millis(50));
    save(&place, 30);
    wait_until("the links", || linked(&place) == 2);
    tree::remove(&first);
    wait_until("step 20 is durable", || place.commit(20, 1).exists());
    // Step 30 would be waited for.
    agent.signal(Signal::KILL);
    agent.wait();
}
