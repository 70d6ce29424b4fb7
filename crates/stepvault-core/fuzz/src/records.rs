//! Records that others wrote, as they come from a store or a vault.

use std::fmt::Debug;

use stepvault_core::codec::{Record, decode, encode};
use stepvault_core::commit::{Commit, CommittedPart};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::drain::DrainRecord;
use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName, Step, StepId};
use stepvault_core::keys::{KeyKind, RunKeys, check_step_name};
use stepvault_core::launch::{LaunchName, LaunchRecord};
use stepvault_core::manifest::Shape;
use stepvault_core::nodes::NodeSet;
use stepvault_core::records::{
    Availability, Claim, DamagedStep, Follower, GcRecord, Lease, Pin, Resume, StagedPart, StagedParts,
    Tombstone, VaultMarker,
};
use stepvault_core::starts::{End, Ending, Process, Start, StartHistory, StartedProgram, merged};
use stepvault_core::timestamp::Timestamp;

use super::memory::bounded;

/// Reads the bytes as one kind of record. Whatever is read has one spelling, and is read back the same from it.
pub fn read<R: Record + Debug>(bytes: &[u8]) -> Option<R> {
    let record: R = bounded(bytes.len(), || decode(bytes, "record")).ok()?;
    assert_eq!(encode(&record).unwrap(), bytes, "{record:?}");
    record.check().unwrap();
    Some(record)
}

/// The same bytes as the canonical JSON that they mean, where they are JSON: any other spelling is refused at once.
pub fn canonical(bytes: &[u8]) -> Option<Vec<u8>> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    serde_json::to_vec(&value).ok()
}

/// The bytes as every kind of record but the part manifest, as they are and in their canonical spelling.
pub fn check(bytes: &[u8]) {
    check_each(bytes);
    if let Some(canonical) = canonical(bytes) {
        check_each(&canonical);
    }
}

fn check_each(bytes: &[u8]) {
    check_commit(bytes);
    check_tombstoned(bytes);
    let _ = read::<VaultMarker>(bytes);
    let _ = read::<Pin>(bytes);
    let _ = read::<StagedParts>(bytes);
    let _ = read::<Follower>(bytes);
    let _ = read::<DamagedStep>(bytes);
    let _ = read::<Resume>(bytes);
    let _ = read::<Lease>(bytes);
    let _ = read::<GcRecord>(bytes);
    if let Some(launch) = read::<LaunchRecord>(bytes) {
        let found = stepvault_core::launch::attempt_of(std::slice::from_ref(&launch), &launch.launch, None);
        assert_eq!(found, Some(launch.attempt));
    }
    if let Some(drain) = read::<DrainRecord>(bytes) {
        assert_eq!(drain.summary(|_| true).is_some(), !drain.left.is_empty());
        assert_eq!(drain.summary(|_| false), None);
    }
    if let Some(history) = read::<StartHistory>(bytes) {
        check_starts(&history);
    }
}

fn check_commit(bytes: &[u8]) {
    let Some(commit) = read::<Commit>(bytes) else {
        return;
    };
    check_step_name(&commit.name).unwrap();
    assert!(!commit.parts.is_empty());
    let largest = commit.parts.iter().map(|part| part.data_bytes).max();
    assert!(commit.data_bytes() >= largest.unwrap_or(0));
    assert!(commit.file_count() >= commit.parts[0].file_count);
}

/// What a claim or a tombstone names is listed and deleted: nothing that does not belong to that very step.
fn check_tombstoned(bytes: &[u8]) {
    let claim = read::<Claim>(bytes).map(|claim| (claim.run, claim.name, claim.id));
    let tombstone = read::<Tombstone>(bytes).map(|stone| (stone.run, stone.name, stone.id));
    for (run, name, id) in claim.into_iter().chain(tombstone) {
        let keys = RunKeys::new(run);
        let key = format!("{}model.bin", keys.data_prefix(&name, id));
        match keys.classify(&key) {
            Some(KeyKind::Data { id: found_id, name: found, .. }) => {
                assert_eq!((found, found_id), (name, id));
            }
            other => panic!("{key} is {other:?}"),
        }
    }
}

