//! What a trainer's pointer names, and what it must name after a restore.

use crate::find::units::{Unit, UnitFile};
use crate::profile::template::{Template, Values, last_component, parent_prefix};
use crate::profile::{PathGlob, Pointer, PointerKind, PointerRole, Profile};
use crate::soundness::read_tail;
use crate::text_file::read_text;
use crate::tree::{EntryKind, OpenFile, Tree};

/// The number of bytes at the end of two files of the same length that are compared to detect a copy. A torch archive
/// ends with the checksums of all its records.
const TAIL_BYTES: u64 = 64 << 10;

/// The maximum number of files whose ends are compared with a copy's.
const COPY_CANDIDATES_LIMIT: usize = 64;

/// A pointer that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointerFound {
    /// Its path, relative to the watched directory.
    pub path: String,
    /// Its literal content; for a copy, the path of the step whose bytes it has, or nothing.
    pub says: String,
    /// The path of the step that it names, if that step exists.
    pub target: Option<String>,
    /// The number that it names, whether or not that step exists.
    pub target_step: Option<u64>,
    /// True when it names a step that does not exist, or when its content cannot be parsed.
    pub dangling: bool,
    /// Its purpose.
    pub role: PointerRole,
    /// Every path of the step that it names.
    pub(crate) names: Vec<String>,
}

impl PointerFound {
    /// Returns whether the trainer resumes by it.
    pub fn is_for_resuming(&self) -> bool {
        self.role == PointerRole::Resume
    }
}

/// A pointer to write after a restore, with a temporary name and a rename.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointerWrite {
    /// Its path, relative to the watched directory.
    pub path: String,
    /// Its content.
    pub content: PointerContent,
}

/// The content that a pointer must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PointerContent {
    /// A file with this text and no line end.
    Text(String),
    /// A symbolic link with this target.
    Symlink(String),
    /// A file with the bytes of this file, which is relative to the watched directory.
    CopyOf(String),
}

