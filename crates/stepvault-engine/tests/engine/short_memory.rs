//! Uploads with less memory than their parts need: the bytes of some are read again whenever they are sent.

use std::collections::BTreeSet;
use std::time::Duration;

use stepvault_core::remote_settings::Transport;
use stepvault_engine::memory::MemoryBudget;
use stepvault_testkit::faults::{FaultAction, Faults};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, cut_when, snapshot};

/// Of three parts, and of one.
const FILES: [(&str, usize); 3] = [("large.bin", (17 << 20) + 5), ("whole.bin", 3 << 20), ("small", 7)];

/// Pushes a step over requests that fail at first, and restores it on another node.
async fn is_sent_whole(mut rig: Rig, faults: &Faults) {
    rig.budget = MemoryBudget::new(1);
    let step = rig.write_step(100, &FILES, 1, 1_800_000_000);
    let written = snapshot(&step);
    for path in ["large.bin", "whole.bin"] {
        faults.inject("PUT", path, 1, FaultAction::refuse(503, "SlowDown"));
        faults.inject("PUT", path, 1, FaultAction::ApplyThenReset);
        faults.inject("POST", path, 1, FaultAction::Reset);
    }
    rig.push_durably(&step).await;
    rig.lose_node();
    let restored = rig.restore().await.unwrap();
    assert_eq!(snapshot(&restored.plan.path), written);
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_read_again_for_each_attempt() {
    let server = StrictS3::start();
    is_sent_whole(Rig::with_s3(&server).await, server.faults()).await;
    for transport in [Transport::Xml, Transport::Json] {
        let server = StrictGcs::start();
        let mut rig = Rig::new();
        rig.add_gcs_over(transport, "google", &server).await;
        is_sent_whole(rig, server.faults()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_that_go_fast_are_joined_by_others_before_they_are_acknowledged() {
    const PARTS: usize = 6;
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    // Half of it is for bodies that are held: two parts.
    rig.budget = MemoryBudget::new(32 << 20);
    let step = rig.write_step(100, &[("large.bin", PARTS * (8 << 20))], 1, 1_800_000_000);
    server.faults().inject("PUT", "large.bin", u64::MAX, FaultAction::ApplyThenDelay(Duration::from_mins(2)));
    let all_began = || {
        let requests = server.faults().requests();
        let parts = requests.iter().filter(|one| one.method == "PUT" && one.path.contains("large.bin"));
        parts.map(|one| &one.path).collect::<BTreeSet<_>>().len() == PARTS
    };
    cut_when(server.faults(), rig.push(&step), all_began).await;
}
