//! Steps without a number beside steps with one: copies of those, or states of their own.

use std::collections::BTreeMap;
use std::io;

use super::companions::{add, saved_with};
use super::found::{FoundStep, LONGEST_SAVE_SECONDS};
use crate::check::check_step;
use crate::profile::template::parent_prefix;
use crate::profile::{GENERIC, Profile};
use crate::soundness::read_bytes;
use crate::step_name;
use crate::structure::zip;
use crate::tree::{OpenFile, ReadAt, Tree};

/// Maximum number of numbered steps whose bytes are compared with a file's.
pub(super) const MAX_COMPARED: usize = 8;
/// Up to this size, files are compared as a whole.
const COMPARED_WHOLE_BYTES: u64 = 8 << 20;
/// How much of a larger file is compared in each of several places.
const SAMPLE_BYTES: u64 = 64 << 10;
/// Number of these places, the two ends included.
const SAMPLES: u64 = 16;

/// Leaves out the aliases that hold the state of a numbered step, and returns their paths: the trainer saved the same
/// state twice.
///
/// Of an unknown trainer, only equal bytes show that. Another alias beside numbered steps belongs to one of them, as in
/// [`saved_with`]. Otherwise it is a step if it states that it is ahead of them; or if its name says that it holds the
/// newest state, and it states a number that none of them has or was written after the newest of them. All aliases that
/// remain in a directory are one step, which has the files of the newest numbered one too: the trainer may resume from
/// either.
pub(super) fn leave_out_copies(
    profile: &Profile,
    steps: &mut Vec<FoundStep>,
    tree: &Tree,
    files: &dyn OpenFile,
) -> Vec<String> {
    let is_alias =
        |step: &FoundStep| step.rewritten && step.series_in(profile).is_some_and(|series| series.alias);
    if !steps.iter().any(is_alias) {
        return Vec::new();
    }
    let is_generic = profile.name == GENERIC;
    let (aliases, mut numbered): (Vec<_>, Vec<_>) = std::mem::take(steps).into_iter().partition(is_alias);
    let is_whole =
        |step: &&FoundStep| !step.rewritten && step.is_complete() && step.resumable && step.step.is_some();
    let mut complete: Vec<&FoundStep> = numbered.iter().filter(is_whole).collect();
    complete.sort_by_key(|step| std::cmp::Reverse(step.step));
    let mut copies = Vec::new();
    let mut own = Vec::new();
    let mut companions = Vec::new();
    for alias in aliases {
        let is_sound = |step: &FoundStep| check_step(step, tree, files).damage().is_empty();
        let same_state = |step: &&FoundStep| {
            alias.step.is_some()
                && step.step == alias.step
                && alias.written_at.seconds_since(step.written_at) <= LONGEST_SAVE_SECONDS
                && parent_prefix(&step.path) == parent_prefix(&alias.path)
                && is_sound(step)
        };
        let is_ahead = || complete.first().is_none_or(|newest| alias.step > newest.step);
        let is_later = || {
            let newest = complete.first();
            alias.step.is_some() || newest.is_none_or(|newest| alias.written_at > newest.written_at)
        };
        let is_copy = if is_generic {
            let mut compared = complete.iter().take(MAX_COMPARED);
            compared.any(|step| holds_copy(step, &alias, tree, files))
        } else {
            complete.iter().any(same_state)
        };
        if is_copy {
            copies.extend(alias.members);
        } else if !is_generic {
            own.push(alias);
        } else if let Some(step) = saved_with(&alias, &complete).filter(|_| is_sound(&alias)) {
            companions.push((step.path.clone(), alias));
        } else if is_ahead() || is_later() && step_name::says_newest(&alias.path) {
            own.push(alias);
        }
    }
    for (path, companion) in companions {
        if let Some(step) = numbered.iter_mut().find(|step| step.path == path) {
            add(step, companion);
        }
    }
    if is_generic {
        own = joined(own, tree);
        for step in &mut own {
            let place = parent_prefix(&step.path).to_owned();
            let beside = numbered.iter().filter(|other| parent_prefix(&other.path) == place);
            if let Some(newest) = beside.filter(is_whole).max_by_key(|other| other.step) {
                add(step, newest.clone());
            }
        }
    }
    *steps = numbered;
    steps.extend(own);
    copies
}

