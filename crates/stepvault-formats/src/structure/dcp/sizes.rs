//! The lengths of the files that a table of contents names.

use std::collections::BTreeMap;

use super::{read_metadata, refusal_of_path};
use crate::soundness::Fault;
use crate::source::ReadAt;
use crate::structure::text::shown;

/// A file, described by its items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedFile {
    /// Its path, relative to the table's directory.
    pub path: String,
    /// The end of its last item. A file that DCP wrote has nothing after it.
    pub bytes: u64,
    /// The number of its items.
    pub items: u64,
}

/// Returns the files that a table of contents names, by name. A rank without items leaves an empty file that no item
/// names.
///
/// # Errors
/// As [`read_metadata`]; [`Fault::Broken`] if a path leads outside the directory or the end of an item overflows.
pub fn claimed_files(source: &dyn ReadAt) -> Result<Vec<ClaimedFile>, Fault> {
    let mut files: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for item in read_metadata(source)? {
        if let Some(why) = refusal_of_path(&item.relative_path) {
            let path = shown(&item.relative_path);
            return Err(Fault::broken(format!("it names the file {path}, {why}")));
        }
        let Some(end) = item.offset_bytes.checked_add(item.length_bytes) else {
            return Err(Fault::broken(
                "one of its items ends beyond the largest possible file",
            ));
        };
        let (bytes, items) = files.entry(item.relative_path.to_string()).or_default();
        *bytes = end.max(*bytes);
        *items += 1;
    }
    let files = files.into_iter();
    Ok(files
        .map(|(path, (bytes, items))| ClaimedFile { path, bytes, items })
        .collect())
}
