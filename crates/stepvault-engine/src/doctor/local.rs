//! Checks everything that needs no remote: directories, disks, limits, leftovers, variables.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use stepvault_core::config::Completion;
use stepvault_core::disk_facts::{DiskRates, LinkFacts};
use stepvault_core::forecast::Taken;
use stepvault_core::{ErrorKind, Result};
use stepvault_diagnose::doctor::directory::{Maker, Place};
use stepvault_diagnose::doctor::feasibility::RunFacts;
use stepvault_diagnose::doctor::forecast::{Forecast, file_size};
use stepvault_diagnose::doctor::leftovers::leftovers;
use stepvault_diagnose::doctor::links::{LinkRule, SealMethod, links};
use stepvault_diagnose::doctor::memory::memory;
use stepvault_diagnose::doctor::notices::Firmware;
use stepvault_diagnose::doctor::speed::{not_measured, speed};
use stepvault_diagnose::doctor::{Check, Finding, variables};
use stepvault_local::cgroup;
use stepvault_local::durable::read_bounded;
use stepvault_local::probe;
use stepvault_local::probe::mounts::Mounts;
use stepvault_local::vault::Vault;

use super::history::{self, History};
pub use super::history::{GivenForecast, LocalLook, LocalToCheck, RunLook, RunToCheck};
use super::places::{LookedAt, ONE_LOOK, Use, Used, bounded, look_at, rooms, subject_of};

/// Time limit for reading all the steps of a run.
const HISTORY: Duration = Duration::from_secs(30);

/// A run with the facts found about it.
struct Examined<'a> {
    run: &'a RunToCheck,
    watch: Option<&'a LookedAt>,
    history: Option<History>,
    forecast: Option<Forecast>,
    links: Option<Result<LinkFacts>>,
}

/// The rates of a disk, or why they could not be measured.
struct MeasuredDisk {
    device: u64,
    rates: std::result::Result<DiskRates, String>,
}

/// Runs all local checks. Always ends, even if a filesystem hangs.
pub async fn check_local(check: &LocalToCheck) -> LocalLook {
    let mounts = Arc::new(Mounts::read());
    let places = places(check).into_iter();
    let places = join_all(places.map(|(place, path)| look_at(place, path, Arc::clone(&mounts)))).await;
    let at = |path: Option<&PathBuf>| places.iter().find(|looked| Some(&looked.path) == path);
    let vault = at(check.vault.as_ref());
    let kept = kept(vault).await;
    let runs = check.runs.iter();
    let runs = join_all(runs.map(|run| examine(check, run, at(run.settings.watch.as_ref()), vault))).await;
    let measured = measure(&places, check).await;

    let mut findings: Vec<Finding> = places.iter().flat_map(LookedAt::findings).collect();
    findings.extend(vault_owner(check, vault).await);
    let mut looks = Vec::new();
    for examined in &runs {
        let forecast = examined.forecast.as_ref();
        let device = vault.or(examined.watch).and_then(LookedAt::device);
        let disk = measured.iter().find(|disk| Some(disk.device) == device);
        let rates = disk.and_then(|disk| disk.rates.as_ref().ok().copied());
        let mut seal_method = SealMethod::Copy;
        match (&examined.links, &examined.run.settings.watch, &check.vault) {
            (Some(Ok(facts)), Some(watch), Some(vault)) => {
                let rule = LinkRule::new(check.links, overwritten_by(check, examined));
                seal_method = rule.seal_method(facts);
                let subject = format!("{} to {}", watch.display(), vault.display());
                findings.extend(links(&subject, facts, &rule, forecast, rates.as_ref()));
            }
            (Some(Err(_)), ..) => {}
            _ => seal_method = SealMethod::HardLink,
        }
        let vaults_device = vault.and_then(LookedAt::device);
        let facts = RunFacts {
            title: examined.run.title.clone(),
            seal_method,
            shares_disk: vaults_device.is_some()
                && vaults_device == examined.watch.and_then(LookedAt::device),
            disk_rates: rates,
            room: vault.and_then(|vault| Some(vault.disk()?.room.within(vault.quota()))),
            kept,
        };
        let forecast = forecast.cloned();
        looks.push(RunLook { forecast, facts });
    }
    let forecasts = looks.iter().filter_map(|look| look.forecast.as_ref());
    let largest = forecasts.max_by_key(|forecast| forecast.taken.bytes);
    findings.extend(rooms(&uses(&places, &runs, &looks, vault, largest)));
    for disk in &measured {
        let on = places
            .iter()
            .filter(|looked| looked.device() == Some(disk.device) && looked.place.maker != Maker::Nobody);
        let mount_point = on.clone().next().and_then(LookedAt::mount_point);
        let subject = subject_of(on.map(|looked| looked.place.role.as_str()), mount_point);
        match &disk.rates {
            Ok(rates) => findings.extend(speed(&subject, rates, largest)),
            Err(why) => findings.push(not_measured(&subject, why)),
        }
    }
    let limit = cgroup::memory();
    findings.push(memory(limit.as_ref(), check.memory_budget_bytes));
    findings.extend(left(check, &runs, vault).await);
    findings.extend(variables(check).await);
    LocalLook { findings, runs: looks }
}

