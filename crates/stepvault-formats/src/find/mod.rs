//! Finds the steps of a directory with a profile, and which of them are complete.

mod areal;
mod below;
mod companions;
mod copies;
mod found;
mod leftover;
mod stated;
pub(crate) mod units;
mod usual;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

pub use self::below::{RunBelow, runs_below};
use self::companions::add_texts;
use self::copies::leave_out_copies;
pub use self::found::{
    Completeness, Extent, FindOptions, Found, FoundStep, LONGEST_SAVE_SECONDS, LinkFound, QuietRule,
    StepIdentity,
};
pub use self::leftover::{Leftover, copied_files, leftovers};
use self::units::{
    Collected, Member, Unit, UnitFile, collect, files_of, holds_state, newest_of, total_bytes,
};
use self::usual::EarlierFiles;
pub use self::usual::{StepNames, UsualFiles};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::words;

use crate::pointer::{PointerFound, read_pointers};
use crate::profile::template::{Values, last_component, parent_prefix};
use crate::profile::{GENERIC, PathGlob, Profile, Proof, RankSet, UnitRule};
use crate::temporary::is_unfinished_file;
use crate::tree::{OpenFile, Tree};

/// A time after every file's: nothing is being written any more.
const END_OF_TIME: Timestamp = Timestamp::from_seconds(253_402_300_799);
/// The reason why a save counts as finished when no other proof exists.
const QUIET: &str = "all its files exist";

/// Finds the steps of a directory. `now` comes from the clock that stamps the files.
pub fn find_steps(
    profile: &Profile,
    tree: &Tree,
    files: &dyn OpenFile,
    now: Timestamp,
    options: &FindOptions,
) -> Found {
    let Collected { mut units, temporary, ignored } = collect(profile, tree, files);
    let pointers = read_pointers(profile, tree, files, &units);
    units.retain(|unit| !(unit.series.alias && is_known_copy(unit, &pointers)));
    let mut steps = Vec::new();
    let mut missing = BTreeMap::new();
    for series in units.chunk_by(|one, other| one.series.name == other.series.name) {
        let as_before = series.first().map_or(&[][..], |unit| &unit.series.complete.as_before);
        // A directory may hold thousands of steps, so no step is compared with all others.
        let mut had: Vec<Option<&str>> = vec![None; as_before.len()];
        let mut earlier_ranks = None;
        let mut before = None;
        let mut usual = EarlierFiles::default();
        let followers = followers(series);
        for (index, unit) in series.iter().enumerate() {
            let later = series.get(index..).unwrap_or_default();
            let first_later = later.partition_point(|other| other.step <= unit.step);
            let surroundings = Surroundings {
                profile,
                tree,
                pointers: &pointers,
                now,
                options,
                had: &had,
                earlier_ranks,
                before,
                later: later.get(first_later..).unwrap_or_default(),
                follower: followers.get(index).copied().flatten(),
            };
            let (complete, ranks) = judge(unit, &surroundings);
            if let Completeness::Complete { quiet_rule, .. } = complete {
                if is_compared(unit, quiet_rule, options.extent) {
                    let names = names_of(unit, tree);
                    missing.insert(unit.path().to_owned(), usual.lacking(unit.step, &names));
                    // The name of a lone file may be another one in each step.
                    if !unit.is_files() || !unit.beside.is_empty() {
                        usual.add(names);
                    }
                }
                for (glob, had) in as_before.iter().zip(&mut had) {
                    if unit.has(glob) {
                        *had = Some(unit.path());
                    }
                }
                earlier_ranks = ranks.or(earlier_ranks);
                before = Some(unit);
            }
            steps.push(found_step(unit, complete, ranks));
        }
    }
    let copies = leave_out_copies(profile, &mut steps, tree, files);
    if profile.name == GENERIC {
        add_texts(&mut steps, tree, files);
    }
    steps.extend(temporary.iter().filter_map(|(path, step)| {
        let step = (*step)?;
        Some(temporary_step(tree, path, step))
    }));
    let is_pointer = |path: &str| pointers.iter().any(|pointer| pointer.path == path);
    Found {
        links: found::links(&steps, is_pointer, tree),
        steps,
        pointers,
        temporary: temporary.into_iter().map(|(path, _)| path).collect(),
        ignored,
        copies,
        missing,
    }
}

