//! What must hold in any state that a fault leaves behind, and what a restart must achieve.

use std::collections::{BTreeMap, BTreeSet};

use stepvault_testkit::tree::{FileTree, read_tree, remove};

use crate::faults::world::{RUN, World};

/// The result of a check of a tier.
#[derive(Debug, Default, Clone)]
pub(crate) struct Found {
    /// The steps that the tier shows, and whether each is sound to the last byte.
    pub(crate) steps: BTreeMap<u64, bool>,
    pub(crate) said: String,
}

impl Found {
    pub(crate) fn sound(&self) -> BTreeSet<u64> {
        let sound = self.steps.iter().filter(|(_, sound)| **sound);
        sound.map(|(step, _)| *step).collect()
    }

    /// Returns the steps that a reader sees and that differ from what was saved.
    pub(crate) fn torn(&self) -> BTreeSet<u64> {
        let torn = self.steps.iter().filter(|(_, sound)| !**sound);
        torn.map(|(step, _)| *step).collect()
    }
}

/// Reads every byte of a tier back.
pub(crate) fn look(world: &World, tier: &str) -> Result<Found, String> {
    if tier == "local" && !world.vault.join("vault.json").exists() {
        return Ok(Found::default());
    }
    let order = match tier {
        "local" => world.on_vault(["verify", "--deep", "--json", "--tier", "local"]),
        tier => world.elsewhere(["verify", "--deep", "--json", "--tier", tier]),
    };
    let ran = order.run();
    // There is no checkpoint at all, or no valid one.
    let mut found = Found { said: format!("{} {}", ran.stdout, ran.stderr), ..Found::default() };
    if ran.code == 10 {
        return Ok(found);
    }
    let document = ran.try_json()?;
    for step in document["steps"].as_array().ok_or("no steps")? {
        let sound = step["tiers"]
            .as_array()
            .is_some_and(|tiers| !tiers.is_empty() && tiers.iter().all(|tier| tier["sound"] == true));
        found.steps.insert(step["step"].as_u64().ok_or("no number")?, sound);
    }
    let failed = document["failed"].as_array().is_some_and(|failed| !failed.is_empty());
    if failed || ![0, 1, 3, 11].contains(&ran.code) {
        return Err(format!("{tier} cannot be verified: {ran:?}"));
    }
    Ok(found)
}

/// Returns whether a step is restored to the last byte, on another node from the remote, or on this one from its
/// vault.
pub(crate) fn restores(world: &World, step: u64, tier: &str) -> Result<(), String> {
    remove(&world.scratch);
    std::fs::create_dir(&world.scratch).unwrap();
    let target = world.scratch.join("restored");
    let (number, path) = (step.to_string(), target.to_str().unwrap().to_owned());
    let arguments = ["restore", "--step", &number, "--as", &path, "--json"];
    let ran = match tier {
        "local" => world.on_vault(arguments).run(),
        _ => world.elsewhere(arguments).run(),
    };
    if ran.code != 0 {
        return Err(format!("step {step} does not come back from {tier}: {ran:?}"));
    }
    if read_tree(&target) == world.step(step) {
        Ok(())
    } else {
        Err(format!("step {step} comes back from {tier} with other files"))
    }
}

/// Checks a tier that must hold `needed`, and may hold others only if they are sound.
///
/// # Errors
/// What is lost or torn.
pub(crate) fn holds(world: &World, tier: &str, needed: &BTreeSet<u64>) -> Result<Found, Harm> {
    let found = look(world, tier).map_err(Harm::Lost)?;
    let torn = found.torn();
    if !torn.is_empty() {
        return Err(Harm::Torn(format!("{tier} shows {torn:?}: {}", found.said)));
    }
    let lost: Vec<_> = needed.difference(&found.sound()).copied().collect();
    if !lost.is_empty() {
        return Err(Harm::Lost(format!("{tier} has lost {lost:?}: {}", found.said)));
    }
    // Restore it as a restart would.
    if let Some(newest) = found.sound().last() {
        restores(world, *newest, tier).map_err(Harm::Torn)?;
    }
    Ok(found)
}

/// The outcomes that must never happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Harm {
    /// A step that was acknowledged, or existed before, is missing.
    Lost(String),
    /// A visible step differs from what was saved.
    Torn(String),
    /// A restart does not continue without help.
    Stuck(String),
}

/// Checks a server's objects directly: those of the step's files exist, with exactly these bytes.
///
/// # Errors
/// What is missing or torn.
pub(crate) fn stored(world: &World, step: u64, attempt: u32, tree: &FileTree) -> Result<(), Harm> {
    stored_as(world, step, &format!("a{attempt}"), tree)
}

/// The same, under an attempt and revision as in keys.
pub(crate) fn stored_as(world: &World, step: u64, attempt: &str, tree: &FileTree) -> Result<(), Harm> {
    world.store.objects().with(|objects| {
        for (path, (_, bytes)) in tree {
            let ending = format!("/{RUN}/{step:012}.{attempt}/step_{step}/{}", path.display());
            let Some((_, object)) = objects.iter().find(|(key, _)| key.ends_with(&ending)) else {
                return Err(Harm::Lost(format!("there is no object {ending}")));
            };
            if object.body != *bytes {
                let there = object.body.len();
                return Err(Harm::Torn(format!(
                    "{ending} holds {there} bytes that are not the {} that were saved",
                    bytes.len()
                )));
            }
        }
        Ok(())
    })
}
