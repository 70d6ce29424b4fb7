//! Reads all data of a step, and compares it with the checksums that its formats carry.
//!
//! Checksums exist in ZIP archives (torch, npz, Keras; also the pieces of a DCP file), in the nodes of OCDBT, in zarr
//! chunks with the codec `crc32c`, in TensorFlow's tables, and in Megatron's `integrity.json`.
//!
//! # Blind spots
//!
//! Everything else is read to its end, which finds a failing disk but no changed byte: safetensors, GGUF, npy, HDF5,
//! pickles, the values of OCDBT, compressed members of ZIP archives, archives that torch wrote without checksums, and
//! zarr chunks of other codecs.

mod span;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use span::{Checksum, Span};

use crate::check::{Check, plan};
use crate::find::FoundStep;
use crate::soundness::{Fault, Finding, read_head};
use crate::structure::kind::{FileKind, HEAD_BYTES, kind_of};
use crate::structure::text::shown;
use crate::structure::{dcp, megatron, ocdbt, tf_bundle, zarr, zip};
use crate::tree::{OpenFile, ReadAt, Tree, Window, joined};

/// Maximum number of damaged pieces of a file that are reported individually.
const MAX_REPORTED: usize = 4;

/// The result of reading a step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeepCheck {
    /// The damaged files, and those that could not be read.
    #[serde(skip)]
    pub findings: Vec<Finding>,
    /// Bytes that match the checksums which their formats carry.
    pub checksummed_bytes: u64,
    /// Bytes that were read and that no checksum covers, by format.
    pub unproved_bytes: BTreeMap<&'static str, u64>,
}

/// Reads all files of a step. `on_bytes` is called with the number of bytes that were read since the last call. At most
/// a megabyte of data is held.
pub fn read_step(step: &FoundStep, tree: &Tree, files: &dyn OpenFile, on_bytes: &dyn Fn(u64)) -> DeepCheck {
    let checksums = Checksums::of(step, tree, files);
    let mut result = DeepCheck::default();
    let members = step.members.iter().map(String::as_str);
    let inside = step.members.iter().flat_map(|member| tree.inside(member));
    let paths: BTreeSet<&str> = members.chain(inside.map(|(path, _)| path)).collect();
    for path in paths.into_iter().filter(|path| tree.is_file(path)) {
        if let Err(error) = read_file(path, &checksums, files, on_bytes, &mut result) {
            result.findings.push(unreadable(path, &error));
        }
    }
    result
}

fn read_file(
    path: &str,
    checksums: &Checksums,
    files: &dyn OpenFile,
    on_bytes: &dyn Fn(u64),
    result: &mut DeepCheck,
) -> io::Result<()> {
    let source = files.open(path)?;
    let (format, spans) = checksums.of_file(path, &*source)?;
    let read = span::read(&*source, spans, on_bytes)?;
    result.checksummed_bytes += read.proved_bytes;
    if read.other_bytes > 0 {
        *result.unproved_bytes.entry(format).or_default() += read.other_bytes;
    }
    let more = read.damaged.len().saturating_sub(MAX_REPORTED);
    let damaged = read.damaged.iter().take(MAX_REPORTED).map(|(offset, what)| {
        let what = shown(what);
        let why = format!("{what} at byte {offset} does not match its checksum: its bytes have changed");
        Finding::broken(path, why)
    });
    result.findings.extend(damaged);
    if more > 0 {
        let why = format!("{more} more pieces do not match their checksums");
        result.findings.push(Finding::broken(path, why));
    }
    Ok(())
}

/// A disk that fails has damaged the file; a file that vanished or belongs to another user may be whole.
fn unreadable(path: &str, error: &io::Error) -> Finding {
    let why = format!("it cannot be read: {error}");
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Finding::unknown(path, why),
        _ => Finding::broken(path, why),
    }
}

/// What is known of a file's checksums from other files.
#[derive(Debug)]
enum Known {
    /// The checksums of its pieces.
    Spans(Vec<Span>),
    /// The ranges of the archives in it: offset and length.
    Archives(Vec<(u64, u64)>),
}