/// Returns whether every file of an alias is only another name for a step's bytes.
fn is_known_copy(unit: &Unit<'_>, pointers: &[PointerFound]) -> bool {
    let is_own = |member: &&Member| unit.series.path.is_match(&member.path);
    unit.members
        .iter()
        .filter(is_own)
        .all(|member| pointers.iter().any(|pointer| pointer.path == member.path && pointer.target.is_some()))
}

/// Returns for each of these units, which are sorted by number, the first one with a higher number that was written after
/// it. Takes one pass: a directory may hold thousands of steps.
fn followers<'a>(series: &'a [Unit<'a>]) -> Vec<Option<&'a Unit<'a>>> {
    let mut followers = vec![None; series.len()];
    // Units with higher numbers than those at hand, the lowest number last, and each written before the one in front of
    // it. A unit that was not is never the first that was written after something.
    let mut newer: Vec<(Option<Timestamp>, &Unit<'_>)> = Vec::new();
    let mut end = series.len();
    for group in series.chunk_by(|one, other| one.step == other.step).rev() {
        let begin = end - group.len();
        for (follower, unit) in followers[begin..end].iter_mut().zip(group) {
            let written = unit.newest();
            let count = newer.partition_point(|(other, _)| *other > written);
            *follower = newer[..count].last().map(|(_, unit)| *unit);
        }
        for unit in group.iter().rev() {
            let written = unit.newest();
            newer.truncate(newer.partition_point(|(other, _)| *other > written));
            newer.push((written, unit));
        }
        end = begin;
    }
    followers
}

/// What a step is judged by, besides itself.
struct Surroundings<'a> {
    profile: &'a Profile,
    tree: &'a Tree,
    pointers: &'a [PointerFound],
    now: Timestamp,
    options: &'a FindOptions,
    /// For each of the series' [`as_before`](crate::profile::Complete::as_before), the newest complete step with a
    /// lower number that has such a file.
    had: &'a [Option<&'a str>],
    /// The number of ranks of the previous complete step.
    earlier_ranks: Option<u32>,
    /// The previous complete step.
    before: Option<&'a Unit<'a>>,
    /// Steps of the same series with higher numbers.
    later: &'a [Unit<'a>],
    /// The first later step that was written after it: a trainer ends one save before it begins the next.
    follower: Option<&'a Unit<'a>>,
}

/// Judges a step and counts its ranks.
fn judge(unit: &Unit<'_>, around: &Surroundings<'_>) -> (Completeness, Option<u32>) {
    if unit.files.is_empty() {
        let reasons = vec!["it contains no files yet".to_owned()];
        return (Completeness::NotYet { reasons }, None);
    }
    let mut reasons = Vec::new();
    // The proof that a configuration names stands, whatever the step contains.
    let stands = around.profile.names.is_some() && !matches!(unit.series.complete.proof, Proof::Quiet);
    if !stands {
        own_evidence(unit, around.profile.name == GENERIC, &mut reasons);
    }
    expected_files(unit, around, &mut reasons);
    let mut ranks = ranks_of(unit, around.options.extent);
    reasons.append(&mut ranks.faults);
    if !around.options.extent.is_part() {
        reasons.extend(ranks.count.and_then(|count| too_few_ranks(count, around)));
    }
    match proof(unit, around) {
        Ok(proof) if reasons.is_empty() => {
            let quiet_rule = quiet_rule(unit, around);
            (Completeness::Complete { proof, quiet_rule }, ranks.count)
        }
        Ok(_) => (Completeness::NotYet { reasons }, ranks.count),
        Err(reason) => {
            reasons.push(reason);
            (Completeness::NotYet { reasons }, ranks.count)
        }
    }
}

