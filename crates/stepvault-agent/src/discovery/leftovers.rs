//! Entries of a watched directory that are not stored and may be checkpoints: each is told, and counts as not sealed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stepvault_core::timestamp::Timestamp;
use stepvault_formats::find::Leftover;
use stepvault_formats::profile::last_component;
use stepvault_local::sealed::SealedStep;
use tokio::time::Instant;

/// How many kinds of entries are listed.
const MAX_LISTED: usize = 5;

/// The entries that are left over, and since when each is unchanged.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    entries: BTreeMap<String, Sighted>,
    /// The kinds that were told.
    told: BTreeSet<String>,
    /// Name, length and time of the contents of rewritten paths that were sealed: a later step may make copies of them,
    /// or make them older than itself.
    sealed: HashSet<(String, u64, Timestamp)>,
    /// The names of the steps in the vault.
    pub(super) sealed_names: HashSet<String>,
}

#[derive(Debug)]
struct Sighted {
    leftover: Leftover,
    why: String,
    since: Instant,
    is_quiet: bool,
}

/// Entries whose names differ in their numbers alone.
struct Alike<'a> {
    shape: String,
    path: &'a str,
    why: &'a str,
    others: usize,
}

impl Leftovers {
    /// Whether one of these entries was not seen before.
    pub(super) fn has_new(&self, leftovers: &[Leftover]) -> bool {
        let is_known = |leftover: &Leftover| {
            let known = self.entries.get(&leftover.path);
            known.is_some_and(|known| known.leftover == *leftover) || self.is_sealed(leftover)
        };
        !leftovers.iter().all(is_known)
    }

    /// Adds the names of the steps that the vault holds, and the contents of rewritten paths.
    pub(super) fn add_sealed(&mut self, sealed: &[SealedStep]) {
        self.sealed_names.extend(sealed.iter().map(|step| step.name().to_owned()));
        let records = sealed.iter().map(SealedStep::record);
        for record in records.filter(|record| record.origin.rewritten) {
            let bytes = record.files.iter().map(|file| file.size_bytes).fold(0, u64::saturating_add);
            self.sealed.insert((record.name.clone(), bytes, record.written_at));
            let files = record.files.iter();
            self.sealed.extend(files.map(|file| {
                let name = last_component(file.path.as_str());
                (name.to_owned(), file.size_bytes, file.mtime)
            }));
        }
    }

    fn is_sealed(&self, leftover: &Leftover) -> bool {
        let name = last_component(&leftover.path).to_owned();
        self.sealed.contains(&(name, leftover.bytes, leftover.written_at))
    }

    /// Replaces the entries by those of the current scan, each with what it is. Returns when to scan again to find
    /// whether they stay unchanged.
    pub(super) fn update(
        &mut self,
        leftovers: Vec<(Leftover, String)>,
        now: Timestamp,
        quiet_time: Duration,
    ) -> Option<Instant> {
        let mut before = std::mem::take(&mut self.entries);
        let mut again = None;
        for (leftover, why) in leftovers {
            if self.is_sealed(&leftover) {
                continue;
            }
            let known = before.remove(&leftover.path);
            let unchanged = known.filter(|known| known.leftover == leftover);
            let since = unchanged.map_or_else(Instant::now, |known| known.since);
            let age = Duration::from_secs(now.seconds_since(leftover.written_at));
            let is_old = leftover.written_at > now || age >= quiet_time;
            let is_quiet = is_old && since.elapsed() >= quiet_time;
            if !is_quiet {
                let left = quiet_time.saturating_sub(since.elapsed());
                let left = if is_old { left } else { left.max(quiet_time.saturating_sub(age)) };
                let time = Instant::now() + left;
                again = Some(again.map_or(time, |other: Instant| other.min(time)));
            }
            let path = leftover.path.clone();
            let sighted = Sighted { leftover, why, since, is_quiet };
            self.entries.insert(path, sighted);
        }
        again
    }

    /// Returns what is not sealed, with the cause: of entries whose names differ in their numbers alone, the last.
    pub(super) fn unsealed(&self, directory: &Path) -> Vec<(PathBuf, String)> {
        self.listed(directory, |sighted| sighted.is_quiet)
    }

    /// Returns what may still be written.
    pub(super) fn waiting(&self, directory: &Path) -> Vec<(PathBuf, String)> {
        self.listed(directory, |sighted| !sighted.is_quiet)
    }

    fn listed(&self, directory: &Path, wanted: fn(&Sighted) -> bool) -> Vec<(PathBuf, String)> {
        let (alike, more) = self.alike(wanted);
        let entry = |alike: &Alike<'_>| {
            let others = match alike.others {
                0 => String::new(),
                others => format!(" (as {others} others of this kind)"),
            };
            (directory.join(alike.path), format!("it {}{others}", alike.why))
        };
        let mut listed: Vec<_> = alike.iter().map(entry).collect();
        if more > 0 {
            listed.push((directory.to_owned(), format!("{more} more of its entries may be checkpoints")));
        }
        listed
    }

    /// Returns a warning about the entries of a kind that was not told yet.
    pub(super) fn warning(&mut self, directory: &Path) -> Option<String> {
        let (alike, more) = self.alike(|sighted| sighted.is_quiet);
        let shapes: Vec<String> = alike.iter().map(|alike| alike.shape.clone()).collect();
        if shapes.iter().all(|shape| self.told.contains(shape)) {
            return None;
        }
        let named = alike.iter().map(|alike| {
            let others = match alike.others {
                0 => String::new(),
                others => format!(" and {others} like it"),
            };
            format!("{}{others} ({})", directory.join(alike.path).display(), alike.why)
        });
        let mut named: Vec<String> = named.collect();
        if more > 0 {
            named.push(format!("{more} more"));
        }
        self.told.extend(shapes);
        Some(format!(
            "not sealed, and not known to be no checkpoint: {}; if one is a checkpoint, set 'pattern' or 'series', watch its \
             directory in a run of its own, or run 'stepvault announce' for it; if it is not, add it to 'ignore'",
            named.join(", ")
        ))
    }

    /// Returns the entries by the shapes of their names, and how many have other shapes than those returned.
    fn alike(&self, wanted: fn(&Sighted) -> bool) -> (Vec<Alike<'_>>, usize) {
        let mut alike: Vec<Alike<'_>> = Vec::new();
        let mut more = 0;
        for (path, sighted) in self.entries.iter().filter(|(_, sighted)| wanted(sighted)) {
            let shape = shape(path);
            if let Some(known) = alike.iter_mut().find(|known| known.shape == shape) {
                known.path = path;
                known.others += 1;
            } else if alike.len() < MAX_LISTED {
                alike.push(Alike { shape, path, why: &sighted.why, others: 0 });
            } else {
                more += 1;
            }
        }
        (alike, more)
    }
}

/// Returns a path with `#` in place of each of its numbers.
fn shape(path: &str) -> String {
    let mut shape = String::new();
    for letter in path.chars() {
        match letter {
            '0'..='9' if shape.ends_with('#') => {}
            '0'..='9' => shape.push('#'),
            other => shape.push(other),
        }
    }
    shape
}
