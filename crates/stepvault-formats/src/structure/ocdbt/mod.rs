//! OCDBT: tensorstore's key-value database in a directory, in which Orbax keeps every array of a checkpoint.
//!
//! `manifest.ocdbt` names the root of a B+tree whose nodes and values are in data files (`d/…`). The check covers the
//! frame, the CRC-32C and every field of the manifest and of each node of the newest version. It tests that parents
//! and children agree on levels, keys and sizes, that each value lies inside its file, and that each array has its
//! description and, if the description determines it, the right number of chunks. Older versions are not checked,
//! because nothing in them is restored.
//!
//! The rules are those of tensorstore's `tensorstore/kvstore/ocdbt/index.rst` and of the code in `format/` beside it.
//!
//! # Blind spots
//!
//! Values carry no checksum, so changed bytes in a chunk are not detected, unless the array has the codec `crc32c`
//! ([`crate::deep`]). A data file that is missing or cut off
//! where it holds nothing of the newest version passes: a process's own files (`ocdbt.process_*/d/…`) also hold what
//! it wrote before the databases were merged.

mod arrays;
mod budget;
mod file_table;
mod frame;
mod manifest;
mod node;
mod store;
mod walk;

use budget::{Budget, MAX_PIECE_BYTES};
use manifest::Manifest;
use store::Store;

use crate::deep::Span;
use crate::soundness::Fault;
use crate::structure::place::joined;
use crate::tree::{OpenFile, Tree};

pub use arrays::{Arrays, StoredArray};

/// The file that makes a directory a database.
pub const MANIFEST_NAME: &str = "manifest.ocdbt";

/// Checks a database and returns its arrays.
///
/// # Errors
/// [`Fault::Broken`] when a rule is violated, with the file in the text; [`Fault::Unknown`] for unknown versions,
/// kinds and sizes; [`Fault::Read`] when a file cannot be read.
pub fn read(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<Arrays, Fault> {
    let mut store = Store::new(tree, directory, files);
    let mut budget = store.budget();
    let mut collected = arrays::Collector::default();
    let manifest_path = read_with(
        tree,
        directory,
        &mut store,
        &mut budget,
        &mut |store, key, value, budget| collected.take(store, key, value, budget),
    )?;
    Ok(collected.finish(&manifest_path))
}

/// Passes every key of the newest version to `visit`, and returns the path of the manifest.
fn read_with(
    tree: &Tree,
    directory: &str,
    store: &mut Store<'_>,
    budget: &mut Budget,
    visit: &mut walk::WalkVisit<'_>,
) -> Result<String, Fault> {
    let manifest_path = joined(directory, MANIFEST_NAME);
    if !tree.is_file(&manifest_path) {
        return Err(Fault::broken(format!(
            "{manifest_path} is missing, and nothing in the directory can be found without it"
        )));
    }
    let bytes = store.whole(MANIFEST_NAME, MAX_PIECE_BYTES)?;
    store.collect(manifest_path.clone(), 0, &bytes, "the manifest");
    let root = match manifest::read(&bytes, &manifest_path, budget)? {
        Manifest::Root(root) => root,
        Manifest::Numbered => {
            let name = store.newest_numbered().ok_or_else(|| {
                Fault::broken(format!(
                    "{manifest_path} keeps its versions in files named manifest. and a number, but no such file \
                     exists"
                ))
            })?;
            let bytes = store.whole(&name, MAX_PIECE_BYTES)?;
            let path = store.path_of(&name);
            store.collect(path.clone(), 0, &bytes, "the manifest");
            match manifest::read(&bytes, &path, budget)? {
                Manifest::Root(root) => root,
                Manifest::Numbered => {
                    return Err(Fault::broken(format!("{path} is damaged: it lists no version")));
                }
            }
        }
    };
    walk::walk(store, &root, budget, visit)?;
    Ok(manifest_path)
}

/// Returns the checksum of every node, and of every chunk that ends with one, with the paths of their files.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn checksums(
    tree: &Tree,
    directory: &str,
    files: &dyn OpenFile,
) -> Result<Vec<(String, Span)>, Fault> {
    let arrays = read(tree, directory, files)?;
    let mut store = Store::new(tree, directory, files);
    store.checksums = Some(Vec::new());
    let mut budget = store.budget();
    read_with(
        tree,
        directory,
        &mut store,
        &mut budget,
        &mut |store, key, value, _| arrays::collect_checksum(&arrays, store, key, value),
    )?;
    Ok(store.checksums.unwrap_or_default())
}

/// Checks a database.
///
/// # Errors
/// Those of [`read`].
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    read(tree, directory, files)?.check()
}

#[cfg(test)]
mod tests;
