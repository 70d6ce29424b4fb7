//! Compares the files at a path with a step, byte for byte.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use stepvault_core::digest::PartHasher;
use stepvault_core::manifest::{DirectoryEntry, FileEntry, Shape, SymlinkEntry};
use stepvault_core::{ErrorKind, RelativePath, Result};

use crate::beneath::Beneath;
use crate::durable::parent_of;
use crate::errors::IoAt as _;
use crate::seal_record::SealedFile;
use crate::sealed::SealedStep;
use crate::source::SourceFile;
use crate::tree::{self, Tree};

const WHAT: &str = "cannot compare";
const BUFFER_BYTES: usize = 1 << 20;

/// The entries of a step.
#[derive(Debug, Clone, Copy)]
pub struct Entries<'a> {
    /// Sorted by path.
    pub files: &'a [FileEntry],
    /// Sorted by path; empty for a single file, which may have any name at the target.
    pub directories: &'a [DirectoryEntry],
    /// Sorted by path.
    pub symlinks: &'a [SymlinkEntry],
}

/// Returns the first difference between the files at `target` and a step, in words, or `None` when names, sizes and
/// bytes are equal. Modes and times are not compared.
pub fn differs(target: &Path, step: Entries<'_>) -> Result<Option<String>> {
    let present = match tree::scan(target) {
        Ok(present) => present,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some("it does not exist".to_owned())),
        // The target holds something that a checkpoint cannot hold.
        Err(error) if error.kind() == ErrorKind::Usage => return Ok(Some(error.to_string())),
        Err(error) => return Err(error),
    };
    scanned_differs(&present, target, step)
}

/// Returns whether the target is a directory that holds a part of the step and nothing else: the step has every entry
/// of it, byte for byte.
pub fn is_part(target: &Path, step: Entries<'_>) -> Result<bool> {
    let present = tree::scan(target)?;
    if present.shape == Shape::File || step.directories.is_empty() {
        return Ok(false);
    }
    let there: BTreeSet<Option<&RelativePath>> = (present.files.iter().map(|file| Some(&file.path)))
        .chain(present.directories.iter().map(|entry| entry.path.as_ref()))
        .chain(present.symlinks.iter().map(|link| Some(&link.path)))
        .collect();
    let files: Vec<FileEntry> =
        (step.files.iter().filter(|file| there.contains(&Some(&file.path)))).cloned().collect();
    let directories: Vec<DirectoryEntry> =
        (step.directories.iter().filter(|entry| there.contains(&entry.path.as_ref()))).cloned().collect();
    let symlinks: Vec<SymlinkEntry> =
        (step.symlinks.iter().filter(|link| there.contains(&Some(&link.path)))).cloned().collect();
    let part = Entries { files: &files, directories: &directories, symlinks: &symlinks };
    Ok(scanned_differs(&present, target, part)?.is_none())
}

