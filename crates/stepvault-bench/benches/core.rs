//! How long records and plans take: a manifest of 1,000 files, and retention over 1,000 and 10,000 steps. A
//! plan that takes ten times as long for ten times as many steps is linear.

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stepvault_core::codec::{FORMAT, decode, encode};
use stepvault_core::commit::{Commit, FoundPart};
use stepvault_core::digest::{PartDigest, Sha256Digest};
use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName, Step, StepId};
use stepvault_core::manifest::{DirectoryEntry, FileEntry, PartManifest, Shape};
use stepvault_core::observe::Tier;
use stepvault_core::path::RelativePath;
use stepvault_core::retention::{
    self, Elsewhere, Guards, KeepRules, LocalLimits, Needed, StepFacts, TierView, Verified,
};
use stepvault_core::timestamp::Timestamp;

const FILES: u32 = 1_000;
const STEPS: [u64; 2] = [1_000, 10_000];

fn id(step: u64) -> StepId {
    StepId::new(Attempt::FIRST, Step::new(step).expect("a step"))
}

fn remote() -> RemoteName {
    RemoteName::new("main").expect("a remote")
}

fn manifest(step: u64, files: u32) -> PartManifest {
    let digest = PartDigest::of(&step.to_le_bytes());
    let file = |number: u32| {
        let path = RelativePath::new(format!("rank-{number:04}/model.safetensors")).expect("a path");
        FileEntry::from_parts(path, 0o644, Timestamp::default(), &[digest]).expect("an entry")
    };
    let directory = |path: Option<String>| DirectoryEntry {
        path: path.map(|path| RelativePath::new(path).expect("a path")),
        mode: 0o755,
        mtime: Timestamp::default(),
    };
    PartManifest {
        format: FORMAT,
        digest: stepvault_core::digest::DigestAlgorithm::Sha256,
        run: RunName::new("bench").expect("a run"),
        id: id(step),
        node: NodeName::new("node-0").expect("a node"),
        name: format!("step_{step}"),
        shape: Shape::Directory,
        written_at: Timestamp::default(),
        metrics: BTreeMap::from([("loss".to_owned(), 0.5)]),
        shared_tree_sha256: None,
        files: (0..files).map(file).collect(),
        directories: std::iter::once(None)
            .chain((0..files).map(|number| Some(format!("rank-{number:04}"))))
            .map(directory)
            .collect(),
        symlinks: Vec::new(),
        imported: None,
        members: Vec::new(),
        origin: stepvault_core::step_origin::StepOrigin::default(),
    }
}

fn commit(step: u64) -> Commit {
    let manifest = manifest(step, 1);
    let bytes = encode(&manifest).expect("a record");
    let sha256 = Sha256Digest::of(&bytes);
    Commit::of(vec![FoundPart::of(&manifest, sha256, bytes.len() as u64)]).expect("a commit")
}

fn records(criterion: &mut Criterion) {
    let manifest = manifest(1, FILES);
    let bytes = encode(&manifest).expect("a record");
    let mut group = criterion.benchmark_group("manifest of 1,000 files");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| encode(black_box(&manifest)).expect("a record"));
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| decode::<PartManifest>(black_box(&bytes), "manifest").expect("a manifest"));
    });
    group.finish();
    let bytes = encode(&commit(1)).expect("a record");
    criterion.bench_function("decode a commit", |bencher| {
        bencher.iter(|| decode::<Commit>(black_box(&bytes), "commit").expect("a commit"));
    });
}

fn view(steps: u64) -> TierView {
    let facts = |step: u64| StepFacts {
        amends: false,
        id: id(step),
        name: format!("step_{step}"),
        created: Timestamp::from_seconds(i64::try_from(step * 600).expect("a time")),
        bytes: 1 << 30,
        reclaimable_bytes: 1 << 30,
        best: Vec::new(),
        metrics: BTreeMap::from([("loss".to_owned(), 1.0 / f64::from(u32::try_from(step).expect("small")))]),
        verified: Verified::Yes,
        needed: Needed { pinned: step.is_multiple_of(1000), ..Needed::default() },
        elsewhere: Elsewhere { durable_on: vec![remote()], ..Elsewhere::default() },
        abandoned: false,
    };
    TierView {
        tier: Tier::Remote(remote()),
        steps: (1..=steps).map(facts).collect(),
        unreadable: Vec::new(),
        now: Timestamp::from_seconds(i64::try_from(steps * 600).expect("a time")),
        free_bytes: None,
    }
}

fn retention_plans(criterion: &mut Criterion) {
    let rules = KeepRules {
        last: Some(3),
        every_steps: Some(50),
        hourly: Some(24),
        daily: Some(30),
        ..KeepRules::default()
    };
    let guards = Guards::default();
    let mut group = criterion.benchmark_group("retention plan");
    for steps in STEPS {
        let view = view(steps);
        group.throughput(Throughput::Elements(steps));
        group.bench_with_input(BenchmarkId::from_parameter(steps), &view, |bencher, view| {
            bencher.iter(|| {
                retention::plan(black_box(view), &rules, &LocalLimits::default(), &guards).expect("a plan")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, records, retention_plans);
criterion_main!(benches);
