//! Formats that are checked as far as they show that a file was written to its end.

use proptest::prelude::*;
use stepvault_formats::soundness::Soundness::{self, Sound};
use stepvault_formats::structure::kind::check_file;

use crate::support::{assert_broken, sample};

const SAMPLES: [&str; 5] = ["version-0.h5", "version-3.h5", "model.weights.h5", "model.keras", "files.tar"];

fn judged(name: &str, bytes: &[u8]) -> Soundness {
    check_file(name, &bytes.to_vec()).unwrap()
}

#[test]
fn what_the_libraries_write_is_sound() {
    for name in SAMPLES {
        assert_eq!(judged(name, &sample(name)), Sound, "{name}");
    }
    // The name alone decides only for a file that has one of these.
    assert_eq!(judged("weights", &sample("version-0.h5")), Sound);
}

/// A `.keras` cut to a quarter became durable, and the newest step.
#[test]
fn a_file_that_was_cut_off_is_broken_wherever_the_cut_is() {
    for name in SAMPLES {
        let whole = sample(name);
        for length in 0..whole.len() {
            // The end of a tar archive is padded beyond the two blocks that it needs.
            let end = &whole[length.saturating_sub(1024)..length];
            if name == "files.tar"
                && length.is_multiple_of(512)
                && end.len() == 1024
                && end.iter().all(|byte| *byte == 0)
            {
                continue;
            }
            let soundness = judged(name, &whole[..length]);
            assert!(matches!(soundness, Soundness::Broken { .. }), "{name} cut to {length}: {soundness:?}");
        }
    }
}

#[test]
fn a_file_of_hdf5_that_was_not_closed_is_broken() {
    let mut bytes = sample("version-3.h5");
    bytes[11] |= 1;
    assert_broken(&judged("a.h5", &bytes), "was not closed");
    bytes[8] = 9;
    let later = judged("a.h5", &bytes);
    assert!(matches!(later, Soundness::Unknown { .. }), "{later:?}");
}

#[test]
fn a_user_block_before_the_superblock_is_skipped() {
    let mut bytes = vec![b'#'; 512];
    let mut inner = sample("version-3.h5");
    inner[12..20].copy_from_slice(&512_u64.to_le_bytes());
    bytes.extend(inner);
    assert_eq!(judged("a.h5", &bytes), Sound);
    assert_broken(&judged("a.h5", &bytes[..bytes.len() - 1]), "cut off");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), name in 0..SAMPLES.len()) {
        let _ = check_file(SAMPLES[name], &bytes);
        let head = [&b"\x89HDF\r\n\x1a\n"[..], &bytes].concat();
        let _ = check_file("a.h5", &head);
    }
}
