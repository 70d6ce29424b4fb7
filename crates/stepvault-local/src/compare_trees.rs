//! Compares the content of two directories.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use stepvault_core::manifest::Shape;
use stepvault_core::path::RelativePath;
use stepvault_core::{ErrorKind, Result};

use crate::beneath::Beneath;
use crate::compare::{WHAT, names_differ};
use crate::errors;
use crate::tree::{self, Tree};

const BUFFER_BYTES: usize = 1 << 20;

/// Returns the first difference between `target` and the directory `other`, whose tree is `wanted`, in words, or `None`
/// when names, sizes and bytes are equal. Modes and times are not compared.
pub(crate) fn differ(target: &Path, other: &Path, wanted: &Tree) -> Result<Option<String>> {
    let there = match tree::scan(target) {
        Ok(there) => there,
        // The target holds something that a checkpoint cannot hold.
        Err(error) if error.kind() == ErrorKind::Usage => return Ok(Some(error.to_string())),
        Err(error) => return Err(error),
    };
    if there.shape != Shape::Directory {
        return Ok(Some("it is not a directory".to_owned()));
    }
    let files = wanted.files.iter().map(|file| (&file.path, file.size_bytes));
    if let Some(difference) = names_differ(&there, files, &wanted.directories, &wanted.symlinks) {
        return Ok(Some(difference));
    }
    for file in &wanted.files {
        let same = same_bytes(open(target, &file.path)?, open(other, &file.path)?)
            .map_err(|error| errors::io(WHAT, &target.join(&file.path), error))?;
        if !same {
            return Ok(Some(format!("{} has different content", file.path)));
        }
    }
    Ok(None)
}

fn open(root: &Path, path: &RelativePath) -> Result<File> {
    Beneath::open(root)
        .and_then(|root| root.open_file(path.as_str(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()))
        .map(File::from)
        .map_err(|error| errors::io(WHAT, &root.join(path), error))
}

fn same_bytes(mut one: File, mut other: File) -> io::Result<bool> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    loop {
        read_block(&mut one, &mut ours)?;
        read_block(&mut other, &mut theirs)?;
        if ours != theirs {
            return Ok(false);
        }
        if ours.is_empty() {
            return Ok(true);
        }
    }
}

/// Reads a whole block or the rest of the file; the block is empty at the end.
fn read_block(file: &mut File, block: &mut Vec<u8>) -> io::Result<()> {
    block.clear();
    file.take(BUFFER_BYTES as u64).read_to_end(block).map(drop)
}
