use super::check;
use crate::structure::tests::Files;

fn why(entries: &[(&str, &str)]) -> String {
    let entries = entries.iter();
    let files = entries.map(|(path, text)| (format!("40/{path}"), text.as_bytes().to_vec()));
    let files = Files(files.collect());
    check(&files.tree(), "40", &files).map_or_else(|fault| fault.to_string(), |()| "sound".to_owned())
}

const STEP: &str =
    r#"{"item_handlers": {"state": "x.PyTreeCheckpointHandler"}, "commit_timestamp_nsecs": 7}"#;
const STRUCTURE: &str = r#"{"tree_metadata": {
    "w": {"key_metadata": [{"key": "w"}], "value_metadata": {"value_type": "jax.Array"}},
    "s": {"key_metadata": [{"key": "s"}], "value_metadata": {"value_type": "string"}}},
    "use_ocdbt": false, "store_array_data_equal_to_fill_value": true}"#;
const ARRAY: &str = r#"{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "compressor": null}"#;
const WHOLE: [(&str, &str); 6] = [
    ("_CHECKPOINT_METADATA", STEP),
    ("state/_METADATA", STRUCTURE),
    ("state/_strings.json", r#"{"s": "text"}"#),
    ("state/w/.zarray", ARRAY),
    ("state/w/0", "ab"),
    ("state/w/1", "cd"),
];

fn without(path: &str) -> String {
    let rest: Vec<_> = WHOLE.into_iter().filter(|(other, _)| *other != path).collect();
    assert_eq!(rest.len(), WHOLE.len() - 1);
    why(&rest)
}

fn with(path: &str, text: &str) -> String {
    let rest = WHOLE.into_iter().filter(|(other, _)| *other != path);
    why(&rest.chain([(path, text)]).collect::<Vec<_>>())
}

#[test]
fn a_whole_step_is_sound() {
    assert_eq!(why(&WHOLE), "sound");
}

#[test]
fn each_piece_is_missed() {
    for (path, expected) in [
        (
            "state/_METADATA",
            "40/state/_METADATA is missing, and the structure of the arrays in 40/state is unknown without it",
        ),
        ("state/_strings.json", "40/state/_strings.json is missing"),
        ("state/w/.zarray", "40/state holds no array, but 40/state/_METADATA names 1"),
        ("state/w/1", "40/state/w holds 1 of the 2 chunks of the array: part of the save is missing"),
    ] {
        assert_eq!(without(path), expected);
    }
    // Older versions have none.
    assert_eq!(without("_CHECKPOINT_METADATA"), "sound");
}

#[test]
fn each_piece_must_be_whole() {
    for (path, text, expected) in [
        (
            "_CHECKPOINT_METADATA",
            r#"{"item_handlers": {"state": "x"}, "commit_timestamp_nsecs": null}"#,
            "40/_CHECKPOINT_METADATA has no commit time: the save was not finished",
        ),
        (
            "_CHECKPOINT_METADATA",
            r#"{"item_handlers": {"params": "x"}, "commit_timestamp_nsecs": 7}"#,
            "40/_CHECKPOINT_METADATA names the item params, but no directory of that name exists",
        ),
        ("_CHECKPOINT_METADATA", "", "40/_CHECKPOINT_METADATA is empty: it was never written"),
        (
            "_CHECKPOINT_METADATA",
            "{",
            "40/_CHECKPOINT_METADATA of 1 bytes is not the expected JSON (EOF while parsing an object at line 1 \
             column 1)",
        ),
        (
            "state/_strings.json",
            "{}",
            "40/state/_METADATA names s, but 40/state/_strings.json does not have it: part of the save is missing",
        ),
        ("state/w/1", "", "40/state/w/1: the chunk is empty: it was never written"),
        (
            "state/w/1",
            "c",
            "40/state/w/1: the chunk is 1 bytes instead of 2: it was cut off or belongs to another array",
        ),
        ("state/w/.zarray", "[]", "40/state/w/.zarray does not describe an array: its zarr_format is not 2"),
        (
            "state.orbax-checkpoint-tmp/x",
            "",
            "state.orbax-checkpoint-tmp was never renamed to its final name: the save was not finished",
        ),
        (
            "state/checkpoint",
            "\u{1}\u{1}",
            "40/state/checkpoint, at byte 1: 1 bytes follow the end of the value",
        ),
    ] {
        assert_eq!(with(path, text), expected);
    }
}

#[test]
fn processes_are_counted() {
    let iterators = |names: &[&str]| {
        let paths: Vec<_> = names.iter().map(|name| format!("iter/{name}")).collect();
        let more = paths.iter().map(|path| (path.as_str(), "{}"));
        why(&WHOLE.into_iter().chain(more).collect::<Vec<_>>())
    };
    assert_eq!(iterators(&["process_0-of-2.json", "process_1-of-2.json"]), "sound");
    assert_eq!(iterators(&["process_0.json"]), "sound");
    assert_eq!(
        iterators(&["process_0-of-3.json", "process_2-of-3.json"]),
        "40/iter has no file of process 1 of 3: part of the save is missing"
    );
    assert_eq!(
        iterators(&["process_0-of-2.json", "process_1-of-3.json"]),
        "40/iter/process_1-of-3.json gives 3 processes, but another file in its directory gives a different number: \
         two saves are mixed"
    );
    assert_eq!(
        with("state/array_metadatas/process_1", "{}"),
        "40/state/array_metadatas has a file of process 1 but none of process 0: it was lost, or that process had \
         nothing to write"
    );
    assert_eq!(with("state/array_metadatas/process_0", "{}"), "sound");
}

#[test]
fn an_empty_step_holds_nothing() {
    assert_eq!(why(&[("commit_success.txt", "")]), "40 contains no items: nothing was saved in it");
}

#[test]
fn items_of_other_kinds() {
    let step = r#"{"item_handlers": {"data": "x.JsonCheckpointHandler", "own": "y.CallbackHandler"}}"#;
    let own = ("own/any", "");
    assert_eq!(why(&[("_CHECKPOINT_METADATA", step), ("data/metadata", "{}"), own]), "sound");
    assert_eq!(
        why(&[("_CHECKPOINT_METADATA", step), ("data/other", "{}"), own]),
        "40/data/metadata is missing"
    );
}