/// Reads every pointer of a directory.
pub(crate) fn read_pointers(
    profile: &Profile,
    tree: &Tree,
    files: &dyn OpenFile,
    units: &[Unit<'_>],
) -> Vec<PointerFound> {
    let mut found: Vec<PointerFound> = Vec::new();
    for pointer in &profile.pointer {
        let Ok(glob) = PathGlob::try_from(pointer.path.as_glob()) else {
            continue;
        };
        for (path, entry) in tree.entries().filter(|(path, _)| glob.is_match(path)) {
            if found.iter().any(|other| other.path == path) {
                continue;
            }
            let read = match (&entry.kind, pointer.kind) {
                (EntryKind::File { .. }, PointerKind::Text) => {
                    // A pointer that cannot be read as text names nothing.
                    let says = read_text(tree, files, path).unwrap_or_default();
                    Some(named(profile, pointer, path, says, units))
                }
                (
                    EntryKind::Symlink { target },
                    PointerKind::RelativeSymlink | PointerKind::PathSymlink | PointerKind::CopyOrSymlink,
                ) => Some(named(profile, pointer, path, target.clone(), units)),
                (EntryKind::File { size_bytes, .. }, PointerKind::Copy | PointerKind::CopyOrSymlink) => {
                    Some(copied(pointer, path, *size_bytes, files, units))
                }
                _ => None,
            };
            found.extend(read);
        }
    }
    found
}

/// Returns what a text or a link names.
fn named(profile: &Profile, pointer: &Pointer, path: &str, says: String, units: &[Unit<'_>]) -> PointerFound {
    let is_link = pointer.kind != PointerKind::Text;
    let word = if is_link { last_component(says.trim_end_matches('/')) } else { says.as_str() };
    let unit = units.iter().find(|unit| {
        unit.members.iter().any(|member| {
            let values = Values::from_parts(&member.parts, None, &member.path);
            pointer.path.render(&values).as_deref() == Some(path)
                && pointer.says.render(&values).as_deref() == Some(word)
        })
    });
    let by_name = || {
        let step = format!("{}{word}", parent_prefix(path));
        profile
            .series
            .iter()
            .find_map(|series| series.path.parts(&step))
            .and_then(|parts| Values::from_parts(&parts, None, &step).step)
    };
    let target_step = match unit {
        Some(unit) => unit.step,
        None if pointer.says.is_only("step") => word.parse().ok(),
        None => by_name(),
    };
    let in_words = pointer.also.iter().any(|also| also == word);
    PointerFound {
        path: path.to_owned(),
        target: unit.map(|unit| unit.path().to_owned()),
        target_step,
        dangling: unit.is_none() && !in_words,
        role: pointer.role,
        names: unit.map(member_paths).unwrap_or_default(),
        says,
    }
}

/// Returns the step whose bytes a file has.
fn copied(
    pointer: &Pointer,
    path: &str,
    size_bytes: u64,
    files: &dyn OpenFile,
    units: &[Unit<'_>],
) -> PointerFound {
    let mut alike: Vec<_> = units
        .iter()
        .flat_map(|unit| unit.members.iter().map(move |member| (unit, member)))
        .filter(|(unit, member)| {
            let values = Values::from_parts(&member.parts, None, &member.path);
            let name = last_component(&member.path);
            let same_size = |file: &UnitFile| file.inside == name && file.size_bytes == size_bytes;
            !unit.series.alias
                && unit.files.iter().any(same_size)
                && pointer.path.render(&values).as_deref() == Some(path)
        })
        .collect();
    // Of several identical candidates, the newest is the most likely.
    alike.sort_by_key(|(unit, _)| std::cmp::Reverse(unit.newest()));
    let unit = alike
        .into_iter()
        .take(COPY_CANDIDATES_LIMIT)
        .find(|(_, member)| same_tail(files, path, &member.path).unwrap_or(false))
        .map(|(unit, _)| unit);
    PointerFound {
        path: path.to_owned(),
        says: unit.map(|unit| unit.path().to_owned()).unwrap_or_default(),
        target: unit.map(|unit| unit.path().to_owned()),
        target_step: unit.and_then(|unit| unit.step),
        // The file is a step of its own.
        dangling: false,
        role: pointer.role,
        names: unit.map(member_paths).unwrap_or_default(),
    }
}

fn member_paths(unit: &Unit<'_>) -> Vec<String> {
    unit.members.iter().map(|member| member.path.clone()).collect()
}

fn same_tail(files: &dyn OpenFile, one: &str, other: &str) -> std::io::Result<bool> {
    let tail = |path| read_tail(&*files.open(path)?, TAIL_BYTES);
    Ok(tail(one)? == tail(other)?)
}

/// Returns the pointers to write so that the trainer resumes from a restored step. `root` is the watched directory's
/// path as the trainer sees it, `paths` are all paths of the step relative to it, and `tree` is the directory before
/// the restore.
///
/// The step must be in place first: most trainers fail on a pointer to a step that does not exist.
pub fn pointer_after_restore(
    profile: &Profile,
    tree: &Tree,
    root: &str,
    paths: &[String],
) -> Vec<PointerWrite> {
    let mut writes: Vec<PointerWrite> = Vec::new();
    let resuming: Vec<_> =
        profile.pointer.iter().filter(|pointer| pointer.role == PointerRole::Resume).collect();
    // If only some pointers have a rank, those belong to the steps of which each rank writes its own, and the others
    // to the rest.
    let by_rank = |pointer: &&Pointer| pointer.path.uses("rank");
    let by_shape = resuming.iter().any(by_rank) && !resuming.iter().all(by_rank);
    let has_rank = |path: &str| Values::of(profile, None, path).is_some_and(|values| values.rank.is_some());
    for pointer in resuming {
        for path in paths {
            if by_shape && by_rank(&pointer) != has_rank(path) {
                continue;
            }
            if let Some(write) = write_for(profile, pointer, tree, root, path)
                && writes.iter().all(|other| other.path != write.path)
            {
                writes.push(write);
            }
        }
    }
    writes
}

/// Returns the copies of the best step, whose paths these are, that a user looks for and that do not exist: each with its
/// path and the path that it is a copy of.
pub fn copies_of_best(profile: &Profile, tree: &Tree, paths: &[String]) -> Vec<(String, String)> {
    let is_copy = |pointer: &&Pointer| matches!(pointer.kind, PointerKind::Copy | PointerKind::CopyOrSymlink);
    let pointers = profile.pointer.iter();
    let of_best: Vec<&Pointer> =
        pointers.filter(|pointer| pointer.role == PointerRole::Best).filter(is_copy).collect();
    let copy = |pointer: &&Pointer, path: &String| {
        let place = pointer.path.render(&Values::of(profile, None, path)?)?;
        (place != *path && tree.get(&place).is_none()).then(|| (place, path.clone()))
    };
    let all = paths.iter().flat_map(|path| of_best.iter().filter_map(move |pointer| copy(pointer, path)));
    all.collect()
}

fn write_for(
    profile: &Profile,
    pointer: &Pointer,
    tree: &Tree,
    root: &str,
    path: &str,
) -> Option<PointerWrite> {
    let values = Values::of(profile, None, path)?;
    let place = pointer.path.render(&values)?;
    // A step that is its own pointer (a lone `last.ckpt`).
    if place == path {
        return None;
    }
    let before = tree.get(&place).map(|entry| &entry.kind);
    let says = || Template::render(&pointer.says, &values);
    let content = match (pointer.kind, before) {
        (PointerKind::Text, _) => PointerContent::Text(says()?),
        (PointerKind::RelativeSymlink, _) | (PointerKind::CopyOrSymlink, Some(EntryKind::Symlink { .. })) => {
            PointerContent::Symlink(says()?)
        }
        (PointerKind::PathSymlink, Some(EntryKind::Symlink { target })) => {
            // Keep the form in which the trainer writes the path: it reads the link and does not follow it.
            PointerContent::Symlink(format!("{}{}", parent_prefix(target.trim_end_matches('/')), says()?))
        }
        (PointerKind::PathSymlink, _) => {
            PointerContent::Symlink(format!("{}/{path}", root.trim_end_matches('/')))
        }
        (PointerKind::Copy | PointerKind::CopyOrSymlink, _) => PointerContent::CopyOf(path.to_owned()),
    };
    Some(PointerWrite { path: place, content })
}
