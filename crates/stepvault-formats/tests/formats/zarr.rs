//! Zarr arrays that Orbax wrote.

use proptest::prelude::*;
use stepvault_formats::soundness::Fault;
use stepvault_formats::structure::zarr::{self, Presence};
use stepvault_formats::tree::{OpenFile, Tree};

use super::checkpoint::{Checkpoint, is_broken, why};

const ARRAY: &str = "10/default/params.dense.kernel";

fn check(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    zarr::check(tree, directory, files, Presence::Required)
}

#[test]
fn every_cut_into_a_chunk_shows() {
    let checkpoint = Checkpoint::fixture("orbax-zarr-plain");
    let chunk = format!("{ARRAY}/0.0");
    let whole = checkpoint.files[&chunk].to_vec();
    assert_eq!(why(checkpoint.judge(check, ARRAY)), "sound");
    for length in 0..whole.len() {
        let damaged = checkpoint.with(&chunk, &whole[..length]);
        assert!(is_broken(&damaged.judge(check, ARRAY)), "cut to {length}");
    }
    assert_eq!(
        why(checkpoint.without(&chunk).judge(check, ARRAY)),
        "10/default/params.dense.kernel holds 0 of the 1 chunks of the array: part of the save is missing"
    );
    let optional = |tree: &Tree, directory: &str, files: &dyn OpenFile| {
        zarr::check(tree, directory, files, Presence::Optional)
    };
    assert_eq!(why(checkpoint.without(&chunk).judge(optional, ARRAY)), "sound");
    let zeroed = checkpoint.with(&chunk, &vec![0; whole.len()]);
    assert!(is_broken(&zeroed.judge(check, ARRAY)));
}

#[test]
fn flipped_bits_of_a_chunk_header_show() {
    let checkpoint = Checkpoint::fixture("orbax-zarr-plain");
    let chunk = format!("{ARRAY}/0.0");
    let whole = checkpoint.files[&chunk].to_vec();
    // Magic number, descriptor, length, and the header of the only block.
    let passing: Vec<usize> = (0..10 * 8)
        .filter(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            !is_broken(&checkpoint.with(&chunk, &bytes).judge(check, ARRAY))
        })
        .collect();
    // One bit of the descriptor has no meaning for decoders either.
    assert_eq!(passing, [4 * 8 + 4]);
}

#[test]
fn every_cut_into_a_description_shows() {
    let checkpoint = Checkpoint::fixture("orbax-zarr-plain");
    let path = format!("{ARRAY}/.zarray");
    let whole = checkpoint.files[&path].to_vec();
    for length in 0..whole.len() {
        let damaged = checkpoint.with(&path, &whole[..length]);
        assert!(is_broken(&damaged.judge(check, ARRAY)), "cut to {length}");
    }
    assert_eq!(
        why(checkpoint.without(&path).judge(check, ARRAY)),
        "10/default/params.dense.kernel contains neither .zarray nor zarr.json"
    );
    let text = String::from_utf8(whole).unwrap();
    for (from, to) in [
        ("\"zarr_format\":2", "\"zarr_format\":3"),
        ("\"shape\":[32", "\"shape\":[72"),
        ("\"chunks\":[32", "\"chunks\":[72"),
        ("<f4", "<f5"),
        ("\"dimension_separator\":\".\"", "\"dimension_separator\":\"/\""),
    ] {
        assert!(text.contains(from), "{from}");
        let damaged = checkpoint.with(&path, text.replace(from, to).as_bytes());
        assert!(is_broken(&damaged.judge(check, ARRAY)), "{to}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn arbitrary_arrays_do_no_harm(
        shape in proptest::collection::vec(any::<u64>(), 0..4),
        chunks in proptest::collection::vec(any::<u64>(), 0..4),
        chunk in proptest::collection::vec(any::<u8>(), 0..64),
        compressor in prop::sample::select(vec!["null", r#"{"id":"zstd"}"#, r#"{"id":"blosc"}"#]),
    ) {
        let mut checkpoint = Checkpoint::default();
        let text = format!(
            r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":"<f8","compressor":{compressor}}}"#
        );
        checkpoint.set("a/.zarray", text.into_bytes());
        checkpoint.set("a/0", chunk.clone());
        checkpoint.set("a/0.0", chunk);
        let _ = checkpoint.judge(check, "a");
        prop_assert!(checkpoint.read_bytes() <= 4 * checkpoint.size_bytes());
    }
}