/// Collects reasons in the step's own files against its completeness, whatever the proof.
fn own_evidence(unit: &Unit<'_>, is_unknown: bool, reasons: &mut Vec<String>) {
    let complete = &unit.series.complete;
    if !unit.fits {
        let wanted: Vec<_> = unit.series.holds.iter().map(PathGlob::text).collect();
        reasons.push(format!("it contains none of {} yet", wanted.join(", ")));
    }
    for file in unit.files.iter().filter(|file| !any(&complete.refused, file)) {
        let unfinished = file.inside.split('/').find(|name| is_unfinished_file(name));
        if let Some(name) = unfinished {
            reasons.push(if name == file.inside {
                format!("{name} has the name of an unfinished file")
            } else {
                format!("{} contains {name}, the name of an unfinished file or directory", file.inside)
            });
            break;
        }
    }
    for file in unit.files.iter().filter(|file| any(&complete.refused, file)) {
        reasons.push(format!("{} exists, which marks the step as incomplete", file.inside));
    }
    let is_directory = unit.members.iter().all(|member| !unit.is_file(member));
    if is_unknown && is_directory && !unit.files.iter().any(holds_state) {
        reasons.push("it contains no file yet that can hold the state of a training".to_owned());
    }
    let members_are_files = unit.members.iter().any(|member| unit.is_file(member));
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
                    "{} was written after {}, which a save writes later: the step is being overwritten, or was \
                     copied without its modification times",
                    newest.inside, marker.inside
                ));
            }
        }
    }
    if unit.series.unit == Some(UnitRule::ArealRecover) {
        reasons.extend(areal::objections(unit));
    }
    reasons.extend(unit.objection.clone());
    let mut beside = unit.beside.iter();
    reasons.extend(beside.find_map(|beside| beside.objection(is_unfinished_file)));
}

/// Collects the required files that are missing.
fn expected_files(unit: &Unit<'_>, around: &Surroundings<'_>, reasons: &mut Vec<String>) {
    let complete = &unit.series.complete;
    let extent = around.options.extent;
    // A required file may be written by any rank, but the node of rank 0 has it.
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
            reasons.push(format!("{} does not exist yet, but {before} has it", glob.text()));
        }
    }
}

/// Returns the first of these files that exists and is not empty, or the reason why none does.
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
            [name] => format!("{name} does not exist yet"),
            names => format!("none of {} exists yet", names.join(", ")),
        }
    }))
}

fn any(globs: &[PathGlob], file: &UnitFile) -> bool {
    globs.iter().any(|glob| glob.is_match(&file.inside))
}

/// Detects missing highest ranks. Their loss leaves no gap, so it shows only in a comparison with other facts.
fn too_few_ranks(count: u32, around: &Surroundings<'_>) -> Option<String> {
    // A run may continue with fewer ranks. Its next step then has as few ranks; a save that was cut off is not
    // repeated.
    if around.later.iter().any(|later| ranks_of(later, around.options.extent).count == Some(count)) {
        return None;
    }
    let few = words::count(u64::from(count), "rank");
    if let Some(world) = around.options.expected_world.filter(|world| count < *world) {
        return Some(format!("{few} wrote it, but the run has {world}"));
    }
    let before = around.earlier_ranks.or(around.options.previous_ranks)?;
    (count < before && around.options.expected_world != Some(count))
        .then(|| format!("{few} wrote it, but {before} wrote the previous step"))
}

fn proof(unit: &Unit<'_>, around: &Surroundings<'_>) -> Result<String, String> {
    let proof = own_proof(unit, around);
    let by_rank_zero = around.profile.names.is_none()
        && !matches!(unit.series.complete.proof, Proof::Rename | Proof::MarkerRemoved(_) | Proof::Quiet);
    match (proof, around.options.extent) {
        (Err(_), Extent::OtherPart) if by_rank_zero => by_quiet(unit, around),
        (Err(reason), Extent::LeadingPart) if by_rank_zero => {
            Err(format!("{reason} (rank 0 writes it; the node of rank 0 must be the first by name)"))
        }
        (proof, _) => proof,
    }
}

