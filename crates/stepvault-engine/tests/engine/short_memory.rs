//! Uploads with less memory than a part: its bytes are read again whenever they are sent.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use stepvault_core::ErrorKind;
use stepvault_core::remote_settings::Transport;
use stepvault_engine::memory::MemoryBudget;
use stepvault_testkit::faults::{FaultAction, Faults};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, snapshot};

/// Of three parts, and of one.
const FILES: [(&str, usize); 3] = [
    ("large.bin", (17 << 20) + 5),
    ("whole.bin", 3 << 20),
    ("small", 7),
];

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

fn file_below(directory: &Path, name: &str) -> PathBuf {
    let tree = stepvault_local::tree::scan(directory).unwrap();
    let found = tree.files.iter().find(|file| file.path.as_str().ends_with(name));
    directory.join(found.unwrap().path.as_str())
}

/// What was hashed and what is sent are two reads: the store compares them.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_between_the_two_reads_is_refused() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    rig.budget = MemoryBudget::new(1);
    let step = rig.write_step(
        100,
        &[("first.bin", 12 << 20), ("whole.bin", 6 << 20)],
        1,
        1_800_000_000,
    );
    // The second attempt comes late enough for another process to change the vault's file.
    let refusal = FaultAction::Refuse {
        status: 503,
        retry_after_seconds: Some(2),
        code: "SlowDown".to_owned(),
    };
    server.faults().inject("PUT", "whole.bin", 1, refusal);
    let pushing = rig.push(&step);
    let changing = async {
        while asked(server.faults(), "PUT", "whole.bin") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let sealed = file_below(rig.vault.root(), "whole.bin");
        let mut bytes = std::fs::read(&sealed).unwrap();
        bytes[1_000_000] ^= 1;
        std::fs::write(&sealed, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&sealed).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_800_000_000))
            .unwrap();
    };
    let (pushed, ()) = tokio::join!(pushing, changing);
    let outcome = pushed.unwrap().remotes.remove(0).result;
    let error = outcome.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Damaged | ErrorKind::SourceChanged),
        "{error}"
    );
    assert!(rig.committed().await.is_empty());
}
