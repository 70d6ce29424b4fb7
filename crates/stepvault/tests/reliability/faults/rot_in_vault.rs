//! Bit rot in the local tier: one flipped bit of a file of the vault at a time, with the file's size and times
//! unchanged.
//!
//! Every file below the vault is damaged in turn. After each fault the node verifies its vault, restores with its
//! remote, and restores from the vault alone. With the remote the newest step must be restored whole; without it, the
//! result is either the newest undamaged step or an error, and never a changed byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use stepvault_testkit::random::Random;
use stepvault_testkit::tree::{FileTree, fast_directory, files_below, read_tree, remove};

use crate::faults::check::Harm;
use crate::faults::settings::of_environment;
use crate::faults::tally::Tally;
use crate::faults::world::{Kept, Store, World};

const FILES: [(&str, usize); 3] = [("model.bin", 40_000), ("optimizer/state.bin", 3_000), ("empty.json", 0)];
const STEPS: [u64; 3] = [1, 2, 3];

/// Files of a vault that hold no bytes of a step, and why a bit of them may change.
const UNPROMISED: [(&str, &str); 5] = [
    ("vault.json", "what the vault is called: a process that opens it refuses a damaged one"),
    ("remotes", "what is known of a remote, which is asked before anything relies on it"),
    ("notes", "the remote's identity, which is written again"),
    ("lock", "a process id for people"),
    ("place.json", "where the vault was: a damaged one is written again, or gives the vault a new identity"),
];

struct Rotting {
    world: World,
    kept: Kept,
}

/// A flip in a file, which is undone when it is dropped.
struct Flip {
    file: PathBuf,
    at: u64,
    bit: u8,
}

impl Flip {
    /// Flips the bit in place; size and times stay.
    fn turn(&self) {
        let modified = self.file.metadata().unwrap().modified().unwrap();
        let file = fs::File::options().read(true).write(true).open(&self.file).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, self.at).unwrap();
        byte[0] ^= self.bit;
        file.write_all_at(&byte, self.at).unwrap();
        file.set_modified(modified).unwrap();
    }
}

impl Drop for Flip {
    fn drop(&mut self) {
        self.turn();
    }
}

impl Rotting {
    /// Returns the step of a file of the vault, if a reader relies on it.
    fn promised(path: &Path) -> Option<u64> {
        let text = path.to_str()?;
        let (_, rest) = text.split_once("/steps/")?;
        let (label, inner) = rest.split_once('/')?;
        let (step, _) = label.split_once(".a")?;
        let relied = inner.starts_with("data/") || inner == "seal.json" || inner == "manifest.json";
        if relied { step.parse().ok() } else { None }
    }

