//! OCDBT databases that Orbax wrote.

use proptest::prelude::*;
use stepvault_formats::structure::ocdbt;

use super::checkpoint::{Checkpoint, is_broken, scattered, why};

const STEP: &str = "10/default";

#[test]
fn databases_that_orbax_wrote_are_sound() {
    for (fixture, steps) in [("orbax-ocdbt", &["10", "20", "30"][..]), ("orbax-killed", &["10", "20"])] {
        let checkpoint = Checkpoint::fixture(fixture);
        for step in steps {
            let directory = format!("{step}/default");
            assert_eq!(why(checkpoint.judge(ocdbt::check, &directory)), "sound", "{fixture} {directory}");
            let arrays = ocdbt::read(&checkpoint.tree(), &directory, &checkpoint).unwrap();
            assert_eq!(arrays.iter().count(), 11);
            arrays.check_chunks().unwrap();
        }
    }
}

#[test]
fn no_damage_to_the_manifest_passes() {
    let checkpoint = Checkpoint::fixture("orbax-ocdbt");
    let path = format!("{STEP}/manifest.ocdbt");
    let whole = checkpoint.files[&path].to_vec();
    for length in 0..whole.len() {
        let damaged = checkpoint.with(&path, &whole[..length]);
        assert!(is_broken(&damaged.judge(ocdbt::check, STEP)), "cut to {length}");
    }
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let damaged = checkpoint.with(&path, &bytes);
        assert!(is_broken(&damaged.judge(ocdbt::check, STEP)), "bit {bit}");
    }
    assert_eq!(
        why(checkpoint.with(&path, &whole[..100]).judge(ocdbt::check, STEP)),
        "10/default/manifest.ocdbt declares 114 bytes, but has 100: it was cut off or overwritten"
    );
    let mut flipped = whole.clone();
    flipped[60] ^= 1;
    assert_eq!(
        why(checkpoint.with(&path, &flipped).judge(ocdbt::check, STEP)),
        "10/default/manifest.ocdbt does not match its checksum: its bytes have changed since they were written"
    );
    assert_eq!(
        why(checkpoint.without(&path).judge(ocdbt::check, STEP)),
        "10/default/manifest.ocdbt is missing, and nothing in the directory can be found without it"
    );
}

/// Returns every data file of the step, with the length of its beginning that the newest version needs. The rest is
/// the blind spot: values and nodes that processes wrote on the way, of which the merged version uses none.
fn needed() -> Vec<(String, usize)> {
    let checkpoint = Checkpoint::fixture("orbax-ocdbt");
    let prefix = format!("{STEP}/");
    let mut needed = Vec::new();
    for (path, bytes) in &checkpoint.files {
        if !path.strip_prefix(&prefix).is_some_and(|rest| rest.contains("d/")) {
            continue;
        }
        let broken =
            |length: &usize| is_broken(&checkpoint.with(path, &bytes[..*length]).judge(ocdbt::check, STEP));
        let ends = (0..bytes.len()).rev().find(broken).map_or(0, |length| length + 1);
        assert!((0..ends).all(|length| broken(&length)), "{path}");
        needed.push((path[prefix.len()..].to_owned(), ends));
    }
    needed
}

#[test]
fn every_cut_into_what_is_needed_shows() {
    let checkpoint = Checkpoint::fixture("orbax-ocdbt");
    let seen: Vec<_> = needed()
        .into_iter()
        .map(|(path, needed)| {
            let size = checkpoint.files[&format!("{STEP}/{path}")].len();
            (path, needed, size)
        })
        .collect();
    let expected = [
        ("d/2f934396e542e8629275b1b8a01d8397", 2249, 2249),
        ("ocdbt.process_0/d/238f02c17c99cc1020c396a964e17424", 0, 316),
        ("ocdbt.process_0/d/3294dccd3beed9fbe943325581f7e337", 11_493, 13_726),
        ("ocdbt.process_0/d/5265f906b625032c46759aa74919ba0e", 0, 179),
        ("ocdbt.process_0/d/7ecc1184336b2a5bcf311c7c018e5371", 0, 339),
    ]
    .map(|(path, needed, size)| (path.to_owned(), needed, size));
    assert_eq!(seen, expected);
}

#[test]
fn no_flipped_bit_of_the_index_passes() {
    let checkpoint = Checkpoint::fixture("orbax-ocdbt");
    let path = checkpoint.only(STEP, "d/2f934396");
    let whole = checkpoint.files[&path].to_vec();
    for bit in scattered(2000, whole.len() * 8) {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(is_broken(&checkpoint.with(&path, &bytes).judge(ocdbt::check, STEP)), "bit {bit}");
    }
}

/// The blind spot: values carry no checksum.
#[test]
fn flipped_bits_of_values_pass() {
    let checkpoint = Checkpoint::fixture("orbax-ocdbt");
    let path = checkpoint.only(STEP, "d/3294dccd");
    let whole = checkpoint.files[&path].to_vec();
    for bit in scattered(200, whole.len() * 8) {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(why(checkpoint.with(&path, &bytes).judge(ocdbt::check, STEP)), "sound");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_manifests_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut checkpoint = Checkpoint::default();
        checkpoint.set("manifest.ocdbt", bytes);
        let _ = checkpoint.judge(ocdbt::check, "");
        prop_assert!(checkpoint.read_bytes() <= checkpoint.size_bytes());
    }

    #[test]
    fn damaged_databases_do_no_harm(
        seed in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bytes in proptest::collection::vec(any::<u8>(), 1..40),
    ) {
        let checkpoint = Checkpoint::fixture("orbax-ocdbt");
        let paths: Vec<_> = checkpoint.files.keys().filter(|path| path.starts_with(STEP)).collect();
        let path = *seed.get(&paths);
        let mut damaged = checkpoint.files[path].to_vec();
        let start = at.index(damaged.len());
        let end = (start + bytes.len()).min(damaged.len());
        damaged[start..end].copy_from_slice(&bytes[..end - start]);
        let damaged = checkpoint.with(path, &damaged);
        let _ = damaged.judge(ocdbt::check, STEP);
        prop_assert!(damaged.read_bytes() <= 2 * damaged.size_bytes());
    }
}
