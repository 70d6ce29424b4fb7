//! Lists a directory as facts for the framework rules: everything below it, whether or not it can be sealed.
//!
//! Unlike the scan of a checkpoint, a survey is tolerant: trainers write and delete meanwhile, and an entry that
//! disappears is omitted.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use stepvault_core::{Error, ErrorKind, Result, Timestamp};
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, ReadAt, Tree};

use crate::beneath::Beneath;
use crate::errors::{self, IoAt as _};

const WHAT: &str = "cannot list the directory";
/// More than a step may hold, because a directory holds several.
const MAX_ENTRIES: usize = 1_000_000;

/// How to treat the content of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Below {
    /// List it.
    List,
    /// Use the known content, unless the directory's own time has changed.
    AsKnown,
    /// Omit it.
    Nothing,
}

/// Lists everything below the directory `root`, which may be reached through a link. Links inside are not followed.
/// Names that are not UTF-8 are omitted: no framework writes any.
///
/// # Errors
/// When `root` is not a readable directory; `Refused` when it holds more than a million entries. A directory further
/// down that cannot be read counts as empty.
pub fn survey(root: &Path) -> Result<Tree> {
    survey_again(root, &Tree::default(), &|_| Below::List)
}

/// Like [`survey`], for repeated surveys of a directory most of which never changes. `known` is the result of an
/// earlier survey, and `below` decides for each directory, by its path, how to treat its content.
///
/// # Errors
/// As for [`survey`].
pub fn survey_again(root: &Path, known: &Tree, below: &dyn Fn(&str) -> Below) -> Result<Tree> {
    let mut entries = BTreeMap::new();
    let mut pending: Vec<(PathBuf, String)> = vec![(root.to_path_buf(), String::new())];
    while let Some((directory, prefix)) = pending.pop() {
        let listed = match std::fs::read_dir(&directory) {
            Ok(listed) => listed,
            Err(error) if prefix.is_empty() => return Err(errors::io(WHAT, root, error)),
            Err(error) => {
                tracing::debug!(%error, path = %directory.display(), "skipping a directory that cannot be listed");
                continue;
            }
        };
        for found in listed {
            let Ok(found) = found else { break };
            let (Ok(name), Ok(facts)) = (found.file_name().into_string(), found.metadata()) else {
                continue;
            };
            let Some(kind) = kind_of(&found.path(), &facts) else {
                continue;
            };
            let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            let mtime = mtime(&facts);
            let entry = Entry { kind, mtime };
            if entry.kind == EntryKind::Directory {
                match below(&path) {
                    Below::AsKnown if known.get(&path) == Some(&entry) => {
                        let known = known.below(&path);
                        entries.extend(
                            known
                                .entries()
                                .map(|(inside, entry)| (format!("{path}/{inside}"), entry.clone())),
                        );
                    }
                    Below::AsKnown | Below::List => pending.push((found.path(), path.clone())),
                    Below::Nothing => {}
                }
            }
            entries.insert(path, entry);
            if entries.len() > MAX_ENTRIES {
                return Err(Error::at(ErrorKind::Refused, WHAT, root)
                    .because(format!("it holds more than {MAX_ENTRIES} files and directories"))
                    .hint("give the directory that holds the checkpoints"));
            }
        }
    }
    Ok(Tree::new(entries))
}

/// Returns the entry at one path without its content. `None` for a link to a name that is not UTF-8.
pub fn entry(path: &Path) -> io::Result<Option<Entry>> {
    let facts = path.symlink_metadata()?;
    Ok(kind_of(path, &facts).map(|kind| Entry { kind, mtime: mtime(&facts) }))
}

/// Returns the modification time of a file.
pub(crate) fn mtime(facts: &Metadata) -> Timestamp {
    Timestamp { seconds: facts.mtime(), nanoseconds: u32::try_from(facts.mtime_nsec()).unwrap_or_default() }
}

fn kind_of(path: &Path, facts: &Metadata) -> Option<EntryKind> {
    let file_type = facts.file_type();
    Some(if file_type.is_dir() {
        EntryKind::Directory
    } else if file_type.is_file() {
        EntryKind::File { size_bytes: facts.len(), allocated_bytes: Some(facts.blocks().saturating_mul(512)) }
    } else if file_type.is_symlink() {
        EntryKind::Symlink { target: std::fs::read_link(path).ok()?.into_os_string().into_string().ok()? }
    } else {
        EntryKind::Other
    })
}