/// Compares one path of a multi-path step below `directory`, like [`differs`]. The entries are those of this path and
/// of the directories above it.
pub fn member_differs(directory: &Path, member: &RelativePath, step: Entries<'_>) -> Result<Option<String>> {
    match tree::scan_members(directory, std::slice::from_ref(member)) {
        Ok(present) => scanned_differs(&present, directory, step),
        // The target holds something that a checkpoint cannot hold.
        Err(error) if matches!(error.kind(), ErrorKind::Usage | ErrorKind::SourceChanged) => {
            Ok(Some(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Like [`differs`], for `present`, the result of a scan of `target`.
fn scanned_differs(present: &Tree, target: &Path, step: Entries<'_>) -> Result<Option<String>> {
    let Entries { files, directories, symlinks } = step;
    let single = directories.is_empty();
    if (present.shape == Shape::File) != single {
        let what = if single { "it is a directory, not a file" } else { "it is not a directory" };
        return Ok(Some(what.to_owned()));
    }
    if single {
        return match files {
            [file] => single_file_differs(target, file, present),
            _ => Ok(Some("the step is not a single file".to_owned())),
        };
    }
    let wanted = files.iter().map(|file| (&file.path, file.size_bytes));
    if let Some(difference) = names_differ(present, wanted, directories, symlinks) {
        return Ok(Some(difference));
    }
    // The scan has refused a checkpoint that is a link, but the directory that holds the members may be reached through
    // one.
    let root = Beneath::open_following(target).at(WHAT, target)?;
    for file in files {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let opened =
            root.open_file(file.path.as_str(), flags, Mode::empty()).at(WHAT, &target.join(&file.path))?;
        if let Some(difference) = bytes_differ(File::from(opened), &target.join(&file.path), file)? {
            return Ok(Some(difference));
        }
    }
    Ok(None)
}

/// Returns whether the file at `path` of the checkpoint at `source` has the bytes of a file of a stored step. A file without
/// digests equals nothing: a checksum does not tell apart what a trainer has saved.
pub fn has_bytes_of_entry(
    file: &FileEntry,
    source: &Path,
    shape: Shape,
    path: &RelativePath,
) -> Result<bool> {
    if file.digests().is_none() {
        return Ok(false);
    }
    let root = root_of(source, shape);
    let opened = open_following(root, path)?;
    Ok(bytes_differ(opened, &root.join(path), file)?.is_none())
}

/// Returns whether the checkpoint at `source` has the bytes of all these files of a stored step, at the same paths.
pub fn has_bytes_of_entries(files: &[FileEntry], source: &Path, shape: Shape) -> Result<bool> {
    for file in files {
        if !has_bytes_of_entry(file, source, shape, &file.path)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn single_file_differs(target: &Path, file: &FileEntry, present: &Tree) -> Result<Option<String>> {
    if let Some(there) = present.files.first().filter(|there| there.size_bytes != file.size_bytes) {
        return Ok(Some(sizes_differ(&file.path, there.size_bytes, file.size_bytes)));
    }
    let name = RelativePath::new(target.file_name().unwrap_or_default().to_string_lossy())?;
    bytes_differ(open_following(parent_of(target), &name)?, target, file)
}

/// Returns the first difference in names, sizes and link targets. `files` are the wanted files with their sizes.
fn names_differ<'a>(
    present: &Tree,
    files: impl Iterator<Item = (&'a RelativePath, u64)> + Clone,
    directories: &[DirectoryEntry],
    symlinks: &[SymlinkEntry],
) -> Option<String> {
    let there = present.files.iter().map(|file| Some(&file.path));
    lists_differ(there, files.clone().map(|(path, _)| Some(path)))
        .or_else(|| {
            let there = present.directories.iter().map(|entry| entry.path.as_ref());
            lists_differ(there, directories.iter().map(|entry| entry.path.as_ref()))
        })
        .or_else(|| {
            let there = present.symlinks.iter().map(|link| Some(&link.path));
            lists_differ(there, symlinks.iter().map(|link| Some(&link.path)))
        })
        .or_else(|| {
            let mut pairs = present.files.iter().zip(files);
            let other = pairs.find(|(there, (_, size_bytes))| there.size_bytes != *size_bytes);
            other.map(|(there, (path, size_bytes))| sizes_differ(path, there.size_bytes, size_bytes))
        })
        .or_else(|| {
            let mut pairs = present.symlinks.iter().zip(symlinks);
            let other = pairs.find(|(there, link)| there.target != link.target);
            other.map(|(there, link)| {
                format!("{} points to {}, not to {}", link.path, there.target, link.target)
            })
        })
}

/// Returns the first path that only one of two sorted lists has.
fn lists_differ<'a>(
    there: impl Iterator<Item = Option<&'a RelativePath>>,
    wanted: impl Iterator<Item = Option<&'a RelativePath>>,
) -> Option<String> {
    let (mut there, mut wanted) = (there.fuse(), wanted.fuse());
    let name = |path: Option<&RelativePath>| path.map_or(".", RelativePath::as_str).to_owned();
    loop {
        match (there.next(), wanted.next()) {
            (None, None) => return None,
            (Some(path), Some(other)) if path == other => {}
            (Some(path), Some(other)) if path < other => {
                return Some(format!("{} is not part of the step", name(path)));
            }
            (_, Some(other)) => return Some(format!("{} is missing", name(other))),
            (Some(path), None) => return Some(format!("{} is not part of the step", name(path))),
        }
    }
}

fn sizes_differ(path: &RelativePath, there_bytes: u64, wanted_bytes: u64) -> String {
    format!("{path} has {there_bytes} bytes, not {wanted_bytes}")
}

/// Reads the file part by part and compares each digest. Returns the first difference.
fn bytes_differ(mut opened: File, place: &Path, file: &FileEntry) -> Result<Option<String>> {
    let cut = file.parts()?;
    let mut buffer = vec![0_u8; BUFFER_BYTES];
    let mut parts = Vec::new();
    for index in 0..cut.count() {
        let range = cut.range(index);
        let mut left_bytes = range.end - range.start;
        let mut hasher = PartHasher::new(file.algorithm());
        while left_bytes > 0 {
            let wanted = usize::try_from(left_bytes).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
            let read = opened.read(&mut buffer[..wanted]).at(WHAT, place)?;
            if read == 0 {
                return Ok(Some(format!("{} is shorter than recorded", file.path)));
            }
            hasher.update(&buffer[..read]);
            left_bytes -= read as u64;
        }
        let part = hasher.finish();
        if file.part_digest(index).is_some_and(|expected| expected != part.content) {
            return Ok(Some(format!("{} differs in part {index}", file.path)));
        }
        parts.push(part);
    }
    Ok(file.first_difference(&parts).map(|_| format!("{} has another checksum", file.path)))
}

/// Returns the first difference between `target` and the directory `other`, whose tree is `wanted`, in words, or `None`
/// when names, sizes and bytes are equal. Modes and times are not compared.
pub(crate) fn directories_differ(target: &Path, other: &Path, wanted: &Tree) -> Result<Option<String>> {
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
            .at(WHAT, &target.join(&file.path))?;
        if !same {
            return Ok(Some(format!("{} has different content", file.path)));
        }
    }
    Ok(None)
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
    let (own, stored) = (open_following(root, path)?, open(&step.data_root(), &sealed.path)?);
    is_same_file(&own, &stored)
        .and_then(|is_same| Ok(is_same || same_bytes(own, stored)?))
        .at(WHAT, &root.join(path))
}

/// Returns whether two descriptors are of one file: a hard link.
fn is_same_file(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Returns the directory to which the paths of a checkpoint are relative.
fn root_of(source: &Path, shape: Shape) -> &Path {
    match shape {
        Shape::File => parent_of(source),
        Shape::Directory => source,
    }
}

/// Opens a file of a checkpoint. The directory that holds the checkpoint may be reached through a link.
fn open_following(root: &Path, path: &RelativePath) -> Result<File> {
    open_in(Beneath::open_following(root), root, path)
}

fn open(root: &Path, path: &RelativePath) -> Result<File> {
    open_in(Beneath::open(root), root, path)
}

fn open_in(opened: rustix::io::Result<Beneath>, root: &Path, path: &RelativePath) -> Result<File> {
    opened
        .and_then(|root| root.open_file(path.as_str(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()))
        .map(File::from)
        .at(WHAT, &root.join(path))
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
