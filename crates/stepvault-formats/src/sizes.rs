//! The size of a checkpoint, computed from headers alone: from the tables of contents that name files, and from
//! safetensors files, whose headers state their length.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::profile::template::parent_prefix;
use crate::soundness::Fault;
use crate::structure::safetensors::{self, ClaimedSize};
use crate::structure::{dcp, hf_index};
use crate::tree::{OpenFile, Tree};

/// The headers and tables that state how large files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderKind {
    /// The header of a safetensors file.
    Safetensors,
    /// The index of weights in several files.
    #[serde(rename = "hf-index")]
    Index,
    /// DCP's table of contents.
    Dcp,
}

impl fmt::Display for HeaderKind {
    /// Writes its name in documents.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(out)
    }
}

impl HeaderKind {
    /// Returns the kind of a file with this name.
    pub fn of_name(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        if hf_index::is_index(name) {
            return Some(Self::Index);
        }
        if name.rsplit_once('.').is_some_and(|(_, ending)| ending == "safetensors") {
            return Some(Self::Safetensors);
        }
        let rank = name.strip_prefix("__").and_then(|rest| rest.strip_suffix(".metadata"));
        let is_rank =
            rank.is_some_and(|rank| !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit()));
        (name == ".metadata" || is_rank).then_some(Self::Dcp)
    }
}

/// A file that a header describes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HeaderFile {
    /// Its path, even if it is missing.
    pub path: String,
    /// Its complete size; null if no existing header gives it.
    pub expected_bytes: Option<u64>,
    /// The bytes of its tensors, if its own header states them.
    #[serde(skip)]
    pub payload_bytes: Option<u64>,
    /// Its size; null if it is missing.
    #[serde(rename = "bytes")]
    pub real_bytes: Option<u64>,
}

/// A header and its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HeaderSizes {
    /// Its path.
    pub path: String,
    /// `safetensors`, `hf-index` or `dcp`.
    #[schemars(with = "String")]
    pub kind: HeaderKind,
    /// Number of tensors; for `dcp`, number of tensor shards and other items.
    pub entries: u64,
    /// Bytes of the tensors or items by the header; null if the header does not give them.
    pub payload_bytes: Option<u64>,
    /// The files that it describes.
    pub files: Vec<HeaderFile>,
}

/// Returns what all headers in a tree state. Files that an index names are listed there and not a second time. Files
/// that cannot be read as their names require are left out, with the reason.
pub fn header_sizes(tree: &Tree, files: &dyn OpenFile) -> (Vec<HeaderSizes>, Vec<(String, Fault)>) {
    let mut headers: Vec<(HeaderKind, &str)> =
        tree.files().filter_map(|(path, _)| Some((HeaderKind::of_name(path)?, path))).collect();
    // Tables come before the files that they name.
    headers.sort_unstable_by(|one, other| other.cmp(one));
    let (mut found, mut unread): (Vec<HeaderSizes>, Vec<_>) = (Vec::new(), Vec::new());
    let mut named: BTreeSet<String> = BTreeSet::new();
    for (kind, path) in headers {
        if named.contains(path) {
            continue;
        }
        match header_sizes_of(tree, kind, path, files) {
            Ok(told) => {
                named.extend(told.files.iter().map(|file| file.path.clone()));
                found.push(told);
            }
            Err(fault) => unread.push((path.to_owned(), fault)),
        }
    }
    found.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    (found, unread)
}

/// Returns what one header states.
///
/// # Errors
/// If the file does not have the format of its name, or cannot be read.
pub fn header_sizes_of(
    tree: &Tree,
    kind: HeaderKind,
    path: &str,
    files: &dyn OpenFile,
) -> Result<HeaderSizes, Fault> {
    let source = files.open(path)?;
    let mut told =
        HeaderSizes { path: path.to_owned(), kind, entries: 0, payload_bytes: None, files: Vec::new() };
    match kind {
        HeaderKind::Safetensors => {
            let claimed = safetensors::claimed_size(&*source)?;
            told.entries = claimed.tensors;
            told.payload_bytes = Some(claimed.data_bytes);
            told.files.push(claimed_file(tree, path.to_owned(), claimed));
        }
        HeaderKind::Index => {
            let listed = hf_index::listed(&*source)?;
            told.payload_bytes = listed.total_bytes;
            for (name, tensors) in listed.files {
                told.entries = told.entries.saturating_add(tensors);
                let shard = beside(path, &name);
                told.files.push(match claimed_of_shard(tree, &shard, files)? {
                    Some(claimed) => claimed_file(tree, shard, claimed),
                    None => file(tree, shard, None),
                });
            }
        }
        HeaderKind::Dcp => {
            let mut payload_bytes = 0_u64;
            for claimed in dcp::claimed_files(&*source)? {
                told.entries = told.entries.saturating_add(claimed.items);
                payload_bytes = payload_bytes.saturating_add(claimed.bytes);
                told.files.push(file(tree, beside(path, &claimed.path), Some(claimed.bytes)));
            }
            told.payload_bytes = Some(payload_bytes);
        }
    }
    Ok(told)
}

