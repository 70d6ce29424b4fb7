//! What the targets share: a checkpoint made of a fuzzer's bytes.

use std::collections::BTreeMap;
use std::io;

use stepvault_core::digest::Crc32c;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::check::check_step;
use stepvault_formats::detect::detect;
use stepvault_formats::find::{FindOptions, find_steps};
use stepvault_formats::profile::ProfileSet;
use stepvault_formats::resume::resumed_by_framework;
use stepvault_formats::soundness::Fault;
use stepvault_formats::tree::ReadAt;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};

/// Files by path.
struct Files(BTreeMap<String, Vec<u8>>);

impl OpenFile for Files {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        Ok(Box::new(self.0.get(path).ok_or(io::ErrorKind::NotFound)?.clone()))
    }
}

/// Checks the bytes as one file.
pub fn file(bytes: &[u8], check: impl Fn(&dyn ReadAt) -> Result<(), Fault>) {
    let _ = check(&bytes.to_vec());
}

/// Checks a directory `s` with files of these names. The first bytes give the length of each; the last takes the
/// rest.
pub fn directory(
    bytes: &[u8],
    names: &[&str],
    check: impl Fn(&Tree, &str, &dyn OpenFile) -> Result<(), Fault>,
) {
    prepared(bytes, names, |_, bytes| bytes, check);
}

/// Checks a directory as [`directory`] does, after it corrects the checksum at the end of each OCDBT manifest or
/// node: none would be checked otherwise.
pub fn directory_with_checksums(
    bytes: &[u8],
    names: &[&str],
    check: impl Fn(&Tree, &str, &dyn OpenFile) -> Result<(), Fault>,
) {
    prepared(bytes, names, |_, bytes| with_checksums(bytes), check);
}

fn prepared(
    bytes: &[u8],
    names: &[&str],
    prepare: impl Fn(&str, Vec<u8>) -> Vec<u8>,
    check: impl Fn(&Tree, &str, &dyn OpenFile) -> Result<(), Fault>,
) {
    let files: BTreeMap<String, Vec<u8>> = pieces(bytes, names.len())
        .zip(names)
        .map(|(piece, name)| (format!("s/{name}"), prepare(name, piece.to_vec())))
        .collect();
    let (tree, files) = checkpoint(files);
    let _ = check(&tree, "s", &files);
}

/// Splits the bytes into `count` pieces. The first two bytes of each give its length; the last takes the rest.
fn pieces(bytes: &[u8], count: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(bytes);
    (1..=count).map_while(move |number| {
        let bytes = rest.take()?;
        if number == count {
            return Some(bytes);
        }
        let (length, more) = bytes.split_first_chunk::<2>()?;
        let (piece, more) = more.split_at(usize::from(u16::from_le_bytes(*length)).min(more.len()));
        rest = Some(more);
        Some(piece)
    })
}

fn checkpoint(files: BTreeMap<String, Vec<u8>>) -> (Tree, Files) {
    let mut entries = BTreeMap::new();
    let mtime = Timestamp::from_seconds(0);
    for (path, bytes) in &files {
        for (end, _) in path.match_indices('/') {
            let kind = EntryKind::Directory;
            entries.insert(path[..end].to_owned(), Entry { kind, mtime });
        }
        let kind = EntryKind::File { size_bytes: bytes.len() as u64, allocated_bytes: None };
        entries.insert(path.clone(), Entry { kind, mtime });
    }
    (Tree::new(entries), Files(files))
}

