//! Records of the vault: what was sealed, and how far it has come on a remote.

use std::fmt::Debug;

use stepvault_core::codec::{FORMAT, Record, decode, encode};
use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName, Step, StepId};
use stepvault_core::launch::LaunchName;
use stepvault_core::manifest::{DirectoryEntry, Shape, SymlinkEntry};
use stepvault_core::nodes::NodeSet;
use stepvault_core::path::RelativePath;
use stepvault_core::placement::LiveSave;
use stepvault_core::timestamp::Timestamp;
use stepvault_local::seal_record::{AttemptOrigin, AttemptState, SealRecord, SealedFile, SnapshotMethod};
use stepvault_local::sealed::{RemoteState, UploadState};

/// The bytes as either, as they are and in their canonical spelling.
pub fn check(bytes: &[u8]) {
    check_each(bytes);
    let value = serde_json::from_slice::<serde_json::Value>(bytes);
    if let Ok(canonical) = value.and_then(|value| serde_json::to_vec(&value)) {
        check_each(&canonical);
    }
}

fn read<R: Record + Debug>(bytes: &[u8]) -> Option<R> {
    let record: R = decode(bytes, "record").ok()?;
    assert_eq!(encode(&record).unwrap(), bytes, "{record:?}");
    Some(record)
}

fn check_each(bytes: &[u8]) {
    let _ = read::<RemoteState>(bytes);
    let Some(seal) = read::<SealRecord>(bytes) else {
        return;
    };
    let own = seal.own_files();
    assert!(own.len() <= seal.files.len());
    assert!(seal.nodes().contains(&seal.node));
    assert!(seal.taken().bytes >= own.first().map_or(0, |file| file.size_bytes));
    assert_eq!(seal.shared_tree_sha256().is_some(), seal.shared);
    for file in &seal.files {
        assert_eq!(seal.file(&file.path), Some(file));
        let plain = std::path::Path::new(file.path.as_str())
            .components()
            .all(|component| matches!(component, std::path::Component::Normal(_)));
        assert!(plain, "{file:?}");
    }
    let manifest = seal.part_manifest(Vec::new());
    assert_eq!((&manifest.run, manifest.id), (&seal.run, seal.id));
}

/// A whole seal, one of several nodes, a single file, and the state on a remote.
pub fn seeds() -> Vec<Vec<u8>> {
    let path = |text: &str| RelativePath::new(text).unwrap();
    let mtime = Timestamp::from_seconds(1_760_000_000);
    let file = |text: &str, size_bytes| SealedFile {
        path: path(text),
        size_bytes,
        mode: 0o644,
        mtime,
        method: SnapshotMethod::HardLink,
        inode: 4711,
        hole_bytes: size_bytes / 2,
    };
    let directory = |text: Option<&str>| DirectoryEntry { path: text.map(path), mode: 0o755, mtime };
    let whole = SealRecord {
        digest: DigestAlgorithm::Sha256,
        format: FORMAT,
        run: RunName::new("grpo/checkpoints").unwrap(),
        id: StepId::new(Attempt::FIRST, Step::new(1).unwrap()),
        attempt: AttemptOrigin {
            state: AttemptState::Provisional,
            not_before: Some(mtime),
            in_launch: true,
            former: vec![Attempt::FIRST],
            live: Some(LiveSave::default()),
            lost: vec![StepId::new(Attempt::FIRST, Step::new(1).unwrap())],
        },
        node: NodeName::new("node-0").unwrap(),
        nodes: None,
        launch: None,
        shared: false,
        name: "step_1".to_owned(),
        shape: Shape::Directory,
        written_at: mtime,
        metrics: [("loss".to_owned(), 0.5)].into(),
        files: vec![file("a/model.pt", 9 << 20), file("x", 0)],
        directories: vec![directory(None), directory(Some("a"))],
        source: None,
        symlinks: vec![SymlinkEntry { path: path("a/up"), target: "../x".to_owned() }],
        members: Vec::new(),
        origin: stepvault_core::step_origin::StepOrigin::default(),
    };
    let shared = SealRecord {
        nodes: Some(NodeSet::counted(2).unwrap()),
        launch: Some(LaunchName::new("slurm:1:0").unwrap()),
        shared: true,
        symlinks: Vec::new(),
        members: vec![path("x"), path("a")],
        ..whole.clone()
    };
    let single = SealRecord {
        digest: DigestAlgorithm::Blake3,
        name: "step_1.ckpt".to_owned(),
        shape: Shape::File,
        files: vec![file("step_1.ckpt", 70)],
        directories: Vec::new(),
        symlinks: Vec::new(),
        ..whole.clone()
    };
    let state = RemoteState {
        format: FORMAT,
        id: StepId::new(Attempt::FIRST, Step::new(1).unwrap()),
        remote: RemoteName::new("bucket").unwrap(),
        url: "s3://bucket/prefix".to_owned(),
        vault: "0123456789abcdef0123456789abcdef".to_owned(),
        state: UploadState::Durable,
        commit_sha256: Some(Sha256Digest::of(b"commit")),
    };
    let seals = [whole, shared, single];
    let mut seeds: Vec<Vec<u8>> = seals.iter().map(|seal| encode(seal).unwrap()).collect();
    seeds.push(encode(&state).unwrap());
    seeds
}
