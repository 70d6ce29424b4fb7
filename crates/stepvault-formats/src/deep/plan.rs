//! Which pieces of a step's files have checksums.

use std::collections::BTreeMap;
use std::io;

use crate::check::{Check, plan};
use crate::find::FoundStep;
use crate::soundness::{Fault, read_head};
use crate::source::{ReadAt, Window};
use crate::structure::kind::{FileKind, HEAD_BYTES, kind_of};
use crate::structure::{dcp, megatron, ocdbt, tf_bundle, zarr, zip};
use crate::tree::{OpenFile, Tree, joined};

use super::span::{Checksum, Span};

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
pub(super) struct Checksums(BTreeMap<String, (&'static str, Known)>);

impl Checksums {
    /// Collects the checksums of a step. A table that cannot be read states none: the structural checks report it.
    pub(super) fn of(step: &FoundStep, tree: &Tree, files: &dyn OpenFile) -> Self {
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
    pub(super) fn of_file(&self, path: &str, source: &dyn ReadAt) -> io::Result<(&'static str, Vec<Span>)> {
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
            let span = Span {
                start: 0,
                end: size_bytes,
                checksum: Checksum::Sha256(digest),
                what: "the file".to_owned(),
            };
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
            Span {
                start,
                end: start.saturating_add(record.size_bytes),
                checksum: Checksum::Crc32(record.crc32),
                what: record.name.clone(),
            }
        }));
    }
    Ok(spans)
}
