//! Checks everything that needs no remote: directories, disks, limits, leftovers, variables.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use stepvault_core::ErrorKind;
use stepvault_core::disk_facts::DiskRates;
use stepvault_core::disk_facts::LinkFacts;
use stepvault_core::forecast::Taken;
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::directory::{Maker, Place};
use stepvault_diagnose::doctor::forecast::Forecast;
use stepvault_diagnose::doctor::leftovers::leftovers;
use stepvault_diagnose::doctor::links::{LinkRule, SealMethod, links};
use stepvault_diagnose::doctor::memory::memory;
use stepvault_diagnose::doctor::speed::{not_measured, speed};
use stepvault_diagnose::doctor::variables::{self, Value};
use stepvault_local::probe;
use stepvault_local::probe::mounts::Mounts;
use stepvault_local::vault::Vault;

use super::bounded::{ONE_LOOK, bounded};
use super::history::{self, History, HistoryScope};
pub use super::model::{GivenForecast, LocalLook, LocalToCheck, RunLook, RunToCheck};
use super::places::{LookedAt, look_at};
use super::rooms::{Use, Used, rooms};

/// Time limit for reading all the steps of a run.
const HISTORY: Duration = Duration::from_secs(30);

/// A run with the facts found about it.
struct Examined<'a> {
    run: &'a RunToCheck,
    watch: Option<&'a LookedAt>,
    history: Option<History>,
    forecast: Option<Forecast>,
    links: Option<Result<LinkFacts, String>>,
}

/// Runs all local checks. Always ends, even if a filesystem hangs.
pub async fn check_local(check: &LocalToCheck) -> LocalLook {
    let mounts = Arc::new(Mounts::read());
    let places = join_all(places(check).into_iter().map(|(place, path)| {
        let mounts = Arc::clone(&mounts);
        look_at(place, path, mounts)
    }))
    .await;
    let at = |path: Option<&PathBuf>| places.iter().find(|looked| Some(&looked.path) == path);
    let vault = at(check.vault.as_ref());
    let kept = kept(vault).await;
    let runs = join_all(
        check
            .runs
            .iter()
            .map(|run| examine(check, run, at(run.watch.as_ref()), vault)),
    )
    .await;
    let measured = measure(&places, check).await;
    let rates_on = |looked: Option<&LookedAt>| {
        let device = looked?.device()?;
        let (_, rates) = measured.iter().find(|(disk, _)| *disk == device)?;
        rates.as_ref().ok().copied()
    };

    let mut findings: Vec<Finding> = places.iter().flat_map(LookedAt::findings).collect();
    findings.extend(vault_owner(check, vault).await);
    let mut looks = Vec::new();
    for examined in &runs {
        let forecast = examined.forecast.as_ref();
        let rates = rates_on(vault.or(examined.watch));
        let mut seal_method = SealMethod::Copy;
        match (&examined.links, &examined.run.watch, &check.vault) {
            (Some(Ok(facts)), Some(watch), Some(vault)) => {
                let rule = LinkRule::new(check.links, overwritten_by(check, examined));
                seal_method = rule.seal_method(facts);
                let subject = format!("{} to {}", watch.display(), vault.display());
                findings.extend(links(&subject, facts, &rule, forecast, rates.as_ref()));
            }
            (Some(Err(_)), ..) => {}
            _ => seal_method = SealMethod::HardLink,
        }
        let device = |looked: Option<&LookedAt>| looked.and_then(LookedAt::device);
        looks.push(RunLook {
            title: examined.run.title.clone(),
            forecast: forecast.cloned(),
            seal_method,
            shares_disk: device(vault).is_some() && device(vault) == device(examined.watch),
            disk_rates: rates,
            room: vault.and_then(|vault| Some(vault.room()?.within(vault.quota()))),
            kept,
        });
    }
    findings.extend(rooms(&uses(&places, &runs, &looks, vault)));
    let largest = looks
        .iter()
        .filter_map(|look| look.forecast.as_ref())
        .max_by_key(|forecast| forecast.taken.bytes);
    for (device, rates) in &measured {
        let subject = subject_of(&places, *device);
        match rates {
            Ok(rates) => findings.extend(speed(&subject, rates, largest)),
            Err(why) => findings.push(not_measured(&subject, why)),
        }
    }
    findings.push(memory(
        probe::memory::memory().as_ref(),
        check.memory_budget_bytes,
    ));
    findings.extend(left(check, &runs, vault).await);
    findings.extend(variables(check).await);
    LocalLook {
        findings,
        runs: looks,
    }
}

