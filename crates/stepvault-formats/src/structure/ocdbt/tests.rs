//! Databases that no available writer produces: several levels, numbered manifests, hostile references.

use std::collections::BTreeMap;

use stepvault_core::digest::Crc32c;

use super::{Arrays, check, read};
use crate::soundness::Fault;
use crate::structure::tests::Files;

/// The result of the check of a database.
trait Said {
    fn read(&self) -> Result<Arrays, Fault>;
    fn why(&self) -> String;
}

impl Said for Files {
    fn read(&self) -> Result<Arrays, Fault> {
        read(&self.tree(), "", self)
    }

    fn why(&self) -> String {
        check(&self.tree(), "", self).map_or_else(|fault| fault.to_string(), |()| "sound".to_owned())
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(value & 0x7f).unwrap();
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

fn varints(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    values.into_iter().flat_map(varint).collect()
}

/// Returns a frame around an uncompressed body.
fn frame(magic: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_be_bytes().to_vec();
    bytes.extend((body.len() as u64 + 18).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(body);
    let checksum = Crc32c::of(&bytes).0;
    bytes.extend(checksum.to_le_bytes());
    bytes
}

fn files_table(path: &str) -> Vec<u8> {
    let mut bytes = varints([1, path.len() as u64, 0]);
    bytes.extend(path.as_bytes());
    bytes
}

/// The location of a node, and the statistics below it: keys, bytes of nodes, bytes of values.
#[derive(Clone, Copy)]
struct Reference {
    offset: u64,
    length: u64,
    statistics: [u64; 3],
}

fn manifest(kind: u8, height: u8, root: Option<(&str, Reference)>) -> Vec<u8> {
    let mut body = vec![7; 16];
    body.push(kind);
    body.extend(varints([100, 1 << 20]));
    body.extend([4, 0]);
    if let Some((path, root)) = root {
        body.extend(files_table(path));
        body.extend(varints([1, 1]));
        body.push(height);
        body.extend(varints([0, root.offset, root.length]));
        body.extend(varints(root.statistics));
        body.extend([0; 8]);
        body.push(0);
    }
    frame(0x0cdb_3a2a, &body)
}

/// Returns a leaf with inline values.
fn leaf(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(files_table("d/1"));
    body.extend(varint(entries.len() as u64));
    body.extend(vec![0; entries.len() - 1]);
    body.extend(varints(entries.iter().map(|(key, _)| key.len() as u64)));
    body.extend(entries.iter().flat_map(|(key, _)| key.bytes()));
    body.extend(varints(entries.iter().map(|(_, value)| value.len() as u64)));
    body.extend(vec![0; entries.len()]);
    body.extend(entries.iter().flat_map(|(_, value)| value.bytes()));
    frame(0x0cdb_20de, &body)
}

/// Returns an inner node: for each child, its smallest key and the length of the prefix that all its keys share.
fn interior(height: u8, children: &[(&str, u64, Reference)]) -> Vec<u8> {
    let mut body = vec![height];
    body.extend(files_table("d/1"));
    body.extend(varint(children.len() as u64));
    body.extend(vec![0; children.len() - 1]);
    body.extend(varints(children.iter().map(|(key, _, _)| key.len() as u64)));
    body.extend(varints(children.iter().map(|(_, prefix, _)| *prefix)));
    body.extend(children.iter().flat_map(|(key, _, _)| key.bytes()));
    body.extend(vec![0; children.len()]);
    body.extend(varints(children.iter().map(|(_, _, child)| child.offset)));
    body.extend(varints(children.iter().map(|(_, _, child)| child.length)));
    for column in 0..3 {
        body.extend(varints(children.iter().map(|(_, _, child)| child.statistics[column])));
    }
    frame(0x0cdb_20de, &body)
}

/// Appends a node to the file and returns its reference.
fn place(file: &mut Vec<u8>, node: &[u8], keys: u64, below_bytes: u64) -> Reference {
    let offset = file.len() as u64;
    file.extend(node);
    Reference { offset, length: node.len() as u64, statistics: [keys, below_bytes + node.len() as u64, 0] }
}

const DESCRIPTION: &str = r#"{"zarr_format":2,"shape":[2],"chunks":[1],"dtype":"|u1","compressor":null}"#;

fn two_leaves(file: &mut Vec<u8>) -> [Reference; 2] {
    let first = leaf(&[(".zarray", DESCRIPTION), ("0", "x"), ("1", "y")]);
    let second = leaf(&[("b/.zarray", DESCRIPTION), ("b/0", "x")]);
    [place(file, &first, 3, 0), place(file, &second, 2, 0)]
}

fn database(root: Reference, height: u8, file: Vec<u8>) -> Files {
    let manifest = manifest(0, height, Some(("d/1", root)));
    Files(BTreeMap::from([("manifest.ocdbt".to_owned(), manifest), ("d/1".to_owned(), file)]))
}

/// Returns two leaves under a root, in which all keys of the first child begin with `a/`.
fn two_levels(change: impl FnOnce(&mut [(&str, u64, Reference); 2])) -> Files {
    let mut file = Vec::new();
    let [first, second] = two_leaves(&mut file);
    let mut children = [("a/.zarray", 2, first), ("b/", 0, second)];
    let below_bytes = first.length + second.length;
    change(&mut children);
    let keys = children.iter().map(|(_, _, child)| child.statistics[0]).sum();
    let root = place(&mut file, &interior(1, &children), keys, below_bytes);
    database(root, 1, file)
}

#[test]
fn keys_are_put_together_over_levels() {
    let arrays = two_levels(|_| {}).read().unwrap();
    let seen: Vec<_> = arrays.iter().map(|(name, array)| (name, array.chunks)).collect();
    assert_eq!(seen, [("a", 2), ("b", 1)]);
    assert_eq!(
        arrays.check_chunks().unwrap_err().to_string(),
        "manifest.ocdbt holds 1 of the 2 chunks of the array b: part of the save is missing"
    );
}

#[test]
fn parents_and_children_agree() {
    assert_eq!(
        two_levels(|children| children[0].2.statistics[0] = 4).why(),
        "the index node at byte 0 of d/1 holds 3 keys, but the node that refers to it states 4"
    );
    assert_eq!(
        two_levels(|children| {
            children[0].2.statistics[1] += 1;
            children[1].2.statistics[1] -= 1;
        })
        .why(),
        "the index node at byte 0 of d/1 holds sizes other than those stated by the node that refers to it"
    );
    assert!(
        two_levels(|children| children[1].0 = "b/1").why().ends_with("is damaged: its keys are out of order")
    );
    assert!(
        two_levels(|children| children[0].1 = 10)
            .why()
            .ends_with("is damaged: the prefix of a child's keys is longer than its first key")
    );
    let cut = two_levels(|children| children[1].2.length += 4096).why();
    assert!(cut.ends_with(": the file was cut off"), "{cut}");
}

#[test]
fn a_node_cannot_be_below_itself() {
    let mut file = Vec::new();
    let itself = Reference { offset: 0, length: 0, statistics: [1, 1, 0] };
    let length = interior(1, &[("a", 0, itself)]).len() as u64;
    let root = place(&mut file, &interior(1, &[("a", 0, Reference { length, ..itself })]), 1, 1);
    assert_eq!(
        database(root, 1, file).why(),
        "the index node at byte 0 of d/1 is on level 1 instead of level 0"
    );
}

#[test]
fn nodes_that_are_shared_again_and_again_are_not_followed_for_ever() {
    // Sixteen levels with two references each to the same node below: 65536 paths to one leaf.
    let mut file = Vec::new();
    let text = "x".repeat(4096);
    let mut below = place(&mut file, &leaf(&[("0", &text)]), 1, 0);
    for height in 1..=16 {
        let children = [("a", 1, below), ("b", 1, below)];
        let [keys, bytes, _] = below.statistics;
        let node = interior(height, &children);
        below = place(&mut file, &node, keys * 2, bytes * 2);
    }
    let why = database(below, 16, file).why();
    assert!(why.ends_with("decompress to more than the limit"), "{why}");
}

#[test]
fn an_empty_database_is_sound() {
    let missing = Reference { offset: u64::MAX, length: u64::MAX, statistics: [0; 3] };
    assert_eq!(database(missing, 0, Vec::new()).why(), "sound");
    let keys = Reference { statistics: [1, 0, 0], ..missing };
    assert_eq!(
        database(keys, 0, Vec::new()).why(),
        "manifest.ocdbt is damaged: its newest version has keys but no tree"
    );
}

#[test]
fn numbered_manifests_are_followed() {
    let mut files = two_levels(|_| {});
    let single = files.0.insert("manifest.ocdbt".to_owned(), manifest(1, 0, None)).unwrap();
    assert_eq!(
        files.why(),
        "manifest.ocdbt keeps its versions in files named manifest. and a number, but no such file exists"
    );
    files.0.insert("manifest.0000000000000001".to_owned(), vec![0; 40]);
    files.0.insert("manifest.000000000000000a".to_owned(), single);
    assert_eq!(files.why(), "sound");
    files.0.remove("manifest.000000000000000a");
    assert_eq!(
        files.why(),
        "manifest.0000000000000001 does not begin with its magic number: it was overwritten with other bytes"
    );
}

#[test]
fn what_is_not_known_is_not_called_broken() {
    let reframed = |version: u8, compression: u8| {
        let mut bytes = manifest(1, 0, None);
        bytes.truncate(bytes.len() - 4);
        bytes[12] = version;
        bytes[13] = compression;
        let checksum = Crc32c::of(&bytes).0;
        bytes.extend(checksum.to_le_bytes());
        Files(BTreeMap::from([("manifest.ocdbt".to_owned(), bytes)])).read()
    };
    assert!(matches!(reframed(1, 0), Err(Fault::Unknown(_))));
    assert!(matches!(reframed(0, 2), Err(Fault::Unknown(_))));
    assert!(matches!(reframed(0, 1), Err(Fault::Broken { .. })));
    let kind = Files(BTreeMap::from([("manifest.ocdbt".to_owned(), manifest(2, 0, None))]));
    assert!(matches!(kind.read(), Err(Fault::Unknown(_))));
}

#[test]
fn a_manifest_that_decompresses_without_end_is_not_followed() {
    // Two thousand runs of 128 KiB, each in four bytes.
    let mut body = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
    for _ in 0..2000 {
        body.extend([2, 0, 0x10, b'x']);
    }
    let mut bytes = frame(0x0cdb_3a2a, &body);
    bytes.truncate(bytes.len() - 4);
    bytes[13] = 1;
    let checksum = Crc32c::of(&bytes).0;
    bytes.extend(checksum.to_le_bytes());
    let files = Files(BTreeMap::from([("manifest.ocdbt".to_owned(), bytes)]));
    let fault = files.read().unwrap_err();
    assert!(matches!(fault, Fault::Unknown(_)), "{fault}");
    assert!(fault.to_string().starts_with("manifest.ocdbt decompresses to more than"), "{fault}");
}

#[test]
fn a_missing_manifest_is_named() {
    assert_eq!(
        Files(BTreeMap::new()).why(),
        "manifest.ocdbt is missing, and nothing in the directory can be found without it"
    );
}
