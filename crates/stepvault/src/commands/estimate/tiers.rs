//! Estimates the local tier while a step is saved, and every tier over a run.

use std::path::Path;
use std::sync::Arc;

use stepvault_core::config::LinkPolicy;
use stepvault_core::file_parts::refusal_ahead;
use stepvault_core::retention::{KeepRules, Selection};
use stepvault_core::{Clock as _, RemoteName, RemoteSettings, Result, Tier};
use stepvault_diagnose::estimate::{
    MAX_SAVES, Named as _, Part, Saves, Saving, TierRules, VaultCopy, Written, held, of_steps, saving,
    selected,
};
use stepvault_engine::blocking::blocking;
use stepvault_engine::inspect::InspectRequest;
use stepvault_engine::size::measure;
use stepvault_formats::find::FindOptions;
use stepvault_formats::profile::Profile;
use stepvault_formats::sizes::{HeaderKind, HeaderSizes};
use stepvault_local::clock::SystemClock;

use super::TierArguments;
use super::document::{
    EstimateDocument, FoundDocument, RunDocument, SavingDocument, TierDocument, UnreadDocument,
};
use crate::context::{Settings, check_presence};

/// The remote that is assumed if none is configured.
const SOME_REMOTE: &str = "remote";

/// The effective keep rules.
struct Rules {
    local: KeepRules,
    remote: KeepRules,
    /// The remotes, each with what selects its steps if it is a selective one.
    remotes: Vec<(RemoteName, Option<Selection>)>,
}

/// Adds both to the document. `overwritten_by` is the profile of a framework that may overwrite finished files, which
/// are then not linked.
pub(super) fn add(
    document: &mut EstimateDocument,
    step: &Written,
    arguments: &TierArguments,
    settings: &Settings,
    overwritten_by: Option<&str>,
) -> Result<()> {
    let rules = rules(arguments, settings, &mut document.notes)?;
    if rules.local.is_unset() && arguments.steps.is_none() {
        let note =
            "no keep rule is set, so the vault keeps every step; one is counted: give --steps and --every";
        document.notes.push(note.to_owned());
    }
    let first = step.on_first_node()?;
    let links = match (arguments.vault, settings.config.local.links, overwritten_by) {
        (Some(given), ..) => given,
        (None, LinkPolicy::Auto, Some(profile)) => {
            document.notes.push(format!(
                "by profile '{profile}' finished files may be overwritten in place, so a copy in the vault is counted; \
                 for a filesystem that shares blocks give --vault reflink"
            ));
            VaultCopy::Copy
        }
        (None, LinkPolicy::Auto, None) => VaultCopy::HardLink,
        (None, LinkPolicy::ReflinkOrCopy, _) => VaultCopy::Reflink,
        (None, LinkPolicy::Copy, _) => VaultCopy::Copy,
    };
    let interval_seconds = arguments.save_interval.map(|interval| interval.as_secs());
    let saves = match (arguments.steps, arguments.every) {
        (Some(steps), Some(every)) => Some(Saves::new(steps, every, interval_seconds)?),
        _ => None,
    };
    // Without a run: as many saves as fill the rule that keeps the newest, which is the steady state.
    let enough = u64::from(rules.local.last.unwrap_or(1)).saturating_add(1).min(MAX_SAVES);
    let played = saves.map_or_else(|| Saves::new(enough, 1, interval_seconds), Ok)?;
    let local = TierRules {
        tier: &Tier::Local,
        rules: &rules.local,
        limits: settings.config.local.limits,
        has_remote: true,
    };
    let before = played.before_last().map(|before| held(before, first.bytes, local));
    let held_before = before.transpose()?.unwrap_or_default();
    let peak = saving(
        first,
        played.count().saturating_sub(1),
        &held_before,
        arguments.trainer_keep,
        links,
        rules.remotes.iter().filter(|(_, selection)| selection.is_none()).count() as u64,
        arguments.through_tmpdir,
    )?;
    document.saving = Some(SavingDocument { vault: links.name(), saving: peak });
    if let Some(saves) = saves {
        let peak = Some(&peak).filter(|_| links != VaultCopy::None);
        document.run = Some(run(step, saves, local, peak, &rules)?);
    }
    Ok(())
}