fn own_proof(unit: &Unit<'_>, around: &Surroundings<'_>) -> Result<String, String> {
    match &unit.series.complete.proof {
        Proof::Rename => Ok("it has its final name, which it gets when it is complete".to_owned()),
        Proof::Marker(files) => {
            let marker = present(unit, files)?;
            Ok(format!("its marker {}, which is written last, exists", marker.inside))
        }
        Proof::MarkerRemoved(suffix) => {
            let marker = format!("{}{suffix}", unit.path());
            match around.tree.get(&marker) {
                Some(_) => Err(format!("{marker}, which marks it as unfinished, still exists")),
                None => Ok(format!("{marker}, which marks it as unfinished, no longer exists")),
            }
        }
        Proof::Pointer => by_pointer(unit, around),
        Proof::PointerOrQuiet if around.pointers.iter().any(PointerFound::is_for_resuming) => {
            by_pointer(unit, around)
        }
        Proof::PointerOrQuiet | Proof::Quiet => by_quiet(unit, around),
    }
}

/// Returns when the step, once complete, must also be quiet.
fn quiet_rule(unit: &Unit<'_>, around: &Surroundings<'_>) -> QuietRule {
    let written = unit.newest();
    let is_proved = match &unit.series.complete.proof {
        // The configuration says it of every save.
        Proof::Rename if around.profile.names.is_some() && unit.beside.is_empty() => return QuietRule::Never,
        // Each save of the path is renamed to it; those of its other files are not known to be.
        Proof::Rename if unit.rewritten => {
            return if unit.series.with.is_empty() { QuietRule::Never } else { QuietRule::Briefly };
        }
        Proof::Rename | Proof::MarkerRemoved(_) => true,
        // Nothing is newer than the marker.
        Proof::Marker(markers) => {
            let mut files = unit.files.iter();
            files.any(|file| Some(file.mtime) >= written && any(markers, file))
        }
        // Every pointer was written after the step.
        Proof::Pointer | Proof::PointerOrQuiet => {
            let is_newer =
                |path: &str| around.tree.get(path).is_some_and(|entry| Some(entry.mtime) >= written);
            let mut pointers = around.pointers.iter().filter(|pointer| pointer.is_for_resuming()).peekable();
            pointers.peek().is_some() && pointers.all(|pointer| is_newer(&pointer.path))
        }
        Proof::Quiet => false,
    };
    // What proves one entry proves nothing about the others.
    if is_proved && unit.beside.is_empty() {
        QuietRule::OnceSealed
    } else if unit.rewritten && unit.is_files() && around.profile.names.is_none()
        || is_judged_by_files(unit, around)
            && (unit.is_files() || around.follower.is_some() || is_like_before(unit, around))
    {
        QuietRule::Briefly
    } else {
        QuietRule::Always
    }
}

/// Whether the profile knows the files of the framework's steps, and all of them are here.
fn is_judged_by_files(unit: &Unit<'_>, around: &Surroundings<'_>) -> bool {
    let is_known = around.profile.name != GENERIC && around.profile.names.is_none();
    let has_all = unit.is_files() || !unit.series.complete.required.is_empty();
    is_known && has_all && !around.options.extent.is_part()
}

fn is_like_before(unit: &Unit<'_>, around: &Surroundings<'_>) -> bool {
    let names = |unit: &Unit<'_>| unit.files.iter().map(|file| unit.name_of(file)).collect::<BTreeSet<_>>();
    around.before.is_some_and(|before| names(before).is_subset(&names(unit)))
}

/// Checks that the pointer of each member names the step or a newer one.
fn by_pointer(unit: &Unit<'_>, around: &Surroundings<'_>) -> Result<String, String> {
    let mut proof = None;
    for member in &unit.members {
        let values = Values::from_parts(&member.parts, None, &member.path);
        let wanted: Vec<_> =
            around.profile.pointer.iter().filter_map(|pointer| pointer.path.render(&values)).collect();
        let pointer = around
            .pointers
            .iter()
            .find(|found| found.is_for_resuming() && wanted.contains(&found.path))
            .ok_or_else(|| format!("{} does not exist yet", wanted.join(" or ")))?;
        let reached =
            pointer.names.contains(&member.path) || unit.step.is_some() && pointer.target_step >= unit.step;
        if !reached {
            return Err(format!("{} still names {}", pointer.path, pointer.says));
        }
        proof = Some(format!("{} names {}", pointer.path, pointer.says));
    }
    proof.ok_or_else(|| "no pointer names it".to_owned())
}