/// Returns each directory once, in the order in which users think of them.
fn places(check: &LocalToCheck) -> Vec<(Place, PathBuf)> {
    let mut places: Vec<(Place, PathBuf)> = Vec::new();
    let mut add = |role: &str, path: &Path, maker| {
        if !places.iter().any(|(_, other)| other == path) {
            let place = Place {
                role: role.to_owned(),
                path: path.display().to_string(),
                maker,
            };
            places.push((place, path.to_path_buf()));
        }
    };
    for watch in check.runs.iter().filter_map(|run| run.watch.as_deref()) {
        add("checkpoints", watch, Maker::Trainer);
    }
    if let Some(vault) = &check.vault {
        add("vault", vault, Maker::Service);
    }
    for (role, path) in &check.temporary {
        add(role, path, Maker::Nobody);
    }
    places
}

/// Checks whether other users could create their own vault at the path; opening such a vault is refused.
async fn vault_owner(check: &LocalToCheck, vault: Option<&LookedAt>) -> Option<Finding> {
    let path = vault.filter(|vault| vault.answers())?.path.clone();
    let parents = check.vault_parents;
    let subject = path.display().to_string();
    let refused = bounded(ONE_LOOK, move || Vault::check_place(&path, parents).err()).await??;
    if refused.kind() != ErrorKind::Refused {
        return None;
    }
    let remedy = refused.hint_text().unwrap_or_default().to_owned();
    Some(Finding::fail("vault owner", subject, refused.to_string(), remedy))
}

async fn kept(vault: Option<&LookedAt>) -> Taken {
    let Some(path) = vault
        .filter(|vault| vault.answers())
        .map(|vault| vault.path.clone())
    else {
        return Taken::default();
    };
    let kept = bounded(HISTORY, move || history::kept(&path)).await;
    kept.unwrap_or_default()
}

/// Returns the facts about a run, as far as its directories answer.
async fn examine<'a>(
    check: &LocalToCheck,
    run: &'a RunToCheck,
    watch: Option<&'a LookedAt>,
    vault: Option<&LookedAt>,
) -> Examined<'a> {
    let answering = |looked: Option<&LookedAt>| {
        looked
            .filter(|looked| looked.answers())
            .map(|looked| looked.path.clone())
    };
    let (watch_path, vault_path) = (answering(watch), answering(vault));
    let (profiles, own, now) = (Arc::clone(&check.profiles), run.clone(), check.now);
    let (from, into) = (watch_path.clone(), vault_path.clone());
    let history = bounded(HISTORY, move || {
        let place = HistoryScope {
            run: own.run.as_ref(),
            watch: from.as_deref(),
            vault: into.as_deref(),
            profile: own.profile.as_deref(),
            quiet_seconds: own.quiet_seconds,
            profiles: &profiles,
        };
        history::read_history(&place, now)
    })
    .await;
    // A given forecast counts even if the directories did not answer.
    let past = history.as_ref().and_then(|history| history.forecast.clone());
    let forecast = check.given.over(past);
    let example = history.as_ref().and_then(|history| history.example.clone());
    let links = match (watch_path, vault_path) {
        (Some(from), Some(into)) => {
            let tried = bounded(ONE_LOOK, move || {
                probe::links::links(&from, &into, example.as_deref())
            })
            .await;
            tried.map(|tried| tried.map_err(|error| error.to_string()))
        }
        _ => None,
    };
    Examined {
        run,
        watch,
        history,
        forecast,
        links,
    }
}

/// Returns the profile by which the agent will find the run's steps, if its framework may overwrite finished files. An
/// empty directory shows none.
fn overwritten_by(check: &LocalToCheck, examined: &Examined<'_>) -> Option<String> {
    let run = examined.run;
    let seen = || examined.history.as_ref()?.profile.clone();
    let name = run.by_profile.then(|| run.profile.clone().or_else(seen))??;
    let profile = check.profiles.get(&name)?;
    profile.overwrites_finished_files().then_some(name)
}

