//! Every file of real checkpoints gets the check that it needs.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stepvault_formats::soundness::Soundness::{self, Sound};
use stepvault_formats::structure::kind::{FileKind, HEAD_BYTES, check_file, kind_of};

use crate::support::{self, Counting, Fixture, sample};

fn kind(path: &str, bytes: &[u8]) -> FileKind {
    let length = bytes.len().min(usize::try_from(HEAD_BYTES).unwrap());
    kind_of(path, &bytes[..length])
}

fn judge(path: &str, bytes: &[u8]) -> Soundness {
    let counting = Counting::new(bytes.to_vec());
    let said = check_file(path, &counting).unwrap();
    counting.assert_bounded();
    said
}

fn why_broken(path: &str, bytes: &[u8]) -> String {
    support::why_broken(judge(path, bytes))
}

#[test]
fn real_files_are_what_their_frameworks_say() {
    let mut kinds: BTreeMap<String, Vec<FileKind>> = BTreeMap::new();
    for name in [
        "accelerate-2rank",
        "cycling-utils-sync",
        "dcp-2rank",
        "dcp-hf-storage",
        "deepspeed-zero1",
        "hf-trainer-2rank",
        "lightning-last-copy",
        "megatron-torch-dist",
        "orbax-ocdbt",
        "orbax-zarr-plain",
        "prime-rl-weights-old",
        "timm-saver",
        "torch-formats",
        "verl-fsdp",
    ] {
        let fixture = Fixture::unpack(name);
        for path in fixture.files() {
            let bytes = fixture.read(&path);
            let kind = kind(&path, &bytes);
            // These steps are complete: none of their files is broken.
            let said = judge(&path, &bytes);
            assert!(!matches!(said, Soundness::Broken { .. }), "{name}/{path}: {said:?}");
            let file = path.rsplit('/').next().unwrap();
            let file: String = file.chars().filter(|character| !character.is_ascii_digit()).collect();
            let of_name = kinds.entry(file).or_default();
            if !of_name.contains(&kind) {
                of_name.push(kind);
            }
        }
    }
    for (file, expected) in [
        (".metadata", FileKind::Pickle),
        (".zarray", FileKind::Json),
        ("STABLE", FileKind::Empty),
        ("___.distcp", FileKind::Opaque),
        ("_CHECKPOINT_METADATA", FileKind::Json),
        ("checkpoint-.pth.tar", FileKind::TorchZip),
        ("commit_success.txt", FileKind::Opaque),
        ("config.json", FileKind::Json),
        ("custom_checkpoint_.pkl", FileKind::TorchZip),
        ("data.pt", FileKind::TorchZip),
        ("epoch=-step=.ckpt", FileKind::TorchZip),
        ("latest", FileKind::Opaque),
        ("legacy.pt", FileKind::TorchLegacy),
        ("manifest.ocdbt", FileKind::OcdbtManifest),
        ("model.safetensors", FileKind::Safetensors),
        ("model.safetensors.index.json", FileKind::Json),
        ("mp_rank__model_states.pt", FileKind::TorchZip),
        ("optimizer.bin", FileKind::TorchZip),
        ("process_", FileKind::Json),
        ("random_states_.pkl", FileKind::TorchZip),
        ("rng_state_.pth", FileKind::TorchZip),
        ("training_args.bin", FileKind::TorchZip),
        ("trainer_state.json", FileKind::Json),
    ] {
        assert_eq!(kinds.get(file), Some(&vec![expected]), "{file}");
    }
}

#[test]
fn samples_are_checked_by_their_kind() {
    for (name, kind_expected) in
        [("v1.npy", FileKind::Npy), ("stored.npz", FileKind::Npz), ("little-endian.gguf", FileKind::Gguf)]
    {
        let bytes = sample(name);
        assert_eq!(kind(name, &bytes), kind_expected);
        assert_eq!(judge(name, &bytes), Sound);
        let cut = &bytes[..bytes.len() / 2];
        assert!(matches!(judge(name, cut), Soundness::Broken { .. }), "{name}");
    }
}

#[test]
fn what_was_never_written_is_broken_by_its_name() {
    for (path, noun) in [
        ("model.safetensors", "safetensors"),
        ("optimizer.pt", "torch"),
        ("rng_state_1.pth", "torch"),
        ("pytorch_model.bin", "torch"),
        ("last.ckpt", "torch"),
        (".metadata", "pickle"),
        ("a.npy", ".npy"),
        ("a.npz", ".npz"),
        ("a.gguf", "GGUF"),
        ("config.json", "JSON"),
        ("config.yaml", "YAML"),
        ("manifest.ocdbt", "OCDBT manifest"),
        ("variables.index", "TensorFlow index"),
    ] {
        assert_eq!(
            why_broken(path, b""),
            format!(
                "the file is empty, but its name is that of a {noun} file: its contents were never written or were \
                 lost"
            )
        );
        for zeros in [1, 100, 4096] {
            assert_eq!(
                why_broken(path, &vec![0; zeros]),
                format!(
                    "the file begins with zeros, which no {noun} file does: its contents were never written or were \
                     lost"
                )
            );
        }
    }
    for path in ["STABLE", "notes.txt", "__0_0.distcp", "tokens.bin"] {
        assert_eq!(judge(path, b""), Sound, "{path}");
        assert!(matches!(judge(path, &[0; 100]), Soundness::Unknown { .. }), "{path}");
    }
}

proptest! {
    #[test]
    fn no_name_and_no_bytes_do_harm(
        stem in "[a-z_./-]{0,12}",
        extension in prop::sample::select(vec![
            "", ".safetensors", ".pt", ".pth.tar", ".bin", ".ckpt", ".pkl", ".npy", ".npz", ".gguf", ".json", ".yaml",
            ".index", ".metadata", ".ocdbt", ".distcp",
        ]),
        head in prop::sample::select(vec![
            b"".to_vec(), b"PK\x03\x04".to_vec(), b"GGUF\x03\0\0\0".to_vec(), b"\x93NUMPY\x01\0".to_vec(),
            b"\x80\x02".to_vec(), b"\x20\0\0\0\0\0\0\0{\"".to_vec(),
        ]),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        judge(&format!("{stem}{extension}"), &[head, bytes].concat());
    }
}