/// Checks that nothing was written for long enough, or that a newer step was started later.
fn by_quiet(unit: &Unit<'_>, around: &Surroundings<'_>) -> Result<String, String> {
    let newest = unit.newest().unwrap_or_default();
    // A path that is overwritten at each save has no newer step beside it.
    if let Some(later) = around.follower.filter(|_| unit.series.unit != Some(UnitRule::ArealRecover)) {
        return Ok(format!("{QUIET}, and {} was started after it", later.path()));
    }
    if newest > around.now {
        return Err("its newest file is stamped with a time in the future".to_owned());
    }
    let quiet_seconds = around.now.seconds_since(newest);
    let wanted_seconds = around.options.quiet_seconds;
    if quiet_seconds < wanted_seconds {
        return Err(format!(
            "it was written {quiet_seconds} s ago, and must be unchanged for {wanted_seconds} s"
        ));
    }
    Ok(format!("{QUIET}, and none was written for {wanted_seconds} s"))
}

/// The ranks that wrote a step, and the missing ones.
#[derive(Debug, Default)]
struct Ranks {
    /// The number of ranks, if known.
    count: Option<u32>,
    /// The missing ranks and files, as text.
    faults: Vec<String>,
}

/// Counts the ranks of a step and looks for gaps. In a part of a step, ranks of other nodes are not counted as
/// missing.
fn ranks_of(unit: &Unit<'_>, extent: Extent) -> Ranks {
    let mut ranks = Ranks::default();
    for set in &unit.series.complete.ranks {
        set_ranks(set, unit, extent, &mut ranks);
    }
    if unit.series.path.has_group("rank") {
        let present: BTreeSet<_> = unit.members.iter().filter_map(|member| member.parts.rank).collect();
        if let Some(missing) = first_gap(&present).filter(|_| !extent.is_part()) {
            ranks.faults.push(format!("the path of rank {missing} does not exist yet"));
        }
        ranks.count = ranks.count.or((!present.is_empty()).then(|| length(&present)));
    }
    ranks
}

/// The contents of one set: the ranks of each group, and the count that the names give.
#[derive(Default)]
struct Seen {
    groups: BTreeMap<String, BTreeSet<u32>>,
    worlds: BTreeSet<u32>,
}

fn set_ranks(set: &RankSet, unit: &Unit<'_>, extent: Extent, ranks: &mut Ranks) {
    let mut sets: BTreeMap<String, Seen> = BTreeMap::new();
    for file in &unit.files {
        let Some(parts) = set.files.parts(&file.inside) else {
            continue;
        };
        let Some(rank) = parts.rank else { continue };
        if file.size_bytes == 0 {
            ranks.faults.push(format!("{} is empty (0 bytes)", file.inside));
        }
        let seen = sets.entry(parts.without_rank).or_default();
        seen.groups.entry(parts.group.unwrap_or_default()).or_default().insert(rank);
        seen.worlds.extend(parts.world);
    }
    for (name, seen) in sets {
        if seen.worlds.len() > 1 {
            ranks.faults.push(format!("the names of {} give different numbers of ranks", set.what));
        }
        let highest = seen.groups.values().filter_map(BTreeSet::last).max();
        let wanted = highest
            .map_or(0, |rank| rank.saturating_add(1))
            .max(seen.worlds.last().copied().unwrap_or(0))
            .max(set.at_least);
        for present in seen.groups.values().filter(|_| !extent.is_part()) {
            let missing = first_gap(present).or_else(|| (length(present) < wanted).then(|| length(present)));
            if let Some(missing) = missing {
                ranks.faults.push(format!(
                    "the {} ({name}) of rank {missing} are missing: {} of {wanted} exist",
                    set.what,
                    present.len()
                ));
            }
        }
        if set.counts_world {
            let all = seen.groups.values().map(length).fold(0, u32::saturating_add);
            ranks.count = ranks.count.max(Some(all));
        }
    }
}

