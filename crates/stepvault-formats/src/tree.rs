//! A directory as facts: its entries, and how to read one of its files.

use std::collections::BTreeMap;
use std::io;

use stepvault_core::timestamp::Timestamp;

/// The kind of a directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File {
        /// Its length in bytes.
        size_bytes: u64,
        /// The bytes that the filesystem has allocated for it, if known. Fewer than its length means holes.
        allocated_bytes: Option<u64>,
    },
    /// A directory.
    Directory,
    /// A symbolic link, not followed.
    Symlink {
        /// Its literal target.
        target: String,
    },
    /// A socket, a device, a pipe.
    Other,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its kind.
    pub kind: EntryKind,
    /// Its modification time.
    pub mtime: Timestamp,
}

/// Everything below a directory, by path relative to it: segments joined with `/`, no leading or trailing one, never
/// `.` or `..`. Parents of every entry are entries themselves; the directory itself is not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// Returns a tree of these entries.
    pub fn new(entries: BTreeMap<String, Entry>) -> Self {
        Self { entries }
    }

    /// Returns every entry, in the byte order of the paths.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Returns one entry.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Returns whether there is a regular file at this path.
    pub fn is_file(&self, path: &str) -> bool {
        self.file_size_bytes(path).is_some()
    }

    /// Returns the length of the regular file at this path.
    pub fn file_size_bytes(&self, path: &str) -> Option<u64> {
        match self.get(path)?.kind {
            EntryKind::File { size_bytes, .. } => Some(size_bytes),
            _ => None,
        }
    }

    /// Returns whether there is a directory at this path.
    pub fn is_directory(&self, path: &str) -> bool {
        self.get(path).is_some_and(|entry| entry.kind == EntryKind::Directory)
    }

    /// Returns the regular files, with path and entry.
    pub fn files(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries().filter(|(_, entry)| matches!(entry.kind, EntryKind::File { .. }))
    }

    /// Returns the direct entries of a directory of this tree (`""` is the tree's own), by name.
    pub fn children<'a>(&'a self, directory: &str) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        let prefix = joined(directory, "");
        self.entries
            .range(prefix.clone()..)
            .map_while(move |(path, entry)| Some((path.strip_prefix(&prefix)?, entry)))
            .filter(|(name, _)| !name.contains('/'))
    }

    /// Returns the names of the regular files in a directory of this tree (`""` is the tree's own).
    pub fn file_names<'a>(&'a self, directory: &str) -> impl Iterator<Item = &'a str> {
        self.children(directory)
            .filter(|(_, entry)| matches!(entry.kind, EntryKind::File { .. }))
            .map(|(name, _)| name)
    }

    /// Returns everything below one of its directories, by paths of this tree.
    pub fn inside<'a>(&'a self, directory: &str) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        self.starting_with(&format!("{directory}/"))
    }

    /// Returns every entry whose path has this prefix.
    pub fn starting_with<'a>(&'a self, prefix: &str) -> impl Iterator<Item = (&'a str, &'a Entry)> + use<'a> {
        let prefix = prefix.to_owned();
        self.entries
            .range(prefix.clone()..)
            .take_while(move |(path, _)| path.starts_with(&prefix))
            .map(|(path, entry)| (path.as_str(), entry))
    }

    /// Returns the part of this tree at some paths, with what lies below them at paths that are `wanted`.
    #[must_use]
    pub fn within(&self, paths: &[String], wanted: impl Fn(&str) -> bool) -> Self {
        let entry = |path: &str, entry: &Entry| (path.to_owned(), entry.clone());
        let of_path = |path: &String| {
            let itself = self.get(path).map(|of| entry(path, of));
            let inside = self
                .inside(path)
                .filter(|(below, _)| wanted(below.get(path.len() + 1..).unwrap_or_default()));
            itself.into_iter().chain(inside.map(|(below, of)| entry(below, of))).collect::<Vec<_>>()
        };
        Self::new(paths.iter().flat_map(of_path).collect())
    }

    /// Returns the same tree as seen from the parent directory, where it has this name.
    #[must_use]
    pub fn under(self, name: &str, entry: Entry) -> Self {
        let inside = self.entries.into_iter().map(|(path, entry)| (format!("{name}/{path}"), entry));
        Self { entries: inside.chain([(name.to_owned(), entry)]).collect() }
    }

    /// Returns the part of this tree below one of its directories, as a separate tree.
    #[must_use]
    pub fn below(&self, directory: &str) -> Self {
        let inside = self.inside(directory);
        let entries = inside
            .filter_map(|(path, entry)| Some((path.get(directory.len() + 1..)?.to_owned(), entry.clone())))
            .collect();
        Self { entries }
    }
}