/// Opens files below a directory, never through a link.
#[derive(Debug)]
pub struct SurveyFiles {
    root: Beneath,
}

impl SurveyFiles {
    /// Opens `root`, which may itself be reached through a link.
    ///
    /// # Errors
    /// When it is not a directory that can be opened.
    pub fn open(root: &Path) -> Result<Self> {
        let opened = Beneath::open_following(root).at(WHAT, root)?;
        Ok(Self { root: opened })
    }
}

impl OpenFile for SurveyFiles {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        // Non-blocking, in case the path is a FIFO.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = File::from(self.root.open_file(path, flags, Mode::empty())?);
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Box::new(OpenedFile {
            size_bytes: facts.len(),
            allocated_bytes: Some(facts.blocks().saturating_mul(512)),
            file,
        }))
    }
}

/// A file that is open.
#[derive(Debug)]
pub struct OpenedFile {
    /// The file.
    pub file: File,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// The bytes that its filesystem holds of it, if they are known.
    pub allocated_bytes: Option<u64>,
}

impl ReadAt for OpenedFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.allocated_bytes
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn lists_what_is_there_and_opens_files_alone() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("run");
        fs::create_dir_all(root.join("step_1/trainer")).unwrap();
        fs::write(root.join("step_1/trainer/.metadata"), "hello").unwrap();
        fs::write(place.path().join("outside"), "secret").unwrap();
        std::os::unix::fs::symlink("../outside", root.join("latest")).unwrap();
        std::os::unix::fs::symlink(place.path(), root.join("up")).unwrap();
        let through = place.path().join("link");
        std::os::unix::fs::symlink(&root, &through).unwrap();

        let tree = survey(&through).unwrap();
        let paths: Vec<&str> = tree.entries().map(|(path, _)| path).collect();
        let expected = ["latest", "step_1", "step_1/trainer", "step_1/trainer/.metadata", "up"];
        assert_eq!(paths, expected);
        assert_eq!(tree.file_size_bytes("step_1/trainer/.metadata"), Some(5));
        let kind = &tree.get("latest").unwrap().kind;
        assert_eq!(*kind, EntryKind::Symlink { target: "../outside".to_owned() });

        let files = SurveyFiles::open(&through).unwrap();
        let mut buffer = [0; 3];
        let opened = files.open("step_1/trainer/.metadata").unwrap();
        opened.read_exact_at(2, &mut buffer).unwrap();
        assert_eq!(&buffer, b"llo");
        assert!(opened.read_exact_at(3, &mut buffer).is_err());
        for refused in ["latest", "up/outside", "step_1", "nothing"] {
            assert!(files.open(refused).is_err(), "{refused}");
        }
        assert_eq!(survey_again(&root, &tree, &|_| Below::List).unwrap(), tree);

        let error = survey(&root.join("nothing")).unwrap_err();
        assert!(error.to_string().starts_with("cannot list the directory: "), "{error}");
    }
    #[test]
    fn what_is_known_is_not_listed_again_until_its_directory_changes() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        fs::create_dir_all(root.join("step_1/inner")).unwrap();
        fs::write(root.join("step_1/inner/weights"), "hello").unwrap();
        fs::create_dir_all(root.join("wandb/run")).unwrap();
        let before = survey(root).unwrap();

        // Deep inside, so that the directory's own time stays the same.
        fs::write(root.join("step_1/inner/more"), "x").unwrap();
        let as_known = |path: &str| match path {
            "step_1" => Below::AsKnown,
            "wandb" => Below::Nothing,
            _ => Below::List,
        };
        let again = survey_again(root, &before, &as_known).unwrap();
        let paths: Vec<&str> = again.entries().map(|(path, _)| path).collect();
        assert_eq!(paths, ["step_1", "step_1/inner", "step_1/inner/weights", "wandb"]);
        fs::write(root.join("step_1/new"), "x").unwrap();
        let again = survey_again(root, &before, &as_known).unwrap();
        assert!(again.is_file("step_1/new") && again.is_file("step_1/inner/more"));
    }
}
