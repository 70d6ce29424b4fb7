//! How long looking at checkpoints takes: one file by its format, and a directory by all profiles.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{self, Write as _};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::check::check_step;
use stepvault_formats::detect::detect;
use stepvault_formats::find::{FindOptions, find_steps};
use stepvault_formats::profile::ProfileSet;
use stepvault_formats::soundness::Soundness;
use stepvault_formats::structure::kind::check_file;
use stepvault_formats::tree::ReadAt;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};

const TENSORS: u64 = 1_000;
const STEPS: [u64; 3] = [10, 100, 1_000];

fn safetensors(tensors: u64) -> Vec<u8> {
    let mut header = String::from("{");
    for index in 0..tensors {
        let (start, end) = (index * 16, index * 16 + 16);
        write!(
            header,
            "{}\"layers.{index}.weight\":{{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[{start},{end}]}}",
            if index == 0 { "" } else { "," }
        )
        .expect("a string");
    }
    header.push('}');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + usize::try_from(tensors * 16).expect("a size"), 1);
    bytes
}

/// Returns what `torch.save` writes of an empty dictionary, with this many storages.
fn torch_archive(storages: u64) -> Vec<u8> {
    let mut archive = rawzip::ZipArchiveWriter::new(Vec::new());
    let mut add = |name: &str, bytes: &[u8]| {
        let (mut entry, config) = archive.new_file(name).start().expect("an entry");
        let mut writer = config.wrap(&mut entry);
        writer.write_all(bytes).expect("bytes");
        let (_, descriptor) = writer.finish().expect("an end");
        entry.finish(descriptor).expect("an end");
    };
    add("archive/data.pkl", b"\x80\x02}q\x00.");
    add("archive/byteorder", b"little");
    for index in 0..storages {
        add(&format!("archive/data/{index}"), &[1; 16]);
    }
    add("archive/version", b"3\n");
    archive.finish().expect("an archive")
}

fn trainer_state(entries: u64) -> Vec<u8> {
    let log = (0..entries).map(|step| format!("{{\"step\":{step},\"loss\":{}.5}}", step % 7));
    let log = log.collect::<Vec<_>>().join(",");
    format!("{{\"global_step\":{entries},\"log_history\":[{log}]}}").into_bytes()
}

fn files(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("check a file");
    for (what, name, bytes) in [
        ("safetensors of 1,000 tensors", "model.safetensors", safetensors(TENSORS)),
        ("torch archive of 1,000 storages", "model.pt", torch_archive(TENSORS)),
        ("JSON of 10,000 entries", "trainer_state.json", trainer_state(10 * TENSORS)),
    ] {
        let soundness = check_file(name, &bytes).expect("a file in memory");
        assert_eq!(soundness, Soundness::Sound, "{what}");
        group.bench_function(what, |bencher| {
            bencher.iter(|| check_file(name, black_box(&bytes)).expect("a file in memory"));
        });
    }
    group.finish();
}

struct Files(BTreeMap<String, Vec<u8>>);

impl OpenFile for Files {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let found = self.0.get(path).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(found))
    }
}

/// Returns checkpoints of Hugging Face's trainer.
fn trainer_directory(steps: u64) -> (Tree, Files) {
    let mut files = BTreeMap::new();
    let mut entries = BTreeMap::new();
    let mtime = Timestamp::from_seconds(1_000);
    for step in 1..=steps {
        let directory = format!("checkpoint-{step}");
        for (name, bytes) in [
            ("model.safetensors", safetensors(10)),
            ("optimizer.pt", torch_archive(10)),
            ("scheduler.pt", torch_archive(1)),
            ("rng_state.pth", torch_archive(1)),
            ("trainer_state.json", trainer_state(step)),
            ("config.json", b"{}".to_vec()),
        ] {
            let kind = EntryKind::File { size_bytes: bytes.len() as u64, allocated_bytes: None };
            entries.insert(format!("{directory}/{name}"), Entry { kind, mtime });
            files.insert(format!("{directory}/{name}"), bytes);
        }
        let kind = EntryKind::Directory;
        entries.insert(directory, Entry { kind, mtime });
    }
    (Tree::new(entries), Files(files))
}

fn directories(criterion: &mut Criterion) {
    let profiles = ProfileSet::default();
    let now = Timestamp::from_seconds(10_000);
    let mut group = criterion.benchmark_group("find and check the steps of a directory");
    group.sample_size(20);
    for steps in STEPS {
        let (tree, files) = trainer_directory(steps);
        let look = || {
            let profile = detect(&tree, &files, &profiles).expect("a profile").profile;
            let found = find_steps(profile, &tree, &files, now, &FindOptions::default());
            let checked = found.steps.iter().map(|step| check_step(step, &tree, &files));
            checked.filter(|check| check.is_sound() == Some(true)).count() as u64
        };
        assert_eq!(look(), steps, "steps that are sound");
        group.throughput(Throughput::Elements(steps));
        group.bench_with_input(BenchmarkId::from_parameter(steps), &steps, |bencher, _| {
            bencher.iter(|| black_box(look()));
        });
    }
    group.finish();
}

criterion_group!(benches, files, directories);
criterion_main!(benches);
