//! How long the local tier takes: sealing a step of 1,000 files, digesting a part, scanning a tree.

use std::hint::black_box;
use std::path::Path;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use stepvault_core::digest::PartDigest;
use stepvault_core::ids::{Attempt, NodeName, RunName, Step, StepId};
use stepvault_local::seal::{SealRequest, seal};
use stepvault_local::tree::{Checkpoint, scan};
use stepvault_local::vault::Vault;

const FILES: usize = 1_000;

fn checkpoint(root: &Path) {
    std::fs::create_dir_all(root).expect("a directory");
    for index in 0..FILES {
        std::fs::write(root.join(format!("{index:04}.bin")), index.to_le_bytes().repeat(64)).expect("a file");
    }
    // What the trainer wrote is on the disk before it is sealed, or its write-back would be counted here.
    let directory = std::fs::File::open(root).expect("the directory");
    rustix::fs::syncfs(&directory).expect("a sync");
}

fn request(source: &Path, step: u64) -> SealRequest {
    SealRequest {
        digest: stepvault_core::digest::DigestAlgorithm::Sha256,
        run: RunName::new("bench").expect("a run"),
        attempt: stepvault_local::seal_record::AttemptOrigin::default(),
        id: StepId::new(Attempt::FIRST, Step::new(step).expect("a step")),
        writer: stepvault_core::nodes::Writer::single_node(NodeName::new("node-0").expect("a node")),
        checkpoint: Checkpoint::of_path(source, format!("step_{step}")),
        expected: None,
        completes: None,
    }
}

fn sealing(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("step");
    checkpoint(&source);
    let vault = Vault::open_or_create(&directory.path().join("vault")).expect("a vault");
    let mut step = 0;
    let mut group = criterion.benchmark_group("local");
    group.sample_size(20);
    group.bench_function("seal 1,000 files", |bencher| {
        bencher.iter_batched(
            || {
                step += 1;
                request(&source, step)
            },
            |request| seal(&vault, &request).expect("a sealed step"),
            BatchSize::PerIteration,
        );
    });
    group.bench_function("scan 1,000 files", |bencher| {
        bencher.iter(|| scan(black_box(&source)).expect("a tree"));
    });
    group.finish();
}

fn digesting(criterion: &mut Criterion) {
    let part = vec![7_u8; 8 << 20];
    let mut group = criterion.benchmark_group("digest");
    group.throughput(Throughput::Bytes(part.len() as u64));
    group.bench_function("SHA-256 and CRC-32C of one part", |bencher| {
        bencher.iter(|| PartDigest::of(black_box(&part)));
    });
    group.finish();
}

criterion_group!(benches, sealing, digesting);
criterion_main!(benches);