/// Measures the disks of checkpoints and vault one after the other, so that they do not disturb each other.
async fn measure(places: &[LookedAt], check: &LocalToCheck) -> Vec<(u64, Result<DiskRates, String>)> {
    let mut measured: Vec<(u64, Result<DiskRates, String>)> = Vec::new();
    let watched = check.runs.iter().filter_map(|run| run.watch.as_ref());
    for path in watched.chain(&check.vault) {
        let Some(looked) = places
            .iter()
            .find(|looked| looked.path == *path && looked.works())
        else {
            continue;
        };
        let Some(device) = looked.device() else { continue };
        if measured.iter().any(|(known, _)| *known == device) {
            continue;
        }
        let path = path.clone();
        let rates = bounded(HISTORY, move || probe::rates::rates(&path)).await;
        let rates = match rates {
            Some(rates) => rates.map_err(|error| error.to_string()),
            None => Err(format!("the disk did not answer within {} s", HISTORY.as_secs())),
        };
        measured.push((device, rates));
    }
    measured
}

/// Returns the roles of the directories on a filesystem, and its mount point.
fn subject_of(places: &[LookedAt], device: u64) -> String {
    let on: Vec<&LookedAt> = places
        .iter()
        .filter(|looked| looked.device() == Some(device) && looked.place.maker != Maker::Nobody)
        .collect();
    let mut roles: Vec<&str> = on.iter().map(|looked| looked.place.role.as_str()).collect();
    roles.dedup();
    let point = on.first().and_then(|looked| looked.mount_point());
    let point = point.map(|point| format!(" on {point}")).unwrap_or_default();
    format!("{}{point}", roles.join(", "))
}

fn uses<'a>(
    places: &'a [LookedAt],
    runs: &[Examined<'a>],
    looks: &'a [RunLook],
    vault: Option<&'a LookedAt>,
) -> Vec<Used<'a>> {
    let one = |looked: &'a LookedAt, by: Use<'a>| {
        Some(Used {
            device: looked.device()?,
            role: looked.place.role.clone(),
            mount_point: looked.mount_point().map(str::to_owned),
            room: looked.room()?,
            quota: looked.quota(),
            by,
        })
    };
    let mut uses = Vec::new();
    for (examined, look) in runs.iter().zip(looks) {
        let forecast = look.forecast.as_ref();
        uses.extend(
            examined
                .watch
                .and_then(|watch| one(watch, Use::Checkpoints(forecast))),
        );
        uses.extend(vault.and_then(|vault| one(vault, Use::Vault(forecast, look.seal_method))));
    }
    let largest = looks
        .iter()
        .filter_map(|look| look.forecast.as_ref())
        .max_by_key(|forecast| forecast.taken.bytes);
    let temporary = places.iter().filter(|looked| looked.place.maker == Maker::Nobody);
    uses.extend(temporary.filter_map(|looked| one(looked, Use::Temporary(largest))));
    uses
}

async fn left(check: &LocalToCheck, runs: &[Examined<'_>], vault: Option<&LookedAt>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for examined in runs {
        let Some(watch) = examined.watch.filter(|watch| watch.answers()) else {
            continue;
        };
        let subject = watch.place.subject();
        match &examined.history {
            Some(history) => findings.extend(leftovers(&subject, &history.leftovers)),
            None => findings.push(Finding::warn(
                "leftovers",
                subject,
                format!(
                    "not checked: scanning the directory takes more than {} s",
                    HISTORY.as_secs()
                ),
                "run 'stepvault inspect' on the directory: it makes the same check without a time limit",
            )),
        }
    }
    if let Some(vault) = vault.filter(|vault| vault.answers()) {
        let (path, now) = (vault.path.clone(), check.now);
        let found = bounded(HISTORY, move || probe::leftovers::in_vault(&path, now)).await;
        findings.extend(leftovers(&vault.place.subject(), &found.unwrap_or_default()));
    }
    findings
}

async fn variables(check: &LocalToCheck) -> Vec<Finding> {
    let of_one = async |(name, value): &(String, Value)| {
        let path = match value.path(name) {
            Ok(path) => path,
            Err(finding) => return finding,
        };
        let looked_at = PathBuf::from(path);
        match bounded(ONE_LOOK, move || probe::directory::directory(&looked_at)).await {
            Some(facts) => variables::with_path(name, path, &facts),
            None => variables::no_answer(name, path, ONE_LOOK.as_secs()),
        }
    };
    join_all(check.variables.iter().map(of_one)).await
}