/// Returns what a shard's own header states, if the shard exists and has one.
fn claimed_of_shard(tree: &Tree, path: &str, files: &dyn OpenFile) -> Result<Option<ClaimedSize>, Fault> {
    if !tree.is_file(path) || HeaderKind::of_name(path) != Some(HeaderKind::Safetensors) {
        return Ok(None);
    }
    match safetensors::claimed_size(&*files.open(path)?) {
        Ok(claimed) => Ok(Some(claimed)),
        // It is broken or too large, so no size is expected.
        Err(Fault::Broken { .. } | Fault::Unknown(_)) => Ok(None),
        Err(fault) => Err(fault),
    }
}

fn file(tree: &Tree, path: String, expected_bytes: Option<u64>) -> HeaderFile {
    let real_bytes = tree.file_size_bytes(&path);
    HeaderFile { path, expected_bytes, payload_bytes: None, real_bytes }
}

fn claimed_file(tree: &Tree, path: String, claimed: ClaimedSize) -> HeaderFile {
    HeaderFile { payload_bytes: Some(claimed.data_bytes), ..file(tree, path, claimed.file_bytes()) }
}

fn beside(table: &str, name: &str) -> String {
    format!("{}{name}", parent_prefix(table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structure::tests::Files;

    /// A safetensors file of one tensor of `data_bytes` bytes.
    fn weights(data_bytes: usize) -> Vec<u8> {
        let header =
            format!(r#"{{"w":{{"dtype":"U8","shape":[{data_bytes}],"data_offsets":[0,{data_bytes}]}}}}"#);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(vec![7; data_bytes]);
        bytes
    }

    fn told_of(files: &[(&str, Vec<u8>)]) -> (Vec<HeaderSizes>, Vec<(String, String)>) {
        let files = Files(files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.clone())).collect());
        let (found, unread) = header_sizes(&files.tree(), &files);
        let unread = unread.into_iter().map(|(path, fault)| (path, fault.to_string()));
        (found, unread.collect())
    }

    #[test]
    fn a_header_says_how_long_its_file_is_even_when_it_is_cut_off() {
        let whole = weights(100);
        let expected = Some(whole.len() as u64);
        for there in [whole.len(), whole.len() - 60] {
            let (found, unread) = told_of(&[("step/model.safetensors", whole[..there].to_vec())]);
            assert!(unread.is_empty(), "{unread:?}");
            assert_eq!(found[0].payload_bytes, Some(100));
            assert_eq!(
                found[0].files,
                [HeaderFile {
                    path: "step/model.safetensors".to_owned(),
                    expected_bytes: expected,
                    payload_bytes: Some(100),
                    real_bytes: Some(there as u64),
                }]
            );
        }
        let (found, unread) = told_of(&[("model.safetensors", whole[..20].to_vec())]);
        assert!(found.is_empty());
        assert!(unread[0].1.contains("the save was cut off"), "{unread:?}");
    }

    #[test]
    fn an_index_tells_of_files_that_are_not_there() {
        let index =
            br#"{"metadata":{"total_size":300},"weight_map":{"w":"m-1.safetensors","v":"m-2.safetensors"}}"#;
        let shard = weights(100);
        let bytes = shard.len() as u64;
        let (found, unread) = told_of(&[
            ("step/model.safetensors.index.json", index.to_vec()),
            ("step/m-1.safetensors", shard),
        ]);
        assert!(unread.is_empty(), "{unread:?}");
        // The shard is listed once.
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].kind, found[0].entries, found[0].payload_bytes),
            (HeaderKind::Index, 2, Some(300))
        );
        let sizes: Vec<_> = found[0]
            .files
            .iter()
            .map(|file| (file.path.as_str(), file.expected_bytes, file.real_bytes))
            .collect();
        assert_eq!(
            sizes,
            [("step/m-1.safetensors", Some(bytes), Some(bytes)), ("step/m-2.safetensors", None, None)]
        );
    }

    #[test]
    fn names_say_what_a_file_is() {
        for (path, kind) in [
            ("a/model.safetensors", Some(HeaderKind::Safetensors)),
            ("model.safetensors.index.json", Some(HeaderKind::Index)),
            ("a/pytorch_model.bin.index.json", Some(HeaderKind::Index)),
            ("a/.metadata", Some(HeaderKind::Dcp)),
            ("a/__3.metadata", Some(HeaderKind::Dcp)),
            ("a/__x.metadata", None),
            ("metadata", None),
            ("model.pt", None),
        ] {
            assert_eq!(HeaderKind::of_name(path), kind, "{path}");
        }
    }
}