fn check_starts(history: &StartHistory) {
    for start in &history.starts {
        assert!(start.ending().len() <= 400);
    }
    let count = history.starts.len();
    let twice = merged(history.starts.clone(), history.starts.clone());
    assert_eq!(twice.len(), count, "a history merged with itself is itself");
    let kept = StartHistory::of(twice);
    assert!(kept.check().is_ok());
}

/// One of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let run = RunName::new("grpo/checkpoints").unwrap();
    let id = StepId::new(Attempt::FIRST, Step::new(100).unwrap());
    let node = NodeName::new("node-0").unwrap();
    let nodes = NodeSet::counted(2).unwrap();
    let launch = LaunchName::new("slurm:1:0").unwrap();
    let commit = Commit {
        amends: false,
        began: None,
        best: Vec::new(),
        format: 1,
        run: run.clone(),
        id,
        name: "step_100".to_owned(),
        shape: Shape::Directory,
        parts: vec![CommittedPart {
            digest: stepvault_core::digest::DigestAlgorithm::Blake3,
            node: node.clone(),
            manifest_sha256: Sha256Digest::of(b""),
            manifest_bytes: 700,
            data_bytes: 9 << 20,
            file_count: 2,
            imported: None,
            trusted_files: 0,
        }],
        written_at: Timestamp::from_seconds(1_760_000_000),
        metrics: [("eval_loss".to_owned(), 1.5)].into(),
        unnumbered: false,
    };
    let start = Start {
        id: "0a".to_owned(),
        who: StartedProgram::Trainer,
        node: node.clone(),
        started_at: Timestamp::from_seconds(1_760_000_000),
        launch: Some("slurm:1:0".to_owned()),
        restored: Some(id),
        process: Some(Process { boot: "b".to_owned(), id: 7, started_ticks: 9 }),
        trainer: None,
        end: Some(End { lasted_seconds: 3, how: Ending::Failed("no space left".to_owned()) }),
    };
    let left = stepvault_core::drain::LeftStep {
        id,
        remote: RemoteName::new("main").unwrap(),
        required: true,
        missing_bytes: 1 << 30,
    };
    let drain = DrainRecord::new(
        run.clone(),
        node.clone(),
        "an EC2 spot notice".to_owned(),
        Timestamp::from_seconds(1_760_000_000),
        vec![left; 5],
    );
    let (format, name) = (1, "step_100".to_owned());
    vec![
        encode(&commit).unwrap(),
        encode(&VaultMarker::new("0123456789abcdef0123456789abcdef".to_owned())).unwrap(),
        encode(&Pin { format, run: run.clone(), id, note: "keep".to_owned() }).unwrap(),
        encode(&Claim {
            format,
            run: run.clone(),
            id,
            name: name.clone(),
            nodes,
            launch: Some(launch.clone()),
        })
        .unwrap(),
        encode(&Tombstone { format, run: run.clone(), id, name, by_gc: true }).unwrap(),
        encode(&StagedParts {
            format,
            run: run.clone(),
            attempt: id.attempt,
            node: node.clone(),
            nodes: NodeSet::single_node(node.clone()),
            parts: vec![StagedPart { id, node: node.clone() }],
            missing_bytes: 0,
        })
        .unwrap(),
        encode(&DamagedStep {
            format,
            run: run.clone(),
            id,
            node: node.clone(),
            reasons: vec!["part 3 is wrong".to_owned()],
        })
        .unwrap(),
        encode(&Resume {
            format,
            run: run.clone(),
            attempt: id.attempt,
            launch: launch.clone(),
            step: Some(id),
            availability: Availability::Durable,
            node,
        })
        .unwrap(),
        encode(&Lease {
            format,
            holder: "0a1b".to_owned(),
            purpose: "restore".to_owned(),
            time_to_live_seconds: 900,
        })
        .unwrap(),
        encode(&GcRecord {
            format,
            orphans: [("grpo/checkpoints/000000000100.a1/step_100/x".to_owned(), "etag".to_owned())].into(),
        })
        .unwrap(),
        encode(&LaunchRecord {
            format,
            run,
            attempt: Attempt::new(2).unwrap(),
            launch,
            went_back_over: Some(id),
            begun_by: NodeSet::counted(2).ok(),
        })
        .unwrap(),
        encode(&StartHistory::of(vec![start])).unwrap(),
        encode(&drain).unwrap(),
    ]
}
