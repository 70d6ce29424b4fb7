//! How long the files are that a table of contents names.

use std::collections::BTreeMap;

use super::{read_metadata, refusal_of_path};
use crate::soundness::Fault;
use crate::source::ReadAt;
use crate::structure::finding::shown;

/// A file by its items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedFile {
    /// Its path, relative to the table's directory.
    pub path: String,
    /// Where its last item ends. A file that DCP wrote has nothing after it.
    pub bytes: u64,
    /// How many items it holds.
    pub items: u64,
}

/// The files that a table of contents names, by name. A rank without items leaves an empty file that none names.
///
/// # Errors
/// As [`read_metadata`]; [`Fault::Broken`] where a name leads elsewhere or an item ends nowhere.
pub fn claimed_files(source: &dyn ReadAt) -> Result<Vec<ClaimedFile>, Fault> {
    let mut files: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for item in read_metadata(source)? {
        if let Some(why) = refusal_of_path(&item.relative_path) {
            let path = shown(&item.relative_path);
            return Err(Fault::broken(format!("it names the file {path}, {why}")));
        }
        let Some(end) = item.offset_bytes.checked_add(item.length_bytes) else {
            return Err(Fault::broken("one of its items ends beyond what any file holds"));
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
