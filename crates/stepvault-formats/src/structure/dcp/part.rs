//! The part of a DCP directory on one node of several: the files of its own ranks and, on the first node, the table
//! of contents.

use std::io;

use super::super::finding::Finding;
use super::{check_tables, tables};
use crate::soundness::Fault;
use crate::source::ReadAt;
use crate::structure::place::joined;
use crate::tree::{OpenFile, Tree};

/// The first bytes of a ZIP archive, the format of an item of `torch.save`.
const LOCAL_HEADER: [u8; 4] = *b"PK\x03\x04";
/// The first bytes of the record at its end.
const END_RECORD: [u8; 4] = *b"PK\x05\x06";
/// The length of that record, which is followed by no comment.
const END_RECORD_BYTES: u64 = 22;

/// Checks the files of a part of a DCP checkpoint. If the table of contents exists, which also names files of other
/// nodes, the check uses it; otherwise it tests whether the last item of each file is whole.
///
/// # Errors
/// When a file could not be read.
pub fn check_part(tree: &Tree, directory: &str, files: &dyn OpenFile) -> io::Result<Vec<Finding>> {
    let tables = tables(tree, directory);
    if !tables.is_empty() {
        return check_tables(tree, directory, tables, files, &|path| tree.is_file(path));
    }
    let names = tree.children(directory).map(|(name, _)| name);
    let mut findings = Vec::new();
    for name in names.filter(|name| name.ends_with(".distcp")) {
        let path = joined(directory, name);
        if tree.is_file(&path) {
            let outcome = check_end(&*files.open(&path)?);
            findings.push(Finding::of(path, outcome)?);
        }
    }
    Ok(findings)
}

/// Tests that the last item has an end, which an item that was cut off lacks. A file without items is empty: a rank
/// may have none.
fn check_end(source: &dyn ReadAt) -> Result<(), Fault> {
    let length_bytes = source.size_bytes();
    if length_bytes == 0 {
        return Ok(());
    }
    let mut head = [0; LOCAL_HEADER.len()];
    let is_archive = length_bytes >= LOCAL_HEADER.len() as u64 && {
        source.read_exact_at(0, &mut head)?;
        head == LOCAL_HEADER
    };
    if is_archive {
        let at = length_bytes.saturating_sub(END_RECORD_BYTES);
        let mut end = [0; END_RECORD.len()];
        source.read_exact_at(at, &mut end)?;
        if end != END_RECORD {
            let why = "its last item does not end where the file does: the save was cut off or is still in progress";
            return Err(Fault::at(at, why));
        }
    }
    Err(Fault::Unknown(
        "the table of its items is on another node".to_owned(),
    ))
}