fn length(ranks: &BTreeSet<u32>) -> u32 {
    u32::try_from(ranks.len()).unwrap_or(u32::MAX)
}

/// Returns the lowest missing rank below the highest that exists.
fn first_gap(present: &BTreeSet<u32>) -> Option<u32> {
    (0..).zip(present).find(|(wanted, rank)| wanted != *rank).map(|(wanted, _)| wanted)
}

/// Whether nothing but the files of a step shows that its save is over, and other steps show which files that takes.
fn is_compared(unit: &Unit<'_>, rule: QuietRule, extent: Extent) -> bool {
    let is_unproved = matches!(rule, QuietRule::Always | QuietRule::Briefly);
    unit.members.len() == 1
        && !unit.rewritten
        && is_unproved
        && unit.series.unit != Some(UnitRule::ArealRecover)
        && !extent.is_part()
}

/// Returns the names of a unit's files, as other steps are compared with them.
fn names_of(unit: &Unit<'_>, tree: &Tree) -> StepNames {
    let entries = unit.beside.iter().map(|beside| beside.path.as_str());
    let entries: Vec<&str> = entries.chain([unit.path()]).collect();
    let files = unit.judged_files().map(|(entry, file)| {
        let is_itself = file.inside == last_component(entry) && !tree.is_directory(entry);
        if is_itself { entry.to_owned() } else { format!("{entry}/{}", file.inside) }
    });
    StepNames::of_entries(unit.step, &entries, files)
}

fn found_step(unit: &Unit<'_>, complete: Completeness, ranks: Option<u32>) -> FoundStep {
    let stored = || unit.judged_files().map(|(_, file)| file).chain(&unit.clutter);
    let beside = unit.beside.iter().map(|beside| beside.path.clone());
    let own = unit.members.iter().map(|member| member.path.clone());
    FoundStep {
        path: unit.path().to_owned(),
        members: beside.chain(own).collect(),
        series: unit.series.name.clone(),
        step: unit.step,
        rewritten: unit.rewritten,
        complete,
        ranks,
        bytes: total_bytes(stored()),
        files: stored().count() as u64,
        written_at: newest_of(stored()),
        content: content_of(unit),
        resumable: unit.resumable,
    }
}

/// Returns a number that differs if files of a step, clutter aside, have other paths, sizes or times.
fn content_of(unit: &Unit<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (entry, file) in unit.judged_files() {
        (entry, &file.inside, file.size_bytes, file.mtime).hash(&mut hasher);
    }
    hasher.finish()
}

fn temporary_step(tree: &Tree, path: &str, step: u64) -> FoundStep {
    let files = tree.get(path).map(|entry| files_of(tree, path, entry).0).unwrap_or_default();
    FoundStep {
        path: path.to_owned(),
        members: vec![path.to_owned()],
        series: "temporary".to_owned(),
        step: Some(step),
        rewritten: false,
        complete: Completeness::NotYet {
            reasons: vec!["it has a temporary name, and a finished step is renamed".to_owned()],
        },
        ranks: None,
        bytes: total_bytes(&files),
        files: files.len() as u64,
        written_at: newest_of(&files),
        content: 0,
        resumable: false,
    }
}

/// Whether a profile finds an entry that is, or is about to be, a step; whether or not it is still being written.
pub(crate) fn finds_steps(profile: &Profile, tree: &Tree, files: &dyn OpenFile) -> bool {
    let options = FindOptions { quiet_seconds: 0, ..FindOptions::default() };
    let found = find_steps(profile, tree, files, END_OF_TIME, &options);
    let counts = |step: &FoundStep| profile.name != GENERIC || step.is_complete();
    found.steps.iter().any(counts)
}