/// `peak` is that of the local tier, if there is a vault.
fn run(
    step: &Written,
    saves: Saves,
    local: TierRules<'_>,
    peak: Option<&Saving>,
    rules: &Rules,
) -> Result<RunDocument> {
    let first = step.on_first_node()?;
    let mut tiers = Vec::new();
    if peak.is_some() {
        let steps = held(saves, first.bytes, local)?.len() as u64;
        tiers.push(TierDocument::of(Tier::Local.to_string(), steps, first, peak)?);
    }
    for (name, selection) in &rules.remotes {
        let tier = Tier::Remote(name.clone());
        let remote = TierRules { tier: &tier, rules: &rules.remote, ..local };
        let steps = match selection {
            Some(selection) => selected(saves, step.bytes()?, selection)?,
            None => held(saves, step.bytes()?, remote)?.len() as u64,
        };
        tiers.push(TierDocument::of(name.to_string(), steps, step.on_remote()?, None)?);
    }
    Ok(RunDocument {
        saves: saves.count(),
        written_bytes: of_steps(step.on_remote()?, saves.count())?.bytes,
        tiers,
    })
}

fn rules(arguments: &TierArguments, settings: &Settings, notes: &mut Vec<String>) -> Result<Rules> {
    let mut note = |text: &str| notes.push(text.to_owned());
    let config = &settings.config;
    let (mut local, mut remote, remotes) = if let Ok(run) = settings.run() {
        let remotes = settings.remotes(&run);
        (run.keep_local, run.keep_remote, remotes)
    } else {
        if config.runs.len() > 1 {
            note("several runs are configured: the general [keep] rules apply; select one with --run");
        }
        (config.keep_local.clone(), config.keep_remote.clone(), config.remotes.clone())
    };
    let only_last = |last| KeepRules { last: Some(last), ..KeepRules::default() };
    if let Some(keep) = arguments.keep {
        local = only_last(keep);
    }
    if let Some(keep) = arguments.keep_remote {
        remote = only_last(keep);
    }
    for rules in [&local, &remote] {
        rules.check()?;
    }
    let by_time = |rules: &KeepRules| {
        let by_calendar = [rules.hourly, rules.daily, rules.weekly];
        rules.within_seconds.is_some() || by_calendar.iter().any(Option::is_some)
    };
    if (by_time(&local) || by_time(&remote)) && arguments.save_interval.is_none() {
        note(
            "some rules are based on time, but --save-interval is not given: all saves count as simultaneous",
        );
    }
    if !local.best.is_empty() || !remote.best.is_empty() {
        note("the oldest steps are assumed to be the best, so that rules for the best keep the most steps");
    }
    if remotes.iter().any(RemoteSettings::is_selective) {
        note(
            "of a selective remote, the steps count that its rules select at the end: what they selected before, and was \
             copied, stays there as well",
        );
    }
    let mut remotes: Vec<_> = remotes.into_iter().map(|remote| (remote.name, remote.selection)).collect();
    if remotes.is_empty() {
        note("no remote is given: one is assumed, because without remotes the vault evicts no step");
        remotes.push((RemoteName::new(SOME_REMOTE)?, None));
    }
    Ok(Rules { local, remote, remotes })
}

/// Maximum number of doubts about completeness to report; `stepvault inspect` shows all.
const MAX_DOUBTS: usize = 4;

