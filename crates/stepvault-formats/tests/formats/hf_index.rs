//! Weights over several files: whole, with a file missing, and with files that do not fit.

use proptest::prelude::*;
use stepvault_formats::soundness::Soundness::{self, Sound, Unknown};
use stepvault_formats::soundness::judged;
use stepvault_formats::structure::hf_index::{check, check_sharded, holds_shards, is_index};

use crate::support::{Files, Fixture, why_broken};

const INDEX: &str = "model.safetensors.index.json";

fn judge(files: &Files) -> Soundness {
    judged(check(&files.tree(), INDEX, files)).unwrap()
}

fn judge_sharded(files: &Files, directory: &str) -> Soundness {
    judged(check_sharded(&files.tree(), directory, files)).unwrap()
}

fn llama() -> Files {
    Files::of(&Fixture::unpack("safetensors-llama")).below("step_10_sharded")
}

/// Returns the index and empty files for what it names: enough for the checks that open no file.
fn indexed(weight_map: &str) -> Files {
    let mut files = Files([].into());
    let index = format!("{{\"metadata\": {{}}, \"weight_map\": {weight_map}}}");
    files.0.insert(INDEX.to_owned(), index.into_bytes());
    files
}

#[test]
fn every_real_index_is_sound() {
    let mut seen = 0;
    for name in ["safetensors-llama", "prime-rl-weights-old", "dcp-hf-storage"] {
        let files = Files::of(&Fixture::unpack(name));
        let tree = files.tree();
        for (index, _) in tree.files().filter(|(path, _)| is_index(path)) {
            assert_eq!(judged(check(&tree, index, &files)).unwrap(), Sound, "{name}/{index}");
            seen += 1;
        }
    }
    assert_eq!(seen, 6);
}

#[test]
fn every_missing_or_damaged_shard_is_noticed() {
    let whole = llama();
    for path in whole.0.keys().filter(|path| path.ends_with(".safetensors")) {
        let mut without = whole.clone();
        without.0.remove(path);
        let why = why_broken(judge(&without));
        assert!(why.starts_with(&format!("{path} is missing, and the index places ")), "{why}");
        let mut cut = whole.clone();
        cut.0.get_mut(path).unwrap().pop();
        let why = why_broken(judge(&cut));
        let ending = "and the file ends 1 byte too early: the save was cut off";
        assert!(why.starts_with(path) && why.ends_with(ending), "{why}");
    }
    let mut swapped = whole.clone();
    let first = swapped.0["model-00001-of-00003.safetensors"].clone();
    swapped.0.insert("model-00002-of-00003.safetensors".to_owned(), first);
    assert!(
        why_broken(judge(&swapped))
            .ends_with("which does not have it: index and file are from different saves")
    );
}