/// Checks a watched directory, described by one line for each file: its path, a `=`, and its contents. Runs
/// everything that is computed for a directory: its framework, its steps, complete and sound, and the plan of a
/// restore.
pub fn watched(description: &str) {
    let files = description.lines().filter_map(|line| line.split_once('='));
    let files = files
        .filter(|(path, _)| is_path(path))
        .map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()))
        .collect();
    let (tree, files) = checkpoint(files);
    let now = Timestamp::from_seconds(1 << 31);
    for profile in stepvault_formats::profile::builtin() {
        let found = find_steps(profile, &tree, &files, now, &FindOptions::default());
        for step in &found.steps {
            let _ = check_step(step, &tree, &files).is_sound();
        }
    }
    let profiles = ProfileSet::new(Vec::new()).expect("the built-in profiles are right");
    if let Some(detected) = detect(&tree, &files, &profiles) {
        let _ = resumed_by_framework(detected.profile, &tree, &files);
    }
}

/// Returns whether a survey could have found a file under this path.
fn is_path(path: &str) -> bool {
    path.split('/').all(|name| !name.is_empty() && name != "." && name != "..")
}

/// Returns a zip archive of files with these names, stored, with correct offsets and checksums: nothing in it would
/// be checked otherwise.
pub fn archive(bytes: &[u8], names: &[&str]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    let mut count = 0_u16;
    for (piece, name) in pieces(bytes, names.len()).zip(names) {
        let offset = archive.len() as u32;
        let length = piece.len() as u32;
        // Version 2.0, no flags, stored, no date.
        let mut facts = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        facts.extend(rawzip::crc32(piece).to_le_bytes());
        facts.extend(length.to_le_bytes());
        facts.extend(length.to_le_bytes());
        facts.extend((name.len() as u16).to_le_bytes());
        facts.extend([0; 2]);
        archive.extend(b"PK\x03\x04");
        archive.extend(&facts);
        archive.extend(name.as_bytes());
        archive.extend(piece);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&facts);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
        count += 1;
    }
    let count = count.to_le_bytes();
    let offset = archive.len() as u32;
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend(count);
    archive.extend(count);
    archive.extend((directory.len() as u32).to_le_bytes());
    archive.extend(offset.to_le_bytes());
    archive.extend([0; 2]);
    archive
}

/// Corrects lengths and checksums, piece after piece, as far as they go.
fn with_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    let whole = bytes.len();
    let mut start = 0;
    while whole.saturating_sub(start) >= 18 {
        let is_frame = |magic: [u8; 4]| bytes[start..].starts_with(&magic);
        if !is_frame([0x0c, 0xdb, 0x3a, 0x2a]) && !is_frame([0x0c, 0xdb, 0x20, 0xde]) {
            break;
        }
        let stated = u64::from_le_bytes(bytes[start + 4..start + 12].try_into().unwrap_or_default());
        let length = usize::try_from(stated).unwrap_or(usize::MAX).clamp(18, whole - start);
        let end = start + length;
        bytes[start + 4..start + 12].copy_from_slice(&(length as u64).to_le_bytes());
        let checksum = Crc32c::of(&bytes[start..end - 4]).0;
        bytes[end - 4..end].copy_from_slice(&checksum.to_le_bytes());
        start = end;
    }
    bytes
}

/// Returns a table of `LevelDB` around two blocks, with correct handles, checksums and footer. The first two bytes
/// give the length of the first block.
pub fn table(bytes: &[u8]) -> Vec<u8> {
    let (length, rest) = bytes.split_first_chunk::<2>().unwrap_or((&[0, 0], &[]));
    let (data, index) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    let mut table = Vec::new();
    let mut footer = Vec::new();
    for block in [data, b"\0\0\0\0", index] {
        let start = table.len();
        table.extend_from_slice(block);
        table.push(0);
        let masked = Crc32c::of(&table[start..]).0.rotate_right(15).wrapping_add(0xa282_ead8);
        table.extend_from_slice(&masked.to_le_bytes());
        if start >= data.len() + 5 {
            footer.extend(varint(start as u64));
            footer.extend(varint(block.len() as u64));
        }
    }
    footer.resize(40, 0);
    footer.extend_from_slice(&0xdb47_7524_8b80_fb57_u64.to_le_bytes());
    table.extend_from_slice(&footer);
    table
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