    fn kind(path: &Path) -> String {
        let text = path.to_str().unwrap();
        if text.contains("/data/") {
            return "data".to_owned();
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let of = |directory: &str| text.contains(&format!("/{directory}/")).then(|| directory.to_owned());
        ["remotes", "notes"].iter().find_map(|directory| of(directory)).unwrap_or_else(|| name.to_owned())
    }

    fn verify(&self, hit: Option<u64>) -> Result<(), Harm> {
        let ran = self.world.on_vault(["verify", "--deep", "--json", "--tier", "local"]).run();
        let document = ran.try_json().map_err(Harm::Stuck)?;
        let named: BTreeSet<u64> = document["steps"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|step| step["tiers"].as_array().unwrap().iter().any(|tier| tier["sound"] != true))
            .filter_map(|step| step["step"].as_u64())
            .collect();
        if named == hit.into_iter().collect() {
            return Ok(());
        }
        Err(Harm::Torn(format!("verify names {named:?}, not {hit:?}: {ran:?}")))
    }

    /// Returns what is restored, and the number of its step.
    fn restore(&self, with_remote: bool) -> Result<Option<(u64, FileTree)>, Harm> {
        let target = self.world.scratch.join("got");
        remove(&target);
        let arguments = ["restore", "--json", "--as", target.to_str().unwrap()];
        let ran = if with_remote {
            self.world.on_run(arguments).run()
        } else {
            self.world.on_vault(arguments).run()
        };
        if ran.code == 0 {
            let document = ran.try_json().map_err(Harm::Stuck)?;
            return Ok(Some((document["step"].as_u64().unwrap_or(0), read_tree(&target))));
        }
        if target.exists() || !ran.stderr.contains("error") && !ran.stdout.contains("error") {
            return Err(Harm::Torn(format!("{ran:?}")));
        }
        Ok(None)
    }

    fn checked(&self, file: &Path) -> Result<bool, Harm> {
        let hit = Self::promised(file);
        let is_marker = file.ends_with("vault.json");
        let found = if is_marker { Ok(()) } else { self.verify(hit) };
        let newest = *STEPS.last().unwrap();
        match self.restore(true)? {
            Some((step, tree)) if step == newest && tree == self.world.step(newest) => {}
            None if is_marker => {}
            other => {
                let other = other.map(|(step, _)| step);
                return Err(Harm::Torn(format!("with the remote {other:?} came back, not step {newest}")));
            }
        }
        // The previous fault may have quarantined a step.
        self.world.bring_back(&self.kept);
        let due = STEPS.iter().rfind(|step| Some(**step) != hit).copied();
        match self.restore(false)? {
            Some((step, tree)) if Some(step) >= due && tree == self.world.step(step) => {}
            None if is_marker => {}
            other => {
                let other = other.map(|(step, _)| step);
                return Err(Harm::Torn(format!("alone {other:?} came back, not step {due:?}")));
            }
        }
        found.map(|()| hit.is_some())
    }
}

#[test]
fn rot_in_the_vault_is_found_and_never_restored() {
    let settings = of_environment();
    let place = fast_directory();
    let world = World::of(place.path(), Store::s3(), &FILES);
    world.have(&STEPS);
    let kept = world.keep();
    let rotting = Rotting { world, kept };
    let files: Vec<PathBuf> = files_below(&rotting.world.vault)
        .into_iter()
        .filter(|file| !file.is_symlink() && file.metadata().is_ok_and(|metadata| metadata.len() > 0))
        .collect();
    for file in &files {
        let kind = Rotting::kind(file);
        let known = Rotting::promised(file).is_some() || UNPROMISED.iter().any(|(name, _)| *name == kind);
        assert!(known, "what does {} promise?", file.display());
    }
    let mut random = Random(settings.seed);
    let mut tally = Tally::new("Rot", "the vault, a bit", settings.seed);
    let (mut found, mut struck) = (0, BTreeMap::<String, usize>::new());
    // Each file is damaged once before any is damaged twice.
    let mut turns: Vec<&PathBuf> = Vec::new();
    for _ in 0..settings.times(16, 360) {
        rotting.world.bring_back(&rotting.kept);
        if turns.is_empty() {
            turns.extend(&files);
        }
        let file = turns.swap_remove(random.index(turns.len()));
        // Flip it in the kept state: the vault has the same file, or gets a copy of it.
        let flip = Flip {
            file: rotting.kept.base.join(file.strip_prefix(&rotting.world.root).unwrap()),
            at: random.number() % file.metadata().unwrap().len(),
            bit: 1 << random.index(8),
        };
        flip.turn();
        rotting.world.bring_back(&rotting.kept);
        tally.runs += 1;
        tally.faults += 1;
        tally.acknowledged += STEPS.len();
        *struck.entry(Rotting::kind(file)).or_default() += 1;
        match rotting.checked(file) {
            Ok(hit) => found += usize::from(hit),
            Err(harm) => {
                tally
                    .harmed(&format!("seed {}, byte {} of {}", settings.seed, flip.at, file.display()), harm);
            }
        }
    }
    let struck: Vec<String> = struck.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
    tally.note = format!("{found} damaged steps named by verify; {}", struck.join(", "));
    tally.report();
    tally.assert_no_harm();
}
