//! JSON files as frameworks write them, and damaged.

use proptest::prelude::*;
use stepvault_formats::soundness::Soundness::{self, Sound, Unknown};
use stepvault_formats::soundness::{Fault, judged};
use stepvault_formats::source::ReadAt;
use stepvault_formats::structure::json::{LARGEST_FILE_BYTES, Root, check, whole_numbers};

use crate::support::{Fixture, assert_broken, cuts, flipped, judge};

fn object(source: &dyn ReadAt) -> Result<(), Fault> {
    check(source, Root::Object)
}

fn array(source: &dyn ReadAt) -> Result<(), Fault> {
    check(source, Root::Array)
}

fn any(source: &dyn ReadAt) -> Result<(), Fault> {
    check(source, Root::Any)
}

fn why_broken(said: Soundness) -> String {
    match said {
        Soundness::Broken { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

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
                assert_eq!(judge(&fixture.read(&path), object), Sound, "{name}/{path}");
                seen += 1;
            }
        }
    }
    assert!(seen > 80, "{seen}");
}

#[test]
fn steps_and_world_sizes_are_read() {
    let state = Fixture::unpack("hf-trainer-1rank").read("checkpoint-10/trainer_state.json");
    // The steps in its log are nested deeper and must be ignored.
    let found = whole_numbers(&state, ["global_step", "step", "max_steps", "best_global_step"]).unwrap();
    assert_eq!(found, [Some(10), None, Some(15), None]);
    let fsdp = Fixture::unpack("verl-fsdp").read("global_step_5/actor/fsdp_config.json");
    assert_eq!(whole_numbers(&fsdp, ["world_size"]).unwrap(), [Some(2)]);
    // AReaL's recover_info/step_info.json and Levanter's metadata.json.
    let info = br#"{"epoch": 0, "epoch_step": 3, "global_step": 3, "steps_per_epoch": 7}"#.to_vec();
    assert_eq!(whole_numbers(&info, ["global_step"]).unwrap(), [Some(3)]);
    let levanter = br#"{"step": 500, "timestamp": "2026-11-21T15:00:00", "is_temporary": false}"#.to_vec();
    assert_eq!(whole_numbers(&levanter, ["step"]).unwrap(), [Some(500)]);
    let twice = br#"{"step": 1, "step": 2}"#.to_vec();
    assert_eq!(whole_numbers(&twice, ["step"]).unwrap(), [Some(2)]);

    for wrong in ["\"5\"", "5.0", "-5", "true", "[5]", "NaN", "18446744073709551616"] {
        let text = format!("{{\"global_step\": {wrong}}}").into_bytes();
        let said = judged(whole_numbers(&text, ["global_step"]).map(drop)).unwrap();
        assert_eq!(
            why_broken(said),
            "global_step is not a non-negative integer",
            "{wrong}"
        );
    }
    let list = judged(whole_numbers(&b"[1]".to_vec(), ["step"]).map(drop)).unwrap();
    assert_eq!(
        why_broken(list),
        "the JSON file is damaged at byte 0: invalid type: sequence, expected an object"
    );
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
    assert_eq!(judge(br#"{"loss": NaN, "grad_norm": -Infinity}"#, object), Sound);
    assert_eq!(judge(b"[1]", array), Sound);
    assert_eq!(judge(b"null", any), Sound);
    // Several values are JSON Lines.
    assert_eq!(judge(b"{\"step\": 1}\n{\"step\": 2}\n", any), Sound);
    assert_broken(&judge(b"{\"step\": 1}\n{\"step\"", any), "cut off");
    assert_broken(&judge(b"{} {}", object), "one object is expected");
    assert_eq!(
        why_broken(judge(b" \n", any)),
        "the JSON file holds nothing but white space"
    );
    assert_eq!(
        why_broken(judge(b"", any)),
        "the JSON file is empty: the write was cut off"
    );
    assert_eq!(
        why_broken(judge(&[0; 512], any)),
        "the JSON file begins with a zero byte: its contents were lost, as after a power failure"
    );
    assert_eq!(
        why_broken(judge(b"[1]", object)),
        "the JSON file must hold an object"
    );
    assert_eq!(why_broken(judge(b"{}", array)), "the JSON file must hold a list");
    assert_eq!(
        why_broken(judge(br#"{"global_step": 10, "#, object)),
        "the JSON file ends in the middle of its JSON: the write was cut off"
    );
    assert_eq!(
        judged(check(&Large, Root::Any)).unwrap(),
        Unknown {
            why: "the JSON file is 268435457 bytes long, more than the limit of 268435456".to_owned()
        }
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
            assert_broken(&judge(&bytes[..cut], object), &format!("{path} cut to {cut}"));
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
            assert_broken(&judge(&damaged, object), &what);
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(prop::num::u8::ANY, 0..2000)) {
        judge(&bytes, any);
    }

    #[test]
    fn arbitrary_texts_do_no_harm(text in r#"[{}\[\]",:0-9a-yNIn. \\-]{0,300}"#) {
        judge(text.as_bytes(), any);
    }

    /// Every text that `serde_json` accepts is accepted here.
    #[test]
    fn valid_texts_are_sound(text in r#"(\[|\{|"[a-z]*"|:|,|[0-9]{1,4}|\]|\}| ){1,30}"#) {
        let mut values = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
        let valid = !text.trim().is_empty() && values.all(|value| value.is_ok());
        prop_assert_eq!(judge(text.as_bytes(), any) == Sound, valid);
    }
}
