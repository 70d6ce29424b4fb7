//! Walks from the root of the newest version to every key.

use super::budget::{Budget, MAX_PIECE_BYTES};
use super::file_table::DataFile;
use super::manifest::Root;
use super::node::{self, Child, Expected, Statistics, Visit};
use super::store::Store;

/// The maximum number of levels; three hold a billion keys.
const MAX_HEIGHT: u8 = 16;
use crate::soundness::Fault;

/// A node that has not been read yet.
struct Pending {
    child: Child,
    height: u8,
}

/// Reads every node below `root`, checks that each agrees with its parent's reference, and passes every key to
/// `visit`.
///
/// Levels strictly decrease and every byte is charged to the budget, so the walk ends whatever the nodes contain.
pub(super) fn walk(
    store: &mut Store<'_>,
    root: &Root,
    budget: &mut Budget,
    visit: &mut WalkVisit<'_>,
) -> Result<(), Fault> {
    let Some((file, location)) = &root.place else {
        return Ok(());
    };
    if root.height > MAX_HEIGHT {
        return Err(Fault::Unknown(format!(
            "the tree of keys has {} levels, more than the limit of {MAX_HEIGHT}",
            root.height
        )));
    }
    let mut pending = vec![Pending {
        child: Child {
            file: file.clone(),
            location: *location,
            statistics: root.statistics,
            prefix: Vec::new(),
            first_key: Vec::new(),
        },
        height: root.height,
    }];
    while let Some(Pending { child, height }) = pending.pop() {
        let what = named(store, &child.file, child.location.offset);
        budget.spend(child.location.length_bytes, &what)?;
        let encoded = store.read(&child.file.path, child.location, MAX_PIECE_BYTES, &what)?;
        let path = store.path_of(&child.file.path);
        store.collect(path, child.location.offset, &encoded, "the index node");
        let expected = Expected {
            height,
            base: child.file.base(),
            prefix: &child.prefix,
            first_key: &child.first_key,
        };
        let mut each: Box<Visit<'_>> = Box::new(|key, value, budget| visit(store, key, value, budget));
        let outcome = node::read(&encoded, &expected, &what, budget, &mut *each)?;
        drop(each);
        compare(child.statistics, outcome.statistics, &what)?;
        let below = outcome.children.into_iter().rev().map(|child| Pending {
            child,
            height: height.saturating_sub(1),
        });
        pending.extend(below);
    }
    Ok(())
}

/// A callback for each key and its value, with access to the files.
pub(super) type WalkVisit<'v> =
    dyn FnMut(&mut Store<'_>, &[u8], node::Value<'_>, &mut Budget) -> Result<(), Fault> + 'v;

fn named(store: &Store<'_>, file: &DataFile, offset: u64) -> String {
    format!("the index node at byte {offset} of {}", store.path_of(&file.path))
}

fn compare(said: Statistics, found: Statistics, what: &str) -> Result<(), Fault> {
    if said == found {
        return Ok(());
    }
    let why = if said.keys == found.keys {
        "sizes other than those stated by the node that refers to it".to_owned()
    } else {
        format!(
            "{} keys, but the node that refers to it states {}",
            found.keys, said.keys
        )
    };
    Err(Fault::broken(format!("{what} holds {why}")))
}
