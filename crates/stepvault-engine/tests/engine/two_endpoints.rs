//! Buckets of the same name on two servers: what is known of one says nothing of the other.

use stepvault_core::ids::RemoteName;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::tier::step_state::is_durable_on;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, id, run_name};

fn commits(server: &StrictS3) -> usize {
    let keys = server.objects().keys();
    keys.iter().filter(|key| key.contains("/commits/")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_are_remotes_of_one_vault_one_after_the_other_and_at_once() {
    let (first, second) = (StrictS3::start(), StrictS3::start());
    let mut rig = Rig::with_s3(&first).await;
    rig.push_steps(2).await;
    // The vault knows the archive on the first server, and the second is empty.
    rig.add_s3("second", &second).await;
    rig.push_durably(&rig.write_step(3, &[("x", 100)], 3, 3_000)).await;
    assert_eq!((commits(&first), commits(&second)), (3, 1));
    rig.push_durably(&rig.write_step(4, &[("x", 100)], 4, 4_000)).await;
    assert_eq!((commits(&first), commits(&second)), (4, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_that_moves_to_another_server_under_its_name_has_no_step_of_the_vault() {
    let (first, second) = (StrictS3::start(), StrictS3::start());
    let mut rig = Rig::with_s3(&first).await;
    rig.push_steps(1).await;
    let name = rig.remotes[0].name().to_string();
    rig.add_s3(&name, &second).await;
    let (here, moved): (&RunRemote, &RunRemote) = (&rig.remotes[0], &rig.remotes[1]);
    assert_eq!(moved.name(), &RemoteName::new(&name).unwrap());
    assert_eq!(here.store.url(), moved.store.url());
    let sealed = rig.vault.step(&run_name(), id(1, 1)).unwrap().unwrap();
    assert!(is_durable_on(&sealed, here).unwrap());
    assert!(!is_durable_on(&sealed, moved).unwrap());
}