#[test]
fn says_what_is_wrong_with_an_index() {
    assert_eq!(
        why_broken(judge(&indexed(r#"{"a": "m-00001-of-00003.bin", "b": "m-00003-of-00003.bin"}"#))),
        "m-00002-of-00003.bin is missing from the index, which names others of the 3"
    );
    assert_eq!(
        why_broken(judge(&indexed(r#"{"a": "m-00001-of-00002.bin", "b": "m-00002-of-00003.bin"}"#))),
        "the directory has sets of 2 and of 3 files: two saves are mixed"
    );
    assert_eq!(
        why_broken(judge(&indexed(r#"{"a": "m.bin", "b": "m.bin"}"#))),
        "m.bin is missing, and the index places 2 tensors in it"
    );
    for outside in
        ["/etc/passwd", "../model.bin", "a/../../b.bin", "", "a//b", "C:\\\\m.bin", "a\\\\..\\\\b", "./m"]
    {
        let why = why_broken(judge(&indexed(&format!("{{\"a\": \"{outside}\"}}"))));
        assert!(why.ends_with("which is not a file name in its directory"), "{outside}: {why}");
    }
    assert_eq!(why_broken(judge(&indexed("{}"))), "the index has no weight_map that names a tensor");
    assert!(why_broken(judge(&indexed("[]"))).contains("expected an object that places tensors in files"));
    assert!(why_broken(judge(&indexed(r#"{"a": 1}"#))).contains("expected a string"));
    let mut empty = indexed("{}");
    empty.0.insert(INDEX.to_owned(), Vec::new());
    assert_eq!(why_broken(judge(&empty)), "the JSON file is empty: the write was cut off");
    // Of torch files only their existence is checked.
    let mut torch = indexed(r#"{"a": "pytorch_model.bin"}"#);
    torch.0.insert("pytorch_model.bin".to_owned(), b"PK".to_vec());
    assert_eq!(judge(&torch), Sound);
}

#[test]
fn every_cut_of_an_index_is_noticed() {
    let whole = llama();
    let length = whole.0[INDEX].trim_ascii_end().len();
    for cut in 0..length {
        let mut files = whole.clone();
        files.0.get_mut(INDEX).unwrap().truncate(cut);
        why_broken(judge(&files));
    }
}

#[test]
fn a_hostile_index_costs_no_more_than_its_size() {
    let mut map = "{".to_owned();
    for index in 0..100_000 {
        let entry = format!("\"{index}\": \"{index}-1-of-1.bin\",");
        map.push_str(&entry);
    }
    map.pop();
    map.push('}');
    assert!(why_broken(judge(&indexed(&map))).contains("is missing"));
}

#[test]
fn shards_of_ranks_are_counted_by_their_elements() {
    let whole = Files::of(&Fixture::unpack("dcp-hf-storage")).below("step-10");
    assert!(holds_shards(&whole.tree(), "sharded") && !holds_shards(&whole.tree(), ""));
    assert_eq!(judge_sharded(&whole, "sharded"), Sound);
    let shards: Vec<_> = whole.0.keys().filter(|path| path.starts_with("sharded/")).cloned().collect();
    assert_eq!(shards.len(), 4);
    for path in &shards {
        let mut without = whole.clone();
        without.0.remove(path);
        let why = why_broken(judge_sharded(&without, "sharded"));
        assert!(why.ends_with(": the file of a rank is missing"), "{path}: {why}");
        let mut cut = whole.clone();
        cut.0.get_mut(path).unwrap().pop();
        assert!(why_broken(judge_sharded(&cut, "sharded")).starts_with(path));
    }
    let mut without = whole.clone();
    without.0.remove("sharded/shard-00002-model-00001-of-00002.safetensors");
    assert_eq!(
        why_broken(judge_sharded(&without, "sharded")),
        "the shards hold 16 of the 32 elements of tensor 0_bias: the file of a rank is missing"
    );
}

#[test]
fn shards_without_the_final_files_show_less() {
    let whole = Files::of(&Fixture::unpack("dcp-hf-storage")).below("step-10/sharded");
    assert!(holds_shards(&whole.tree(), ""));
    assert_eq!(judge_sharded(&whole, ""), Sound);
    let without = |ending: &str| {
        let mut files = whole.clone();
        files.0.retain(|path, _| !path.contains(ending));
        judge_sharded(&files, "")
    };
    assert_eq!(
        why_broken(without("model-00001-of")),
        "model-00001-of-00002.safetensors is missing: no rank has a shard of it"
    );
    assert_eq!(
        without("shard-00001"),
        Unknown { why: "shard-00001 is missing: that rank had nothing to write, or was cut off".to_owned() }
    );
    // No file shows that there was a second rank.
    assert_eq!(without("shard-00002"), Sound);
}

proptest! {
    #[test]
    fn arbitrary_indexes_do_no_harm(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        map in r#"\{("[a-z/.0-9{}-]{0,12}":"[a-z/.0-9{}-]{0,20}(-1-of-[0-9]{1,20})?",?){0,5}\}"#,
    ) {
        let mut files = indexed(&map);
        judge(&files);
        files.0.insert(INDEX.to_owned(), bytes);
        judge(&files);
    }
}