/// Returns the present and the expected files of the step, and the profile of its framework if that may overwrite
/// finished files.
pub(super) async fn measured(
    path: &Path,
    settings: &Settings,
    document: &mut EstimateDocument,
) -> Result<(Written, Option<String>)> {
    check_presence("cannot determine the size", path)?;
    let (looked_at, profiles) = (path.to_owned(), settings.profiles()?);
    let known = Arc::clone(&profiles);
    let measured = blocking(move || {
        let request = InspectRequest {
            profiles: &profiles,
            profile: None,
            reads_best: false,
            deep: None,
            options: FindOptions::default(),
        };
        measure(&looked_at, &request, SystemClock.now())
    })
    .await?;
    let mut lacking = Lacking::default();
    measured.told.iter().for_each(|told| lacking.add(told));
    let overwritten_by = measured
        .profile
        .clone()
        .filter(|name| known.get(name).is_some_and(Profile::overwrites_finished_files));
    let mut step = Written::nothing(1);
    step.directories = measured.directories;
    let part = |what, files, bytes| Part { what, files, bytes, on_all_nodes: false };
    step.parts.push(part("files", measured.files, measured.bytes));
    if lacking.bytes > 0 || lacking.files > 0 {
        step.parts.push(part("missing", lacking.files, lacking.bytes));
    }
    // Check for overflow before anything is computed from it.
    step.bytes()?;
    let doubts = measured.doubts.iter().take(MAX_DOUBTS);
    document.notes.extend(doubts.map(|doubt| format!("the step may be incomplete: {doubt}")));
    document.notes.extend(lacking.notes);
    document.notes.extend(refusal_note(measured.largest_file_bytes));
    document.headers = measured.told;
    let unread = measured.unread.into_iter();
    document.unreadable_headers = unread.map(|(path, reason)| UnreadDocument { path, reason }).collect();
    document.found = Some(FoundDocument {
        path: path.to_owned(),
        step: measured.chosen,
        bytes: measured.bytes,
        allocated_bytes: measured.allocated_bytes,
        files: measured.files,
        directories: measured.directories,
        inodes: measured.files.saturating_add(measured.directories),
    });
    Ok((step, overwritten_by))
}

/// Returns the note on files of that size, if a push refuses them.
pub(super) fn refusal_note(largest_file_bytes: u64) -> Option<String> {
    refusal_ahead(largest_file_bytes).map(|(why, hint)| format!("{why}; {hint}"))
}

/// What headers describe and is missing.
#[derive(Debug, Default)]
struct Lacking {
    bytes: u64,
    files: u64,
    notes: Vec<String>,
}

impl Lacking {
    fn add(&mut self, told: &HeaderSizes) {
        let mut without_header = 0_u64;
        let mut there_bytes = 0_u64;
        for file in &told.files {
            let real_bytes = file.real_bytes.unwrap_or_default();
            there_bytes = there_bytes.saturating_add(file.payload_bytes.unwrap_or(real_bytes));
            match (file.real_bytes, file.expected_bytes) {
                (None, None) => without_header += 1,
                (None, Some(_)) => self.notes.push(format!("{} is missing", file.path)),
                (Some(real), Some(expected)) if real != expected => {
                    let path = &file.path;
                    self.notes.push(format!("{path} has {real} bytes, but its header says {expected}"));
                }
                (Some(_), _) => {}
            }
            self.files += u64::from(file.real_bytes.is_none());
            let expected = file.expected_bytes.unwrap_or(real_bytes);
            self.bytes = self.bytes.saturating_add(expected.saturating_sub(real_bytes));
        }
        if without_header == 0 {
            return;
        }
        let missing = told.files.iter().filter(|file| file.real_bytes.is_none());
        let names: Vec<&str> = missing.map(|file| file.path.as_str()).collect();
        let names = stepvault_core::words::first_of(&names, 4, 0);
        let rest = match (told.kind, told.payload_bytes) {
            (HeaderKind::Index, Some(payload)) => {
                let rest = payload.saturating_sub(there_bytes);
                self.bytes = self.bytes.saturating_add(rest);
                "their size is the rest of the index's total_size, without their headers"
            }
            _ => "their size is unknown: the step is larger than this",
        };
        let path = &told.path;
        self.notes.push(format!("{path}: missing: {names}: {rest}"));
    }
}
