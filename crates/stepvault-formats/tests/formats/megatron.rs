//! Steps that Megatron wrote.

use stepvault_core::digest::Sha256Digest;
use stepvault_formats::structure::megatron;

use super::checkpoint::{Checkpoint, why};

const STEP: &str = "iter_0000010";

#[test]
fn complete_steps_are_sound() {
    let checkpoint = Checkpoint::fixture("megatron-torch-dist");
    for step in [STEP, "iter_0000020"] {
        assert_eq!(why(checkpoint.judge(megatron::check, step)), "sound");
    }
}

#[test]
fn a_step_without_its_last_file_is_not_finished() {
    let checkpoint = Checkpoint::fixture("megatron-torch-dist");
    let path = format!("{STEP}/metadata.json");
    assert_eq!(
        why(checkpoint.without(&path).judge(megatron::check, STEP)),
        "iter_0000010/metadata.json, which is written last, is missing: the save was not finished"
    );
    let whole = checkpoint.files[&path].to_vec();
    for length in 0..whole.len() {
        let damaged = checkpoint.with(&path, &whole[..length]);
        assert_ne!(why(damaged.judge(megatron::check, STEP)), "sound", "cut to {length}");
    }
    let zarr = r#"{"sharded_backend": "zarr"}"#;
    assert_eq!(
        why(checkpoint.with(&path, zarr.as_bytes()).judge(megatron::check, STEP)),
        "unknown: iter_0000010/metadata.json says that tensors are stored by zarr, which is not checked"
    );
}

#[test]
fn what_cannot_be_empty_is_not() {
    let checkpoint = Checkpoint::fixture("megatron-torch-dist");
    assert_eq!(
        why(checkpoint.without(&format!("{STEP}/.metadata")).judge(megatron::check, STEP)),
        "iter_0000010/.metadata is missing, and tensors cannot be found without it"
    );
    for name in [".metadata", "common.pt"] {
        assert_eq!(
            why(checkpoint.with(&format!("{STEP}/{name}"), b"").judge(megatron::check, STEP)),
            format!("iter_0000010/{name} is empty: it was never written")
        );
    }
}

#[test]
fn listed_files_are_there() {
    let mut checkpoint = Checkpoint::fixture("megatron-torch-dist");
    let prefix = format!("{STEP}/");
    let files: Vec<_> = checkpoint
        .files
        .iter()
        .filter_map(|(path, bytes)| Some((path.strip_prefix(&prefix)?.to_owned(), Sha256Digest::of(bytes))))
        .collect();
    let lines: Vec<_> = files.iter().map(|(name, digest)| format!("\"{name}\": \"{digest}\"")).collect();
    let text = format!("{{\"algorithm\": \"sha256\", \"files\": {{{}}}}}", lines.join(", "));
    let path = format!("{STEP}/integrity.json");
    checkpoint.set(&path, text.clone().into_bytes());
    assert_eq!(why(checkpoint.judge(megatron::check, STEP)), "sound");
    let listed = megatron::listed_digests(&checkpoint.tree(), STEP, &checkpoint).unwrap();
    assert_eq!(listed.into_iter().collect::<Vec<_>>(), files);
    assert_eq!(
        why(checkpoint.without(&format!("{STEP}/__1_1.distcp")).judge(megatron::check, STEP)),
        "iter_0000010/integrity.json lists __1_1.distcp, and that file is missing"
    );
    for (from, to, expected) in [
        (
            "common.pt",
            "../common.pt",
            "iter_0000010/integrity.json lists \"../common.pt\", which is not a file of the step",
        ),
        ("sha256", "md5", "unknown: iter_0000010/integrity.json lists digests of the unknown kind md5"),
    ] {
        let damaged = checkpoint.with(&path, text.replace(from, to).as_bytes());
        assert_eq!(why(damaged.judge(megatron::check, STEP)), expected);
    }
    let short = text.replace(&files[0].1.to_string(), "abc");
    assert_eq!(
        why(checkpoint.with(&path, short.as_bytes()).judge(megatron::check, STEP)),
        "iter_0000010/integrity.json lists .metadata with a value that is not a SHA-256"
    );
}

#[test]
fn older_steps_have_a_directory_for_each_rank() {
    let mut checkpoint = Checkpoint::default();
    checkpoint.set("iter_0000001/mp_rank_00/model_optim_rng.pt", vec![1]);
    checkpoint.set("iter_0000001/mp_rank_01/distrib_optim.pt", vec![1]);
    assert_eq!(
        why(checkpoint.judge(megatron::check, "iter_0000001")),
        "iter_0000001/mp_rank_01 holds no model_optim_rng.pt"
    );
    checkpoint.set("iter_0000001/mp_rank_01/model_optim_rng.pt", Vec::new());
    assert_eq!(
        why(checkpoint.judge(megatron::check, "iter_0000001")),
        "iter_0000001/mp_rank_01/model_optim_rng.pt is empty: it was never written"
    );
    checkpoint.set("iter_0000001/mp_rank_01/model_optim_rng.pt", vec![1]);
    assert_eq!(why(checkpoint.judge(megatron::check, "iter_0000001")), "sound");
}
