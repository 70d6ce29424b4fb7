//! JSON files as frameworks write them, and damaged.

use proptest::prelude::*;
use stepvault_formats::soundness::Soundness::{Sound, Unknown};
use stepvault_formats::soundness::judged;
use stepvault_formats::structure::json::{LARGEST_FILE_BYTES, check};
use stepvault_formats::tree::ReadAt;

use crate::support::{Fixture, assert_broken, cuts, flipped, judge, why_broken};

#[test]
fn every_real_file_is_sound() {
    let mut seen = 0;
    for name in [
        "safetensors-llama",
        "hf-trainer-1rank",
        "hf-trainer-2rank",
        "hf-trainer-killed",
        "dcp-hf-storage",
        "prime-rl-weights-old",
        "verl-fsdp",
        "megatron-torch-dist",
        "orbax-zarr-plain",
        "orbax-ocdbt",
    ] {
        let fixture = Fixture::unpack(name);
        for path in fixture.files() {
            let file = path.rsplit('/').next().unwrap();
            let is_json = file.strip_suffix(".json").is_some()
                || [".zarray", "_METADATA", "_CHECKPOINT_METADATA", "_sharding"].contains(&file);
            if is_json {
                assert_eq!(judge(&fixture.read(&path), check), Sound, "{name}/{path}");
                seen += 1;
            }
        }
    }
    assert!(seen > 80, "{seen}");
}

/// A file that is too large, and of which no byte may be read.
struct Large;
impl ReadAt for Large {
    fn size_bytes(&self) -> u64 {
        LARGEST_FILE_BYTES + 1
    }

    fn read_exact_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        panic!("read");
    }
}
#[test]
fn says_what_is_wrong() {
    assert_eq!(judge(br#"{"loss": NaN, "grad_norm": -Infinity}"#, check), Sound);
    assert_eq!(judge(b"[1]", check), Sound);
    assert_eq!(judge(b"null", check), Sound);
    // Several values are JSON Lines.
    assert_eq!(judge(b"{\"step\": 1}\n{\"step\": 2}\n", check), Sound);
    assert_broken(&judge(b"{\"step\": 1}\n{\"step\"", check), "cut off");
    assert_eq!(why_broken(judge(b" \n", check)), "the JSON file holds nothing but white space");
    assert_eq!(why_broken(judge(b"", check)), "the JSON file is empty: the write was cut off");
    assert_eq!(
        why_broken(judge(&[0; 512], check)),
        "the JSON file begins with a zero byte: its contents were lost, as after a power failure"
    );
    assert_eq!(
        why_broken(judge(br#"{"global_step": 10, "#, check)),
        "the JSON file ends in the middle of its JSON: the write was cut off"
    );
    assert_eq!(
        judged(check(&Large)).unwrap(),
        Unknown { why: "the JSON file is 268435457 bytes long, more than the limit of 268435456".to_owned() }
    );
}

#[test]
fn every_cut_is_noticed() {
    let fixture = Fixture::unpack("hf-trainer-1rank");
    for path in ["checkpoint-10/trainer_state.json", "checkpoint-10/config.json"] {
        let bytes = fixture.read(path);
        let end = bytes.trim_ascii_end().len();
        let every: Vec<_> = (0..end).collect();
        for cut in cuts(end, &every) {
            assert_broken(&judge(&bytes[..cut], check), &format!("{path} cut to {cut}"));
        }
    }
}

#[test]
fn a_flipped_bit_of_what_holds_the_text_together_is_noticed() {
    let bytes = br#"{"global_step": 10, "log": [{"loss": 4.5}], "done": true, "trial": null}"#;
    let mut in_string = false;
    for (offset, byte) in bytes.iter().enumerate() {
        let is_quote = *byte == b'"';
        let is_text = in_string && !is_quote;
        if is_quote {
            in_string = !in_string;
        }
        // The contents of strings and the digits of numbers may be anything: a blind spot.
        if is_text || byte.is_ascii_digit() || b" .".contains(byte) {
            continue;
        }
        for bit in 0..8 {
            let damaged = flipped(bytes, offset, bit);
            let what = format!("byte {offset} bit {bit}");
            assert_broken(&judge(&damaged, check), &what);
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(prop::num::u8::ANY, 0..2000)) {
        judge(&bytes, check);
    }

    #[test]
    fn arbitrary_texts_do_no_harm(text in r#"[{}\[\]",:0-9a-yNIn. \\-]{0,300}"#) {
        judge(text.as_bytes(), check);
    }

    /// Every text that `serde_json` accepts is accepted here.
    #[test]
    fn valid_texts_are_sound(text in r#"(\[|\{|"[a-z]*"|:|,|[0-9]{1,4}|\]|\}| ){1,30}"#) {
        let mut values = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
        let valid = !text.trim().is_empty() && values.all(|value| value.is_ok());
        prop_assert_eq!(judge(text.as_bytes(), check) == Sound, valid);
    }
}
