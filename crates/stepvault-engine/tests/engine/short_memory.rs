//! Uploads with less memory than a part: its bytes are read again whenever they are sent.

use stepvault_core::remote_settings::Transport;
use stepvault_engine::memory::MemoryBudget;
use stepvault_testkit::faults::{FaultAction, Faults};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, snapshot};

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
