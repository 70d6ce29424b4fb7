//! Finds leftovers of interrupted processes, with size and age. Removes nothing.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stepvault_core::disk_facts::{Leftover, LeftoverKind};
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::temporary::is_unfinished_file;

use super::place::PROBE_PREFIX;
use crate::staging_place::{MOVED_ASIDE, OWN, OWN_INSIDE, RESTORE, SAVES};
use crate::temporary::TEMPORARY_PREFIX;

/// Maximum number of entries that one search reads. In a larger directory, leftovers after them are not found.
const MAX_ENTRIES: usize = 1_000_000;

/// Returns the leftovers in the vault's own directory.
pub fn in_vault(vault: &Path, now: Timestamp) -> Vec<Leftover> {
    let mut found = Vec::new();
    for (area, kind) in [
        ("staging", LeftoverKind::Vault),
        ("trash", LeftoverKind::Vault),
        (RESTORE, LeftoverKind::Staging),
        (MOVED_ASIDE, LeftoverKind::MovedAside),
    ] {
        found.extend(each_in(&vault.join(area), kind, now));
    }
    found.extend(saves_in(&vault.join(SAVES), now));
    found.extend(own_files(vault, now));
    found
}

/// Returns the leftovers among a trainer's checkpoints: temporary names at any depth, and stepvault's staging
/// directories.
pub fn among_checkpoints(watched: &Path, vault: Option<&Path>, now: Timestamp) -> Vec<Leftover> {
    let mut found = temporary_names(watched, now);
    let inside = |area: &str| watched.join(format!("{OWN_INSIDE}{area}"));
    found.extend(each_in(&inside(RESTORE), LeftoverKind::Staging, now));
    found.extend(saves_in(&inside(SAVES), now));
    let beside = watched.parent().map(|above| above.join(OWN));
    // The default vault is searched as a vault.
    if let Some(beside) = beside.filter(|beside| vault != Some(beside.as_path())) {
        found.extend(each_in(&beside.join(RESTORE), LeftoverKind::Staging, now));
        found.extend(saves_in(&beside.join(SAVES), now));
        found.extend(each_in(&beside.join(MOVED_ASIDE), LeftoverKind::MovedAside, now));
    }
    found
}

/// Returns a known leftover with its size and age.
pub fn measured(kind: LeftoverKind, path: &Path, now: Timestamp) -> Option<Leftover> {
    let mut size = Size::default();
    add(path, &mut size).ok()?;
    Some(Leftover {
        kind,
        path: path.display().to_string(),
        bytes: size.bytes,
        entries: size.entries,
        age_seconds: now.seconds_since(size.newest?),
    })
}

/// Returns everything in a directory except locks.
fn each_in(directory: &Path, kind: LeftoverKind, now: Timestamp) -> Vec<Leftover> {
    let is_lock = |path: &Path| path.extension().is_some_and(|extension| extension == "lock");
    list(directory)
        .into_iter()
        .filter(|path| !is_lock(path))
        .filter_map(|path| measured(kind, &path, now))
        .collect()
}

/// Returns staged steps that still have files. Of a committed one only the records are kept.
fn saves_in(base: &Path, now: Timestamp) -> Vec<Leftover> {
    let holds_files = |save: &PathBuf| list(save).iter().any(|path| path.is_dir());
    let saves = list(base).into_iter().flat_map(|area| list(&area));
    saves.filter(holds_files).filter_map(|save| measured(LeftoverKind::Staging, &save, now)).collect()
}

/// Returns temporary files of records and the leftovers of killed checks.
fn own_files(directory: &Path, now: Timestamp) -> Vec<Leftover> {
    let of = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let kind = own_kind(name)?;
        measured(kind, &path, now)
    };
    list(directory).into_iter().filter_map(of).collect()
}

fn own_kind(name: &str) -> Option<LeftoverKind> {
    if name.starts_with(PROBE_PREFIX) {
        return Some(LeftoverKind::Check);
    }
    name.starts_with(TEMPORARY_PREFIX).then_some(LeftoverKind::Temporary)
}

