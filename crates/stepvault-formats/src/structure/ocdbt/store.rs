//! The files of a database, access to pieces of them, and the limit on what the check may decompress and keep.

use std::ops::Range;
use std::rc::Rc;

use crate::deep::{Checksum, Span};
use crate::soundness::{Fault, broken, read_piece, unknown};
use crate::structure::directory::Directory;
use crate::tree::{OpenFile, ReadAt, Tree};

/// The maximum size of a manifest or node, compressed or not. Orbax lets nodes grow to 100 MB.
pub(super) const MAX_PIECE_BYTES: u64 = 128 << 20;

/// The limit on the decompressed keys, paths and nodes of one database: some millions of chunks.
const MAX_TOTAL_BYTES: u64 = 512 << 20;
/// The limit on how much larger than the files their metadata may be. Names and array descriptions compress well, but
/// not this well.
const MAX_RATIO: u64 = 256;
/// The minimum budget, for the smallest databases.
const LEAST_TOTAL_BYTES: u64 = 1 << 20;

/// The number of bytes that may still be decompressed. It bounds memory and time at once: everything that is built is
/// charged to it.
pub(super) struct Budget {
    left_bytes: u64,
}

impl Budget {
    /// Returns the budget of a database whose files are `files_bytes` long together.
    pub(super) fn new(files_bytes: u64) -> Self {
        let by_size = files_bytes.saturating_mul(MAX_RATIO).saturating_add(LEAST_TOTAL_BYTES);
        Self { left_bytes: by_size.min(MAX_TOTAL_BYTES) }
    }

    /// Returns the maximum size of the next piece.
    pub(super) fn piece_limit_bytes(&self) -> u64 {
        self.left_bytes.min(MAX_PIECE_BYTES)
    }

    pub(super) fn spend(&mut self, bytes: u64, what: &str) -> Result<(), Fault> {
        let left = self.left_bytes.checked_sub(bytes);
        self.left_bytes = left.ok_or_else(|| {
            unknown!("{what} and the data read before it decompress to more than the limit")
        })?;
        Ok(())
    }
}

/// A range of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) offset: u64,
    pub(super) length_bytes: u64,
}

impl Location {
    /// The location of the root of an empty tree.
    pub(super) const MISSING: Self = Self { offset: u64::MAX, length_bytes: u64::MAX };
}

/// The files below a database's directory.
pub(super) struct Store<'a> {
    pub(super) directory: Directory<'a>,
    /// The file that was read last: nodes and values of one file follow one another.
    open: Option<(Rc<str>, Box<dyn ReadAt>)>,
    /// The pieces with a checksum that were read, with their paths, if they are collected.
    pub(super) checksums: Option<Vec<(String, Span)>>,
}

impl<'a> Store<'a> {
    pub(super) fn new(tree: &'a Tree, directory: &'a str, files: &'a dyn OpenFile) -> Self {
        Self { directory: Directory { tree, path: directory, files }, open: None, checksums: None }
    }

    /// Returns the budget of a database of this size.
    pub(super) fn budget(&self) -> Budget {
        let prefix = self.directory.path_of("");
        let files = self.directory.tree.starting_with(&prefix);
        let sizes = files.filter_map(|(path, _)| self.directory.tree.file_size_bytes(path));
        Budget::new(sizes.fold(0, u64::saturating_add))
    }

    /// Checks that a range is inside its file.
    pub(super) fn hold(&self, path: &str, location: Location, what: &str) -> Result<(), Fault> {
        let Location { offset, length_bytes } = location;
        let whole = self.directory.path_of(path);
        let Some(size_bytes) = self.directory.tree.file_size_bytes(&whole) else {
            return Err(broken!("{what} is in {whole}, which is missing"));
        };
        let end = offset.checked_add(length_bytes);
        if end.is_none_or(|end| end > size_bytes) {
            return Err(broken!(
                "{what} is {length_bytes} bytes at byte {offset} of {whole}, which ends at byte {size_bytes}: \
                 the file was cut off"
            ));
        }
        Ok(())
    }

    /// Reads a range, at most `limit_bytes` long.
    pub(super) fn read(
        &mut self,
        path: &Rc<str>,
        location: Location,
        limit_bytes: u64,
        what: &str,
    ) -> Result<Vec<u8>, Fault> {
        self.hold(path, location, what)?;
        let source = match self.open.take() {
            Some((name, source)) if name == *path => source,
            _ => self.directory.files.open(&self.directory.path_of(path))?,
        };
        let bytes = read_piece(&*source, location.offset, location.length_bytes, limit_bytes, what);
        self.open = Some((Rc::clone(path), source));
        bytes
    }

    /// Collects the checksum at the end of a piece, if checksums are collected.
    pub(super) fn collect(&mut self, path: String, offset: u64, piece: &[u8], what: &str) {
        if let Some((covered, checksum)) = piece.split_last_chunk::<4>() {
            self.collect_of(path, offset..offset.saturating_add(covered.len() as u64), checksum, what);
        }
    }

    /// Collects the checksum of some bytes of a file, if checksums are collected.
    pub(super) fn collect_of(&mut self, path: String, bytes: Range<u64>, checksum: &[u8], what: &str) {
        if let (Some(checksums), Some(checksum)) = (&mut self.checksums, checksum.first_chunk()) {
            let checksum = Checksum::Crc32c(u32::from_le_bytes(*checksum));
            checksums.push((path, Span::new(bytes, checksum, what)));
        }
    }

    /// Reads a whole file, at most `limit_bytes` long.
    pub(super) fn whole(&mut self, name: &str, limit_bytes: u64) -> Result<Vec<u8>, Fault> {
        let path = self.directory.path_of(name);
        let source = self.directory.files.open(&path)?;
        read_piece(&*source, 0, source.size_bytes(), limit_bytes, &path)
    }

    /// Returns the newest of the numbered manifests, by name.
    pub(super) fn newest_numbered(&self) -> Option<String> {
        let names = self.directory.tree.file_names(self.directory.path);
        names.filter(|name| is_numbered(name)).max().map(str::to_owned)
    }
}

fn is_numbered(name: &str) -> bool {
    let number = name.strip_prefix("manifest.");
    number.is_some_and(|number| number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
