//! Files that are valid in their formats, each with bytes of its own.

use std::path::Path;
use std::process::Command;

/// Returns what `torch.save` writes for a text: an uncompressed archive.
pub(super) fn torch(text: &str) -> Vec<u8> {
    let mut pickle = vec![0x80, 2, b'X'];
    pickle.extend(length(text.len()).to_le_bytes());
    pickle.extend(text.as_bytes());
    pickle.push(b'.');
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    let records: [(&str, &[u8]); 3] = [
        ("archive/data.pkl", &pickle),
        ("archive/byteorder", b"little"),
        ("archive/version", b"3\n"),
    ];
    for (name, body) in records {
        let offset = length(archive.len());
        // From the required version to the length of the extra field: equal in both headers.
        let mut facts = vec![0; 10];
        facts.extend(crc32(body).to_le_bytes());
        facts.extend(length(body.len()).to_le_bytes().repeat(2));
        facts.extend([u8::try_from(name.len()).unwrap(), 0, 0, 0]);
        archive.extend(b"PK\x03\x04");
        archive.extend(&facts);
        archive.extend(name.as_bytes());
        archive.extend(body);
        directory.extend(b"PK\x01\x02\0\0");
        directory.extend(&facts);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let start = length(archive.len());
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0\x03\0\x03\0");
    archive.extend(length(directory.len()).to_le_bytes());
    archive.extend(start.to_le_bytes());
    archive.extend([0, 0]);
    archive
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

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap()
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