/// Returns a path below a directory of a tree; `""` is the tree's own directory.
pub(crate) fn joined(directory: &str, path: &str) -> String {
    if directory.is_empty() { path.to_owned() } else { format!("{directory}/{path}") }
}

/// Returns whether a path lies below a directory.
pub(crate) fn is_inside(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// Opens the files of a tree for checks that read their contents.
pub trait OpenFile: Send + Sync {
    /// Opens the regular file at a path of the tree, following no symbolic link.
    ///
    /// # Errors
    /// An error of the medium.
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>>;
}

/// A file's bytes, read at offsets. Checks read headers through this and never map or load the whole.
pub trait ReadAt: Send + Sync {
    /// Returns the file's length in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends before that; otherwise the error of the medium.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Returns the bytes that the filesystem has allocated for the file, or `None` if unknown. Fewer than
    /// [`Self::size_bytes`] means holes: space that was reserved and never written.
    fn allocated_bytes(&self) -> Option<u64> {
        None
    }
}

impl ReadAt for [u8] {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let piece = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(buffer.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(piece);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn size_bytes(&self) -> u64 {
        self.as_slice().size_bytes()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, buffer)
    }
}

/// A range of a file, treated as a file of its own: a shard of a DCP file is a torch file by itself.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    source: &'a dyn ReadAt,
    start: u64,
    size_bytes: u64,
}

impl<'a> Window<'a> {
    /// Returns the `size_bytes` bytes from `start`, or `None` when they are not all inside the file.
    pub fn new(source: &'a dyn ReadAt, start: u64, size_bytes: u64) -> Option<Self> {
        (start.checked_add(size_bytes)? <= source.size_bytes()).then_some(Self { source, start, size_bytes })
    }
}

impl ReadAt for Window<'_> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.source.read_exact_at(self.start + offset, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> Tree {
        let entry = |path: &str| Entry {
            kind: if path.ends_with('/') {
                EntryKind::Directory
            } else {
                EntryKind::File { size_bytes: path.len() as u64, allocated_bytes: None }
            },
            mtime: Timestamp::from_seconds(0),
        };
        let named = |path: &&str| (path.trim_end_matches('/').to_owned(), entry(path));
        Tree::new(paths.iter().map(named).collect())
    }

    #[test]
    fn children_are_those_directly_inside() {
        let tree = tree(&["a/", "a/x", "a/y/", "a/y/z", "a.b", "b"]);
        let names = |directory| tree.children(directory).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(""), ["a", "a.b", "b"]);
        assert_eq!(names("a"), ["x", "y"]);
        assert_eq!(names("nothing"), Vec::<&str>::new());
        assert_eq!(tree.below("a").files().map(|(path, _)| path).collect::<Vec<_>>(), ["x", "y/z"]);
        assert_eq!(tree.file_size_bytes("a/y/z"), Some(5));
        assert!(tree.is_directory("a/y") && !tree.is_file("a/y"));
    }

    #[test]
    fn a_window_ends_where_it_ends() {
        let bytes = b"0123456789".to_vec();
        let window = Window::new(&bytes, 2, 5).unwrap();
        let mut buffer = [0; 5];
        window.read_exact_at(0, &mut buffer).unwrap();
        assert_eq!(&buffer, b"23456");
        assert!(window.read_exact_at(1, &mut buffer).is_err());
        assert!(window.read_exact_at(u64::MAX, &mut buffer).is_err());
        assert!(Window::new(&bytes, 6, 5).is_none());
        assert!(Window::new(&bytes, 1, u64::MAX).is_none());
    }
}
