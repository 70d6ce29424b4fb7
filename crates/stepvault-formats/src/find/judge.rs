//! Whether one step is complete, by the rule of its series and all that is around it.

use stepvault_core::timestamp::Timestamp;

use super::ranks::ranks_of;
use super::units::{Unit, UnitFile};
use super::{Completeness, Extent, FindOptions, areal};
use crate::pointer::PointerFound;
use crate::profile::template::{Values, last_component, parent_prefix};
use crate::profile::{PathGlob, Profile, Proof, UnitRule};
use crate::temporary::is_unfinished_file;
use crate::tree::Tree;

/// Why a save is taken to be over where nothing else says so.
const QUIET: &str = "its files are all there";

/// What a step is judged by besides itself.
pub(super) struct Surroundings<'a> {
    pub(super) profile: &'a Profile,
    pub(super) tree: &'a Tree,
    pub(super) pointers: &'a [PointerFound],
    pub(super) now: Timestamp,
    pub(super) options: &'a FindOptions,
    /// For each of the series' [`as_before`](crate::profile::Complete::as_before), the newest complete step with a lower
    /// number that has such a file.
    pub(super) had: &'a [Option<&'a str>],
    /// Ranks of the complete step before it.
    pub(super) earlier_ranks: Option<u32>,
    /// Steps of the same series with higher numbers.
    pub(super) later: &'a [Unit<'a>],
}

/// Judges a step, and counts its ranks.
pub(super) fn judge(unit: &Unit<'_>, around: &Surroundings<'_>) -> (Completeness, Option<u32>) {
    if unit.files.is_empty() {
        let reasons = vec!["it holds no file yet".to_owned()];
        return (Completeness::NotYet { reasons }, None);
    }
    let mut reasons = Vec::new();
    own_evidence(unit, &mut reasons);
    expected_files(unit, around, &mut reasons);
    let mut ranks = ranks_of(unit, around.options.extent);
    reasons.append(&mut ranks.faults);
    if !around.options.extent.is_part() {
        reasons.extend(ranks.count.and_then(|count| too_few_ranks(count, around)));
    }
    match proof(unit, around) {
        Ok(proof) if reasons.is_empty() => (Completeness::Complete { proof }, ranks.count),
        Ok(_) => (Completeness::NotYet { reasons }, ranks.count),
        Err(reason) => {
            reasons.push(reason);
            (Completeness::NotYet { reasons }, ranks.count)
        }
    }
}

/// What its own files say against it, whatever proves it.
fn own_evidence(unit: &Unit<'_>, reasons: &mut Vec<String>) {
    let complete = &unit.series.complete;
    if !unit.fits {
        let wanted: Vec<_> = unit.series.holds.iter().map(PathGlob::text).collect();
        reasons.push(format!("it holds none of {} yet", wanted.join(", ")));
    }
    for file in unit.files.iter().filter(|file| !any(&complete.refused, file)) {
        let unfinished = file.inside.split('/').find(|name| is_unfinished_file(name));
        if let Some(name) = unfinished {
            reasons.push(if name == file.inside {
                format!("{name} has the name of an unfinished file")
            } else {
                format!("{} has the name of something unfinished, {name}", file.inside)
            });
            break;
        }
    }
    for file in unit.files.iter().filter(|file| any(&complete.refused, file)) {
        reasons.push(format!(
            "{} is there, which says that it is not complete",
            file.inside
        ));
    }
    let members_are_files = unit.members.iter().any(|member| {
        let name = last_component(&member.path);
        unit.files.iter().any(|file| file.inside == name)
    });
    if members_are_files && let Some(file) = unit.files.iter().find(|file| file.size_bytes == 0) {
        reasons.push(format!("{} is empty (0 bytes)", file.inside));
    }
    for rule in &complete.newest {
        for marker in unit.files.iter().filter(|file| rule.file.is_match(&file.inside)) {
            let beside = |file: &&UnitFile| {
                rule.than.is_match(&file.inside)
                    && parent_prefix(&file.inside) == parent_prefix(&marker.inside)
            };
            let newest = unit.files.iter().filter(beside).max_by_key(|file| file.mtime);
            if let Some(newest) = newest.filter(|newest| newest.mtime > marker.mtime) {
                reasons.push(format!(
                    "{} was written after {}, which comes after it in a save: the step is being overwritten, or was \
                     copied without its times",
                    newest.inside, marker.inside
                ));
            }
        }
    }
    if unit.series.unit == Some(UnitRule::ArealRecover) {
        reasons.extend(areal::objections(unit));
    }
}

/// What must be there and is not.
fn expected_files(unit: &Unit<'_>, around: &Surroundings<'_>, reasons: &mut Vec<String>) {
    let complete = &unit.series.complete;
    let extent = around.options.extent;
    // Which rank writes what is required is not said, except that rank 0's node has it.
    let required = complete.required.iter().filter(|_| extent != Extent::OtherPart);
    for required in required {
        let wanted = required
            .when
            .as_ref()
            .is_none_or(|when| unit.files.iter().any(|file| when.is_match(&file.inside)));
        if wanted && let Err(reason) = present(unit, &required.any) {
            reasons.push(reason);
        }
    }
    let as_before = complete.as_before.iter().zip(around.had);
    for (glob, had) in as_before.filter(|_| !extent.is_part()) {
        if let Some(before) = had
            && !unit.has(glob)
        {
            reasons.push(format!("{} is not there yet, which {before} has", glob.text()));
        }
    }
}

