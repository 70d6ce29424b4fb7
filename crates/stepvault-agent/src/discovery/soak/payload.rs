//! Files that are valid in their formats, each with bytes of its own.

use std::path::Path;
use std::process::Command;

/// Returns what `torch.save` writes for a text: an uncompressed archive.
pub(super) fn torch(text: &str) -> Vec<u8> {
    let mut pickle = vec![0x80, 2, b'X'];
    pickle.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
    pickle.extend(text.as_bytes());
    pickle.push(b'.');
    stepvault_testkit::torch::archive(&pickle)
}

/// Returns one tensor with these bytes.
pub(super) fn safetensors(text: &str) -> Vec<u8> {
    let length = text.len();
    let header = format!("{{\"w\":{{\"dtype\":\"U8\",\"shape\":[{length}],\"data_offsets\":[0,{length}]}}}}");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

pub(super) fn json(text: &str) -> Vec<u8> {
    format!("{{\"state\": \"{text}\"}}").into_bytes()
}

/// Returns the files of a real step of two ranks, `.metadata` last.
pub(super) fn distributed() -> Vec<(String, Vec<u8>)> {
    let place = tempfile::tempdir().unwrap();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/dcp-2rank.tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--no-same-owner", "--file"]).arg(archive);
    let output = tar.arg("--directory").arg(place.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let step = place.path().join("dcp-2rank/step-100");
    let file = |name: &str| (name.to_owned(), std::fs::read(step.join(name)).unwrap());
    ["__0_0.distcp", "__1_0.distcp", ".metadata"].map(file).into()
}
