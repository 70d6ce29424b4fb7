//! The service remembers its starts, and names a restart loop.

use stepvault_core::starts::{RestartLoopRule, Start};
use stepvault_local::vault::Vault;

use crate::harness::{Node, run_name};

fn endings(vault: &Vault) -> Vec<String> {
    vault.starts(&run_name()).unwrap().iter().map(Start::ending).collect()
}

#[tokio::test]
async fn a_restart_loop_is_named_with_how_the_service_ended_before() {
    let node = Node::new();
    let remote = node.directory_remote("store").await;
    let mut options = node.options(vec![remote.clone()]);
    options.lifecycle.restart_loop = Some(RestartLoopRule { starts: 3, within_seconds: 3600 });
    node.save("step_1", &[("model.bin", 100)], 1);
    let service = node.start(options.clone());
    let vault = node.vault_directory();
    let noted =
        || Vault::open(&vault).ok().flatten().map_or(0, |vault| vault.starts(&run_name()).unwrap().len());
    node.until("the first start to be noted", || noted() == 1).await;
    service.kill();
    let service = node.start(options.clone());
    node.until("the second start to be noted", || noted() == 2).await;
    let report = service.stop();
    assert_eq!(report.restart_loop, None);

    // The one that was asked to stop does not count.
    let service = node.start(options.clone());
    node.until("the third start to be noted", || noted() == 3).await;
    service.kill();
    let service = node.start(options.clone());
    node.until_heard(
        "restart loop: the agent of 'grpo/checkpoints' was started 3 times within 1 h on node-0; the last starts ended \
         with: unknown, unknown",
    )
    .await;
    let report = service.stop();
    assert_eq!(report.restart_loop.unwrap().starts, 3);
    let opened = Vault::open(&vault).unwrap().unwrap();
    assert_eq!(endings(&opened), ["unknown", "stopped by a signal", "unknown", "stopped by a signal"]);

    // A round from cron is none of them.
    let report = node.once(options);
    assert_eq!((report.restart_loop, noted()), (None, 4));
}

#[tokio::test]
async fn a_new_disk_remembers_what_the_remote_was_told() {
    let node = Node::new();
    let remote = node.directory_remote("store").await;
    node.save("step_1", &[("model.bin", 100)], 1);
    node.once(node.options(vec![remote.clone()]));
    let mut options = node.options(vec![remote]);
    let record = node.remote_root("store").join("grpo/checkpoints/.stepvault/starts/node-0.json");
    let service = node.start(options.clone());
    node.until("the copy on the remote", || record.exists()).await;
    service.stop();
    options.vault_directory = node.remote_root("another-vault");
    let directory = options.vault_directory.clone();
    let service = node.start(options);
    node.until("both starts in the new vault", || {
        Vault::open(&directory)
            .ok()
            .flatten()
            .is_some_and(|vault| vault.starts(&run_name()).unwrap().len() == 2)
    })
    .await;
    service.stop();
}
