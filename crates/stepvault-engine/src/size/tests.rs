use std::fs;
use std::time::{Duration, SystemTime};

use stepvault_formats::find::FindOptions;
use stepvault_formats::profile::ProfileSet;

use super::*;

fn measured_at(path: &Path) -> Result<Measured> {
    let profiles = ProfileSet::default();
    let request = InspectRequest {
        profiles: &profiles,
        profile: None,
        reads_best: false,
        deep: None,
        options: FindOptions::default(),
    };
    // Late enough for every file to have been unchanged for long.
    let tomorrow = Timestamp::from(SystemTime::now() + Duration::from_hours(24));
    measure(path, &request, tomorrow)
}

/// Returns a safetensors file with one tensor of so many bytes.
fn weights(data_bytes: usize) -> Vec<u8> {
    let header =
        format!(r#"{{"w":{{"dtype":"U8","shape":[{data_bytes}],"data_offsets":[0,{data_bytes}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![7; data_bytes]);
    bytes
}

#[test]
fn a_step_a_file_and_a_directory_of_steps() {
    let place = tempfile::tempdir().unwrap();
    for (step, bytes) in [("step_9", 10), ("step_10", 500)] {
        let directory = place.path().join("checkpoints").join(step);
        fs::create_dir_all(directory.join("inner")).unwrap();
        fs::write(directory.join("inner/model.safetensors"), weights(bytes)).unwrap();
        fs::write(directory.join("state.bin"), "12345").unwrap();
    }
    let file_bytes = weights(500).len() as u64;
    let newest = measured_at(&place.path().join("checkpoints")).unwrap();
    assert_eq!(newest.chosen.as_deref(), Some("step_10"));
    assert_eq!((newest.bytes, newest.files, newest.directories), (file_bytes + 5, 2, 2));
    assert_eq!(newest.told[0].path, "step_10/inner/model.safetensors");
    let step = measured_at(&place.path().join("checkpoints/step_10")).unwrap();
    assert_eq!(step.chosen, None);
    assert_eq!((step.bytes, step.files, step.directories), (file_bytes + 5, 2, 2));
    let file = measured_at(&place.path().join("checkpoints/step_9/state.bin")).unwrap();
    assert_eq!((file.bytes, file.files, file.directories), (5, 1, 0));
    assert!(file.told.is_empty());
}

#[test]
fn a_step_that_is_not_complete_is_measured_with_a_doubt() {
    let place = tempfile::tempdir().unwrap();
    let step = place.path().join("checkpoints/step_10");
    fs::create_dir_all(&step).unwrap();
    fs::write(step.join("model.safetensors"), weights(50)).unwrap();
    assert_eq!(measured_at(&step).unwrap().doubts, Vec::<String>::new());
    let whole = weights(50);
    fs::write(step.join("model.safetensors"), &whole[..whole.len() - 20]).unwrap();
    for path in [&step, &place.path().join("checkpoints")] {
        let measured = measured_at(path).unwrap();
        assert_eq!(measured.bytes, whole.len() as u64 - 20);
        assert!(measured.doubts.iter().any(|doubt| doubt.contains("the save was cut off")), "{measured:?}");
    }
}

#[test]
fn an_index_stands_for_its_files() {
    let place = tempfile::tempdir().unwrap();
    let index =
        r#"{"metadata":{"total_size":150},"weight_map":{"w":"m-1.safetensors","v":"m-2.safetensors"}}"#;
    fs::write(place.path().join("model.safetensors.index.json"), index).unwrap();
    fs::write(place.path().join("m-1.safetensors"), weights(100)).unwrap();
    fs::write(place.path().join("other.bin"), "x").unwrap();
    let measured = measured_at(&place.path().join("model.safetensors.index.json")).unwrap();
    assert_eq!((measured.files, measured.told.len()), (2, 1));
    assert_eq!(measured.bytes, (index.len() + weights(100).len()) as u64);
    let missing: Vec<_> = measured.told[0]
        .files
        .iter()
        .filter(|file| file.real_bytes.is_none())
        .map(|file| file.path.as_str())
        .collect();
    assert_eq!(missing, ["m-2.safetensors"]);
}

#[test]
fn a_header_that_is_none_is_told() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    fs::write(&path, "not at all").unwrap();
    let error = measured_at(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().starts_with("cannot determine the size: "), "{error}");
    // As a part of a step it is reported by name, and the rest counts.
    let step = measured_at(place.path()).unwrap();
    assert_eq!((step.bytes, step.unread.len()), (10, 1));
    assert_eq!(measured_at(&place.path().join("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
}