/// The checksums of a step, as far as other files than the checked one state them.
#[derive(Debug, Default)]
struct Checksums(BTreeMap<String, (&'static str, Known)>);

impl Checksums {
    /// Collects the checksums of a step. A table that cannot be read states none: the structural checks report it.
    fn of(step: &FoundStep, tree: &Tree, files: &dyn OpenFile) -> Self {
        let mut checksums = Self::default();
        for check in plan(step, tree) {
            // What cannot be read states nothing.
            let _ = match &check {
                Check::Dcp(directory) | Check::DcpPart(directory) => {
                    checksums.add_dcp(directory, tree, files)
                }
                Check::Orbax(directory) => checksums.add_arrays(directory, tree, files),
                Check::Ocdbt(directory) => {
                    checksums.add_all("OCDBT", ocdbt::checksums(tree, directory, files))
                }
                Check::Zarr(directory) => checksums.add_array(directory, tree, files),
                Check::TfBundle(prefix) => {
                    checksums.add_all("TensorFlow", tf_bundle::checksums(tree, prefix, files))
                }
                Check::Megatron(directory) => checksums.add_digests(directory, tree, files),
                Check::File(_) | Check::DeepSpeed(_) | Check::HfIndex(_) | Check::HfShards(_) => Ok(()),
            };
        }
        checksums
    }

    /// Returns the format of a file, and the pieces of it that have checksums.
    fn of_file(&self, path: &str, source: &dyn ReadAt) -> io::Result<(&'static str, Vec<Span>)> {
        match self.0.get(path) {
            Some((format, Known::Spans(spans))) => Ok((format, spans.clone())),
            Some((format, Known::Archives(ranges))) => Ok((format, archives(source, ranges)?)),
            None => by_kind(path, source),
        }
    }

    fn add_spans(&mut self, format: &'static str, path: String, spans: impl IntoIterator<Item = Span>) {
        let known = self.0.entry(path).or_insert((format, Known::Spans(Vec::new())));
        if let Known::Spans(known) = &mut known.1 {
            known.extend(spans);
        }
    }

    fn add_dcp(&mut self, directory: &str, tree: &Tree, files: &dyn OpenFile) -> Result<(), Fault> {
        let names = tree.file_names(directory);
        for name in names.filter(|name| name.ends_with(".metadata")) {
            let path = joined(directory, name);
            for item in dcp::read_metadata(&*files.open(&path)?)? {
                let path = joined(directory, &item.relative_path);
                let known = self.0.entry(path).or_insert(("DCP", Known::Archives(Vec::new())));
                if let Known::Archives(ranges) = &mut known.1
                    && !item.transformed
                {
                    ranges.push((item.offset_bytes, item.length_bytes));
                }
            }
        }
        Ok(())
    }

    /// Adds the databases and arrays below a directory.
    fn add_arrays(&mut self, directory: &str, tree: &Tree, files: &dyn OpenFile) -> Result<(), Fault> {
        let inside = tree.inside(directory).map(|(path, _)| path);
        for directory in inside.filter(|path| tree.is_directory(path)) {
            if tree.is_file(&joined(directory, ocdbt::MANIFEST_NAME)) {
                // A process's own database may name files that were merged since.
                let _ = self.add_all("OCDBT", ocdbt::checksums(tree, directory, files));
            } else if zarr::is_array(tree, directory) {
                self.add_array(directory, tree, files)?;
            }
        }
        Ok(())
    }

    fn add_all(
        &mut self,
        format: &'static str,
        spans: Result<Vec<(String, Span)>, Fault>,
    ) -> Result<(), Fault> {
        for (path, span) in spans? {
            self.add_spans(format, path, [span]);
        }
        Ok(())
    }

    fn add_array(&mut self, directory: &str, tree: &Tree, files: &dyn OpenFile) -> Result<(), Fault> {
        for path in zarr::checksummed_chunks(tree, directory, files)? {
            let span = zarr::chunk_span(&*files.open(&path)?)?;
            self.add_spans("zarr", path, span);
        }
        Ok(())
    }

    fn add_digests(&mut self, directory: &str, tree: &Tree, files: &dyn OpenFile) -> Result<(), Fault> {
        for (name, digest) in megatron::listed_digests(tree, directory, files)? {
            let path = joined(directory, &name);
            let Some(size_bytes) = tree.file_size_bytes(&path) else {
                continue;
            };
            let span = Span::new(0..size_bytes, Checksum::Sha256(digest), "the file");
            // It covers what is known of its pieces.
            self.0.insert(path, ("Megatron", Known::Spans(vec![span])));
        }
        Ok(())
    }
}

/// Returns the format of a file from its name and its first bytes, and the pieces of it that have checksums.
fn by_kind(path: &str, source: &dyn ReadAt) -> io::Result<(&'static str, Vec<Span>)> {
    let kind = kind_of(path, &read_head(source, HEAD_BYTES)?);
    let is_archive = matches!(kind, FileKind::TorchZip | FileKind::Npz | FileKind::Zip);
    let ranges: &[_] = if is_archive { &[(0, source.size_bytes())] } else { &[] };
    Ok((kind.noun(), archives(source, ranges)?))
}

/// Returns the checksummed members of the archives in a file. What is no archive has none.
fn archives(source: &dyn ReadAt, ranges: &[(u64, u64)]) -> io::Result<Vec<Span>> {
    let mut spans = Vec::new();
    for (start, length_bytes) in ranges {
        let Some(window) = Window::new(source, *start, *length_bytes) else {
            continue;
        };
        let records = match zip::read(&window) {
            Ok(records) => records,
            Err(Fault::Read(error)) => return Err(error),
            Err(_) => continue,
        };
        // torch writes 0 for all members when checksums are turned off.
        let stored = records.iter().filter(|record| record.is_stored() && record.crc32 != 0);
        spans.extend(stored.map(|record| {
            let start = start.saturating_add(record.data_offset);
            let end = start.saturating_add(record.size_bytes);
            Span::new(start..end, Checksum::Crc32(record.crc32), record.name.as_str())
        }));
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use stepvault_core::digest::{Crc32c, Sha256Digest};
    use stepvault_core::timestamp::Timestamp;

    use super::*;
    use crate::find::{Completeness, QuietRule};
    use crate::structure::tests::Files;

    /// Returns the damaged files, the checksummed bytes and the others.
    fn deep(files: &Files) -> (Vec<String>, u64, u64) {
        let tree = files.tree();
        let step = FoundStep {
            path: "step".to_owned(),
            members: vec!["step".to_owned()],
            series: "steps".to_owned(),
            step: Some(1),
            complete: Completeness::Complete { proof: String::new(), quiet_rule: QuietRule::Always },
            ranks: None,
            bytes: 0,
            files: 0,
            written_at: Timestamp::default(),
            content: 0,
            resumable: true,
            rewritten: false,
        };
        let result = read_step(&step, &tree, files, &|_| {});
        let paths = result.findings.into_iter().map(|finding| finding.path);
        let other_bytes = result.unproved_bytes.values().sum();
        (paths.collect(), result.checksummed_bytes, other_bytes)
    }

    fn with(entries: &[(&str, &[u8])]) -> Files {
        let entries = entries.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec()));
        Files(entries.collect())
    }

    #[test]
    fn a_zarr_chunk_that_ends_with_a_checksum_is_compared_with_it() {
        let array = br#"{"zarr_format":3,"node_type":"array","shape":[8],"data_type":"uint8",
            "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4]}},
            "chunk_key_encoding":{"name":"default"},"codecs":[{"name":"bytes"},{"name":"crc32c"}]}"#;
        let mut chunk = b"data".to_vec();
        chunk.extend(Crc32c::of(b"data").0.to_le_bytes());
        let mut changed = chunk.clone();
        changed[2] ^= 1;
        let other_bytes = array.len() as u64 + 4 + 4;
        let files = with(&[("step/w/zarr.json", array), ("step/w/c/0", &chunk), ("step/w/c/1", &chunk)]);
        assert_eq!(deep(&files), (Vec::new(), 8, other_bytes));
        let files = with(&[("step/w/zarr.json", array), ("step/w/c/0", &chunk), ("step/w/c/1", &changed)]);
        assert_eq!(deep(&files), (vec!["step/w/c/1".to_owned()], 4, other_bytes));
    }

    #[test]
    fn a_listed_digest_covers_the_whole_file() {
        let digest = |bytes: &[u8]| Sha256Digest::of(bytes).to_string();
        let list = format!(r#"{{"files":{{"common.pt":"{}"}}}}"#, digest(b"common"));
        let others = [
            ("step/metadata.json", &br#"{"sharded_backend":"torch_dist"}"#[..]),
            ("step/integrity.json", list.as_bytes()),
        ];
        let other_bytes = others.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let files = with(&[others[0], others[1], ("step/common.pt", b"common")]);
        assert_eq!(deep(&files), (Vec::new(), 6, other_bytes));
        let files = with(&[others[0], others[1], ("step/common.pt", b"Common")]);
        assert_eq!(deep(&files), (vec!["step/common.pt".to_owned()], 0, other_bytes));
    }

    #[test]
    fn what_vanishes_is_unknown_and_not_damaged() {
        let files = with(&[("step/a", b"1"), ("step/b", b"2")]);
        let tree = files.tree();
        let gone = with(&[("step/a", b"1")]);
        let mut result = DeepCheck::default();
        let none = Checksums::default();
        for path in ["step/a", "step/b"] {
            assert!(tree.is_file(path));
            if let Err(error) = read_file(path, &none, &gone, &|_| {}, &mut result) {
                result.findings.push(unreadable(path, &error));
            }
        }
        let soundness = result.findings.iter().map(|finding| &finding.soundness);
        let is_unknown = |soundness| matches!(soundness, &crate::soundness::Soundness::Unknown { .. });
        assert_eq!(soundness.map(is_unknown).collect::<Vec<_>>(), [true]);
    }
}
