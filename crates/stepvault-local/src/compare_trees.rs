//! Compares the content of two directories, and of a checkpoint with a sealed step.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use stepvault_core::manifest::Shape;
use stepvault_core::path::RelativePath;
use stepvault_core::{ErrorKind, Result};

use crate::beneath::Beneath;
use crate::compare::{WHAT, names_differ};
use crate::durable::parent_of;
use crate::errors;
use crate::seal_record::SealedFile;
use crate::sealed::SealedStep;
use crate::source::SourceFile;
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

/// Returns whether a checkpoint at `source`, scanned as `tree`, has the names, sizes and bytes of a sealed step. Times do
/// not count. A sealed step whose files have changed since equals nothing.
pub fn has_bytes_of(step: &SealedStep, source: &Path, tree: &Tree) -> Result<bool> {
    let record = step.record();
    let files = record.files.iter().map(|file| (&file.path, file.size_bytes));
    if record.shape != tree.shape
        || names_differ(tree, files, &record.directories, &record.symlinks).is_some()
    {
        return Ok(false);
    }
    for (file, sealed) in tree.files.iter().zip(&record.files) {
        if !has_file_of(step, sealed, source, tree.shape, &file.path)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether the file at `path` of the checkpoint at `source` has the bytes of a file of a sealed step. A sealed file
/// that has changed since equals nothing.
pub fn has_file_of(
    step: &SealedStep,
    sealed: &SealedFile,
    source: &Path,
    shape: Shape,
    path: &RelativePath,
) -> Result<bool> {
    if SourceFile::open(&step.file_path(&sealed.path), sealed).is_err() {
        return Ok(false);
    }
    let root = root_of(source, shape);
    let (own, stored) = (
        open_following(root, path)?,
        open(&step.data_root(), &sealed.path)?,
    );
    is_same_file(&own, &stored)
        .and_then(|is_same| Ok(is_same || same_bytes(own, stored)?))
        .map_err(|error| errors::io(WHAT, &root.join(path), error))
}

/// Returns whether two descriptors are of one file: a hard link.
fn is_same_file(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Returns the directory to which the paths of a checkpoint are relative.
pub(crate) fn root_of(source: &Path, shape: Shape) -> &Path {
    match shape {
        Shape::File => parent_of(source),
        Shape::Directory => source,
    }
}

/// Opens a file of a checkpoint. The directory that holds the checkpoint may be reached through a link.
pub(crate) fn open_following(root: &Path, path: &RelativePath) -> Result<File> {
    Beneath::open_following(root)
        .and_then(|root| root.open_file(path.as_str(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()))
        .map(File::from)
        .map_err(|error| errors::io(WHAT, &root.join(path), error))
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
