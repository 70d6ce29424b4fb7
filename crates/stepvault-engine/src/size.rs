//! Measures the size of an existing step: its bytes on disk, and the bytes according to its headers.

use std::path::Path;

use stepvault_core::{Error, ErrorKind, Result, Timestamp};
use stepvault_formats::sizes::{HeaderKind, HeaderSizes, header_sizes, header_sizes_of};
use stepvault_formats::soundness::Fault;
use stepvault_formats::tree::{EntryKind, Tree};
use stepvault_local::errors;
use stepvault_local::survey::{Below, SurveyFiles, survey, survey_again};

use crate::inspect::{InspectRequest, InspectedStep, inspect};

const WHAT: &str = "cannot determine the size";

/// A step's size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measured {
    /// The step that was chosen from a directory of several; `None` when the path itself is the step.
    pub chosen: Option<String>,
    /// The profile that found it; `None` when only its own headers or a single file were inspected.
    pub profile: Option<String>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes of its largest file.
    pub largest_file_bytes: u64,
    /// Bytes that the filesystem has allocated for them; `None` if unknown.
    pub allocated_bytes: Option<u64>,
    /// Number of its files and links.
    pub files: u64,
    /// Number of its directories, including its own; 0 for a file.
    pub directories: u64,
    /// Evidence that it is not complete and sound, so that a complete one may be larger.
    pub doubts: Vec<String>,
    /// Sizes according to its headers.
    pub told: Vec<HeaderSizes>,
    /// Headers that could not be read, with the reason.
    pub unread: Vec<(String, String)>,
}

/// Measures the step at `path`: a directory, a file, or the newest complete and sound step of a directory of several. A
/// header or a table of contents represents the files it describes. Blocks.
///
/// # Errors
/// The filesystem's error if `path` cannot be read; [`ErrorKind::Damaged`] for an unreadable header.
pub fn measure(path: &Path, request: &InspectRequest<'_>, now: Timestamp) -> Result<Measured> {
    let facts = path.metadata().map_err(|error| errors::io(WHAT, path, error))?;
    if !facts.is_dir() {
        return measure_file(path);
    }
    let tree = survey(path)?;
    let files = SurveyFiles::open(path)?;
    let whole = || {
        let measured = measured(&tree, &files);
        // Its own directory is not in the tree.
        Measured { directories: measured.directories.saturating_add(1), ..measured }
    };
    let has_table = tree
        .children("")
        .any(|(name, _)| HeaderKind::of_name(name).is_some_and(|kind| kind != HeaderKind::Safetensors));
    if has_table {
        // The named path is one step, whatever numbers the names in it have.
        return Ok(whole());
    }
    let inspection = inspect(path, request, now)?;
    let name = path.canonicalize().ok();
    let name = name.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    let is_itself = |entry: &InspectedStep| {
        Some(entry.step.path.as_str()) == name && tree.get(&entry.step.path).is_none()
    };
    let Some(newest) = inspection.newest_valid().or(inspection.steps.last()) else {
        return Ok(whole());
    };
    let (doubts, profile) = (newest.reasons(), Some(inspection.framework.clone()));
    if is_itself(newest) {
        return Ok(Measured { profile, doubts, ..whole() });
    }
    Ok(Measured {
        chosen: Some(newest.step.path.clone()),
        profile,
        doubts,
        ..measured(&tree.within(&newest.step.members, |_| true), &files)
    })
}

/// Measures a file: the files of a header or table, otherwise the file itself.
fn measure_file(path: &Path) -> Result<Measured> {
    let fault = |error| errors::io(WHAT, path, error);
    let real = path.canonicalize().map_err(fault)?;
    let (Some(above), Some(name)) = (real.parent(), real.file_name().and_then(|name| name.to_str())) else {
        return Err(Error::new(ErrorKind::Usage, WHAT)
            .on(path.display())
            .because("it is not a regular file with a UTF-8 name"));
    };
    let beside = survey_again(above, &Tree::default(), &|_| Below::Nothing)?;
    let files = SurveyFiles::open(above)?;
    let Some(kind) = HeaderKind::of_name(name) else {
        let own = beside.get(name).map(|entry| (name.to_owned(), entry.clone()));
        return Ok(measured(&Tree::new(own.into_iter().collect()), &files));
    };
    let told = header_sizes_of(&beside, kind, name, &files).map_err(|fault| match fault {
        Fault::Read(error) => errors::io(WHAT, path, error),
        Fault::Broken { why, .. } | Fault::Unknown(why) => Error::new(ErrorKind::Damaged, WHAT)
            .on(path.display())
            .because(why)
            .hint("run 'stepvault inspect' to check the whole directory"),
    })?;
    // A table of contents is measured with the files that it names, if they exist.
    let mut names: Vec<&str> = told.files.iter().map(|file| file.path.as_str()).collect();
    names.push(name);
    let entries = names.into_iter().filter_map(|name| Some((name.to_owned(), beside.get(name)?.clone())));
    let measured = measured(&Tree::new(entries.collect()), &files);
    Ok(Measured { told: vec![told], ..measured })
}

fn measured(tree: &Tree, files: &SurveyFiles) -> Measured {
    let (told, unread) = header_sizes(tree, files);
    let unread = unread.into_iter();
    let mut sizes = Measured {
        allocated_bytes: Some(0),
        told,
        unread: unread.map(|(path, fault)| (path, fault.to_string())).collect(),
        ..Measured::default()
    };
    for (_, entry) in tree.entries() {
        match &entry.kind {
            EntryKind::File { size_bytes, allocated_bytes } => {
                sizes.files += 1;
                sizes.bytes = sizes.bytes.saturating_add(*size_bytes);
                sizes.largest_file_bytes = sizes.largest_file_bytes.max(*size_bytes);
                let both = sizes.allocated_bytes.zip(*allocated_bytes);
                sizes.allocated_bytes = both.map(|(sum, bytes)| sum.saturating_add(bytes));
            }
            EntryKind::Directory => sizes.directories += 1,
            EntryKind::Symlink { .. } | EntryKind::Other => sizes.files += 1,
        }
    }
    sizes
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write files as nobody else may")]
mod tests;