/// Makes one step of all steps without a number in the same directory. Of several that state numbers, the highest counts.
fn joined(aliases: Vec<FoundStep>, tree: &Tree) -> Vec<FoundStep> {
    let mut places: BTreeMap<(String, bool), Vec<FoundStep>> = BTreeMap::new();
    for alias in aliases {
        let key = (parent_prefix(&alias.path).to_owned(), tree.is_directory(&alias.path));
        places.entry(key).or_default().push(alias);
    }
    places.into_values().filter_map(join).collect()
}

fn join(mut aliases: Vec<FoundStep>) -> Option<FoundStep> {
    aliases.sort_by_cached_key(|alias| (step_name::newest_precedence(&alias.path), alias.path.clone()));
    let mut aliases = aliases.into_iter();
    let mut leading = aliases.next()?;
    for other in aliases {
        add(&mut leading, other);
    }
    Some(leading)
}

/// Whether a step holds the same bytes as an alias: each of its files is one of the step's.
fn holds_copy(step: &FoundStep, alias: &FoundStep, tree: &Tree, files: &dyn OpenFile) -> bool {
    if let [path] = alias.members.as_slice()
        && tree.is_file(path)
    {
        let mut members = step.members.iter().filter(|member| tree.is_file(member));
        return members.any(|member| is_same_content(path, member, files).unwrap_or(false));
    }
    let mut members = step.members.iter().filter(|member| tree.is_directory(member));
    members.any(|member| {
        let mut inside = alias.members.iter().flat_map(|path| {
            tree.inside(path).filter_map(move |(below, _)| Some((below, below.strip_prefix(path.as_str())?)))
        });
        inside.all(|(path, rest)| {
            let other = format!("{member}{rest}");
            !tree.is_file(path)
                || tree.file_size_bytes(path) == tree.file_size_bytes(&other)
                    && is_same_content(path, &other, files).unwrap_or(false)
        })
    })
}

/// Compares two files: small ones as a whole, larger ones in several places. The records of two archives of `torch.save`,
/// which have the names of their files in them, are compared by their checksums.
pub(super) fn is_same_content(one: &str, other: &str, files: &dyn OpenFile) -> io::Result<bool> {
    let (one, other) = (files.open(one)?, files.open(other)?);
    let size_bytes = one.size_bytes();
    if size_bytes != other.size_bytes() || size_bytes == 0 {
        return Ok(size_bytes > 0 && has_same_records(&*one, &*other));
    }
    let (length_bytes, places) =
        if size_bytes <= COMPARED_WHOLE_BYTES { (size_bytes, 1) } else { (SAMPLE_BYTES, SAMPLES) };
    for place in 0..places {
        let offset = (size_bytes - length_bytes) / (places - 1).max(1) * place;
        if read_bytes(&*one, offset, length_bytes)? != read_bytes(&*other, offset, length_bytes)? {
            return Ok(has_same_records(&*one, &*other));
        }
    }
    Ok(true)
}

fn has_same_records(one: &dyn ReadAt, other: &dyn ReadAt) -> bool {
    let records = |source: &dyn ReadAt| -> Option<Vec<(String, u32, u64)>> {
        let records = zip::read(source).ok()?;
        let of = |record: &zip::Record| {
            let (_, name) = record.name.split_once('/')?;
            (record.crc32 != 0 || record.size_bytes == 0)
                .then(|| (name.to_owned(), record.crc32, record.size_bytes))
        };
        // It depends on the name of the file.
        let compared = records.iter().filter(|record| !record.name.ends_with("serialization_id"));
        compared.map(of).collect()
    };
    let is_likely = one.size_bytes().abs_diff(other.size_bytes()) <= one.size_bytes() / 4 + SAMPLE_BYTES;
    is_likely && records(one).is_some_and(|list| !list.is_empty() && Some(list) == records(other))
}
