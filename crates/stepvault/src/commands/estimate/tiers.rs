//! Estimates the local tier while a step is saved, and every tier over a run.

use stepvault_core::Result;
use stepvault_core::config::LinkPolicy;
use stepvault_core::ids::RemoteName;
use stepvault_core::observe::Tier;
use stepvault_core::retention::KeepRules;
use stepvault_diagnose::estimate::{
    MAX_SAVES, Named as _, Saves, Saving, TierRules, VaultCopy, Written, held, saving,
};

use super::TierArguments;
use super::document::{EstimateDocument, RunDocument, SavingDocument, TierDocument};
use crate::context::Settings;

/// The remote that is assumed if none is configured.
const SOME_REMOTE: &str = "remote";

/// The effective keep rules.
struct Rules {
    local: KeepRules,
    remote: KeepRules,
    remotes: Vec<RemoteName>,
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
        rules.remotes.len() as u64,
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
    for name in &rules.remotes {
        let tier = Tier::Remote(name.clone());
        let remote = TierRules { tier: &tier, rules: &rules.remote, ..local };
        let steps = held(saves, step.bytes()?, remote)?.len() as u64;
        tiers.push(TierDocument::of(name.to_string(), steps, step.on_remote()?, None)?);
    }
    Ok(RunDocument {
        saves: saves.count(),
        written_bytes: step.on_remote()?.of_steps(saves.count())?.bytes,
        tiers,
    })
}

fn rules(arguments: &TierArguments, settings: &Settings, notes: &mut Vec<String>) -> Result<Rules> {
    let mut note = |text: &str| notes.push(text.to_owned());
    let config = &settings.config;
    let (mut local, mut remote, remotes): (_, _, Vec<RemoteName>) = if let Ok(run) = settings.run() {
        let remotes = settings.remotes(&run);
        let names = remotes.into_iter().map(|remote| remote.name).collect();
        (run.keep_local, run.keep_remote, names)
    } else {
        if config.runs.len() > 1 {
            note("several runs are configured: the general [keep] rules apply; select one with --run");
        }
        let names = config.remotes.iter().map(|remote| remote.name.clone()).collect();
        (config.keep_local.clone(), config.keep_remote.clone(), names)
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
    let remotes = if remotes.is_empty() {
        note("no remote is given: one is assumed, because without remotes the vault evicts no step");
        vec![RemoteName::new(SOME_REMOTE)?]
    } else {
        remotes
    };
    Ok(Rules { local, remote, remotes })
}