/// Returns each directory once, in the order in which users think of them.
fn places(check: &LocalToCheck) -> Vec<(Place, PathBuf)> {
    let mut places: Vec<(Place, PathBuf)> = Vec::new();
    let mut add = |role: &str, path: &Path, maker| {
        if !places.iter().any(|(_, other)| other == path) {
            let place = Place { role: role.to_owned(), path: path.display().to_string(), maker };
            places.push((place, path.to_path_buf()));
        }
    };
    for watch in check.runs.iter().filter_map(|run| run.settings.watch.as_deref()) {
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
    let path = vault?.answering()?.clone();
    let parents = check.vault_parents;
    let owner = Check::new("vault owner", path.display().to_string());
    let refused = bounded(ONE_LOOK, move || Vault::check_place(&path, parents).err()).await??;
    (refused.kind() == ErrorKind::Refused)
        .then(|| owner.fail(refused.to_string(), refused.hint_text().unwrap_or_default()))
}

async fn kept(vault: Option<&LookedAt>) -> Taken {
    let Some(path) = vault.and_then(LookedAt::answering).cloned() else {
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
    let answering = |looked: Option<&LookedAt>| looked.and_then(LookedAt::answering).cloned();
    let (watch_path, vault_path) = (answering(watch), answering(vault));
    let (profiles, own, now) = (Arc::clone(&check.profiles), run.clone(), check.now);
    let (from, into) = (watch_path.clone(), vault_path.clone());
    let read = move || history::read_history(&own, from.as_deref(), into.as_deref(), &profiles, now);
    let history = bounded(HISTORY, read).await;
    // A given forecast counts even if the directories did not answer.
    let past = history.as_ref().and_then(|history| history.forecast.clone());
    let forecast = check.given.over(past);
    let example = history.as_ref().and_then(|history| history.example.clone());
    let links = match (watch_path, vault_path) {
        (Some(from), Some(into)) => {
            bounded(ONE_LOOK, move || probe::directory::links(&from, &into, example.as_deref())).await
        }
        _ => None,
    };
    Examined { run, watch, history, forecast, links }
}

/// Returns the profile by which the agent will find the run's steps, if its framework may overwrite finished files. An
/// empty directory shows none.
fn overwritten_by(check: &LocalToCheck, examined: &Examined<'_>) -> Option<String> {
    let run = &examined.run.settings;
    let seen = || examined.history.as_ref()?.profile.clone();
    let by_profile = matches!(run.complete, Completion::Auto(_));
    let name = by_profile.then(|| run.profile.clone().or_else(seen))??;
    let profile = check.profiles.get(&name)?;
    profile.overwrites_finished_files().then_some(name)
}

/// Measures the disks of checkpoints and vault one after the other, so that they do not disturb each other.
async fn measure(places: &[LookedAt], check: &LocalToCheck) -> Vec<MeasuredDisk> {
    let mut measured: Vec<MeasuredDisk> = Vec::new();
    let watched = check.runs.iter().filter_map(|run| run.settings.watch.as_ref());
    for path in watched.chain(&check.vault) {
        let mut working = places.iter().filter(|looked| looked.works());
        let Some(device) = working.find(|looked| looked.path == *path).and_then(LookedAt::device) else {
            continue;
        };
        if measured.iter().any(|known| known.device == device) {
            continue;
        }
        let path = path.clone();
        let rates = match bounded(HISTORY, move || probe::directory::rates(&path)).await {
            Some(rates) => rates.map_err(|error| error.to_string()),
            None => Err(format!("the disk did not answer within {} s", HISTORY.as_secs())),
        };
        measured.push(MeasuredDisk { device, rates });
    }
    measured
}

fn uses<'a>(
    places: &'a [LookedAt],
    runs: &[Examined<'a>],
    looks: &'a [RunLook],
    vault: Option<&'a LookedAt>,
    largest: Option<&'a Forecast>,
) -> Vec<Used<'a>> {
    let one = |looked: Option<&'a LookedAt>, by: Use<'a>| {
        let looked = looked?;
        Some(Used { looked, disk: looked.disk()?, by })
    };
    let mut uses = Vec::new();
    for (examined, look) in runs.iter().zip(looks) {
        let forecast = look.forecast.as_ref();
        uses.extend(one(examined.watch, Use::Checkpoints(forecast)));
        uses.extend(one(vault, Use::Vault(forecast, look.facts.seal_method)));
    }
    let temporary = places.iter().filter(|looked| looked.place.maker == Maker::Nobody);
    uses.extend(temporary.filter_map(|looked| one(Some(looked), Use::Temporary(largest))));
    uses
}

async fn left(check: &LocalToCheck, runs: &[Examined<'_>], vault: Option<&LookedAt>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for examined in runs {
        let Some(watch) = examined.watch.filter(|watch| watch.answering().is_some()) else {
            continue;
        };
        let subject = watch.place.subject();
        match &examined.history {
            Some(history) => {
                findings.extend(file_size(&subject, history.largest_file_bytes));
                findings.extend(leftovers(&subject, &history.leftovers));
            }
            None => findings.push(Check::new("leftovers", subject).warn(
                format!("not checked: scanning the directory takes more than {} s", HISTORY.as_secs()),
                "run 'stepvault inspect' on the directory: it makes the same check without a time limit",
            )),
        }
    }
    if let Some(vault) = vault
        && let Some(path) = vault.answering().cloned()
    {
        let now = check.now;
        let found = bounded(HISTORY, move || probe::leftovers::in_vault(&path, now)).await;
        findings.extend(leftovers(&vault.place.subject(), &found.unwrap_or_default()));
    }
    findings
}

async fn variables(check: &LocalToCheck) -> Vec<Finding> {
    let of_one = async |(name, value): &(String, Option<String>)| {
        let path = match variables::path_of(name, value.as_deref()) {
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

/// The directory in which Linux exposes it.
pub const DIRECTORY: &str = "/sys/class/dmi/id";
/// Maximum length of one of these texts.
const LONGEST_BYTES: u64 = 4096;

/// Reads it below `directory`; entries that do not exist, as in some containers and on some processors, are `None`.
pub fn firmware(directory: &Path) -> Firmware {
    let text = |name: &str| {
        let bytes = read_bounded(&directory.join(name), LONGEST_BYTES).ok()??;
        let text = String::from_utf8_lossy(&bytes);
        let plain: String = text.chars().filter(|letter| !letter.is_control()).collect();
        Some(plain.trim().to_owned()).filter(|text| !text.is_empty())
    };
    Firmware {
        vendor: text("sys_vendor"),
        product: text("product_name"),
        asset_tag: text("chassis_asset_tag"),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "files as the kernel shows them")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_what_is_missing_is_not_told() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(firmware(directory.path()), Firmware::default());
        std::fs::write(directory.path().join("sys_vendor"), "Amazon EC2\n").unwrap();
        std::fs::write(directory.path().join("product_name"), " \n").unwrap();
        let told = firmware(directory.path());
        assert_eq!((told.vendor.as_deref(), told.product), (Some("Amazon EC2"), None));
    }
}