fn temporary_names(root: &Path, now: Timestamp) -> Vec<Leftover> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    let mut seen = 0;
    while let Some(directory) = pending.pop() {
        for path in list(&directory) {
            seen += 1;
            if seen > MAX_ENTRIES {
                tracing::debug!(path = %root.display(), "too many entries; stopped searching for leftovers");
                return found;
            }
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let kind = own_kind(name).or_else(|| is_unfinished_file(name).then_some(LeftoverKind::Temporary));
            match kind {
                Some(kind) => found.extend(measured(kind, &path, now)),
                None if path.symlink_metadata().is_ok_and(|facts| facts.is_dir()) => pending.push(path),
                None => {}
            }
        }
    }
    found
}

#[derive(Default)]
struct Size {
    bytes: u64,
    entries: u64,
    newest: Option<Timestamp>,
}

/// Adds up the size of everything at `path` without following links.
fn add(path: &Path, size: &mut Size) -> std::io::Result<()> {
    let mut pending = vec![path.to_path_buf()];
    while let Some(path) = pending.pop() {
        let facts = path.symlink_metadata()?;
        size.entries += 1;
        if facts.is_file() {
            size.bytes = size.bytes.saturating_add(facts.len());
        }
        let written = Timestamp::from_seconds(facts.mtime());
        size.newest = size.newest.max(Some(written));
        if facts.is_dir() && size.entries < MAX_ENTRIES as u64 {
            pending.extend(list(&path));
        }
    }
    Ok(())
}

/// Returns the paths in a directory, sorted; empty when it cannot be listed.
fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_left_is_found_wherever_it_is_left() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for (path, bytes) in [
            ("run/step_5/weights.pt", 3),
            ("run/step_6/weights.pt.tmp", 10),
            ("run/step_7.tmp/weights.pt", 20),
            ("run/.stepvault-doctor-0/a", 1),
            ("vault/staging/0/data/x", 7),
            ("vault/saves/a/1/step_5/x", 8),
            ("vault/saves/a/2/outcome.json", 8),
            ("vault/moved-aside/2/x", 9),
            ("vault/restore/k.lock", 0),
            ("vault/.stepvault-tmp-0", 2),
            (".stepvault/saves/b/3/step_5/x", 4),
        ] {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), "x".repeat(bytes)).unwrap();
        }
        let now = Timestamp::from_seconds(i64::MAX);
        let told = |found: Vec<Leftover>| {
            let mut told: Vec<(LeftoverKind, String, u64)> = found
                .into_iter()
                .map(|left| {
                    let path = left.path.strip_prefix(&place.path().display().to_string());
                    (left.kind, path.unwrap().to_owned(), left.bytes)
                })
                .collect();
            told.sort();
            told
        };
        let entry = |kind, path: &str, bytes| (kind, path.to_owned(), bytes);
        assert_eq!(
            told(in_vault(&at("vault"), now)),
            [
                entry(LeftoverKind::Temporary, "/vault/.stepvault-tmp-0", 2),
                entry(LeftoverKind::Vault, "/vault/staging/0", 7),
                entry(LeftoverKind::Staging, "/vault/saves/a/1", 8),
                entry(LeftoverKind::MovedAside, "/vault/moved-aside/2", 9),
            ]
        );
        assert_eq!(
            told(among_checkpoints(&at("run"), Some(&at("vault")), now)),
            [
                entry(LeftoverKind::Temporary, "/run/step_6/weights.pt.tmp", 10),
                entry(LeftoverKind::Temporary, "/run/step_7.tmp", 20),
                entry(LeftoverKind::Staging, "/.stepvault/saves/b/3", 4),
                entry(LeftoverKind::Check, "/run/.stepvault-doctor-0", 1),
            ]
        );
        assert!(among_checkpoints(&at("missing/run"), None, now).is_empty());
    }
}