/// Which of these files is there and not empty, or what to say.
fn present<'a>(unit: &'a Unit<'_>, globs: &[PathGlob]) -> Result<&'a UnitFile, String> {
    let mut empty = None;
    for file in unit.files.iter().filter(|file| any(globs, file)) {
        if file.size_bytes > 0 || any(&unit.series.complete.may_be_empty, file) {
            return Ok(file);
        }
        empty = Some(format!("{} is empty (0 bytes)", file.inside));
    }
    Err(empty.unwrap_or_else(|| {
        let names: Vec<_> = globs.iter().map(PathGlob::text).collect();
        match names.as_slice() {
            [name] => format!("{name} is not there yet"),
            names => format!("none of {} is there yet", names.join(", ")),
        }
    }))
}

fn any(globs: &[PathGlob], file: &UnitFile) -> bool {
    globs.iter().any(|glob| glob.is_match(&file.inside))
}

/// A loss of the highest ranks leaves no gap: only what is known from elsewhere shows it.
fn too_few_ranks(count: u32, around: &Surroundings<'_>) -> Option<String> {
    // A run may go on with fewer ranks. Its next step then has as few; a save that was cut off is not repeated.
    if around
        .later
        .iter()
        .any(|later| ranks_of(later, around.options.extent).count == Some(count))
    {
        return None;
    }
    let few = if count == 1 {
        "1 rank".to_owned()
    } else {
        format!("{count} ranks")
    };
    if let Some(world) = around.options.expected_world.filter(|world| count < *world) {
        return Some(format!("{few} wrote it, and the run has {world}"));
    }
    let before = around.earlier_ranks.or(around.options.previous_ranks)?;
    (count < before && around.options.expected_world != Some(count))
        .then(|| format!("{few} wrote it, and {before} wrote the step before"))
}

fn proof(unit: &Unit<'_>, around: &Surroundings<'_>) -> Result<String, String> {
    let proof = own_proof(unit, around);
    let by_rank_zero = !matches!(
        unit.series.complete.proof,
        Proof::Rename | Proof::MarkerRemoved(_) | Proof::Quiet
    );
    match (proof, around.options.extent) {
        (Err(_), Extent::OtherPart) if by_rank_zero => by_quiet(unit, around),
        (Err(reason), Extent::LeadingPart) if by_rank_zero => Err(format!(
            "{reason} (of several nodes the first by name has to be that of rank 0, which writes it)"
        )),
        (proof, _) => proof,
    }
}

fn own_proof(unit: &Unit<'_>, around: &Surroundings<'_>) -> Result<String, String> {
    match &unit.series.complete.proof {
        Proof::Rename => Ok("it has its final name, which it is given last".to_owned()),
        Proof::Marker(files) => {
            let marker = present(unit, files)?;
            Ok(format!(
                "its marker {} is there, which is written last",
                marker.inside
            ))
        }
        Proof::MarkerRemoved(suffix) => {
            let marker = format!("{}{suffix}", unit.path());
            match around.tree.get(&marker) {
                Some(_) => Err(format!("{marker} is still there, which marks it as unfinished")),
                None => Ok(format!("{marker} is gone, which marks it as unfinished")),
            }
        }
        Proof::Pointer => by_pointer(unit, around),
        Proof::PointerOrQuiet if around.pointers.iter().any(PointerFound::is_for_resuming) => {
            by_pointer(unit, around)
        }
        Proof::PointerOrQuiet | Proof::Quiet => by_quiet(unit, around),
    }
}

/// The pointer of each member names it, or a newer one.
fn by_pointer(unit: &Unit<'_>, around: &Surroundings<'_>) -> Result<String, String> {
    let mut proof = None;
    for member in &unit.members {
        let values = Values::from_parts(&member.parts, None, &member.path);
        let wanted: Vec<_> = around
            .profile
            .pointer
            .iter()
            .filter_map(|pointer| pointer.path.render(&values))
            .collect();
        let pointer = around
            .pointers
            .iter()
            .find(|found| found.is_for_resuming() && wanted.contains(&found.path))
            .ok_or_else(|| format!("{} is not there yet", wanted.join(" or ")))?;
        let reached =
            pointer.names.contains(&member.path) || unit.step.is_some() && pointer.target_step >= unit.step;
        if !reached {
            return Err(format!("{} still says {}", pointer.path, pointer.says));
        }
        proof = Some(format!("{} says {}", pointer.path, pointer.says));
    }
    proof.ok_or_else(|| "nothing points to it".to_owned())
}

/// Nothing was written for long enough, or a newer step was begun later.
fn by_quiet(unit: &Unit<'_>, around: &Surroundings<'_>) -> Result<String, String> {
    let newest = unit.newest().unwrap_or_default();
    // A path that is overwritten at each save has no newer step beside it.
    let later = around
        .later
        .iter()
        .find(|later| later.newest().is_some_and(|written| written > newest));
    if let Some(later) = later.filter(|_| unit.series.unit.is_none()) {
        return Ok(format!("{QUIET}, and {} was begun after it", later.path()));
    }
    if newest > around.now {
        return Err("its newest file is stamped with a time that has not come yet".to_owned());
    }
    let quiet_seconds = around.now.seconds_since(newest);
    let wanted_seconds = around.options.quiet_seconds;
    if quiet_seconds < wanted_seconds {
        return Err(format!(
            "it was written {quiet_seconds} s ago, and must be quiet for {wanted_seconds} s"
        ));
    }
    Ok(format!("{QUIET}, and nothing was written for {wanted_seconds} s"))
}
