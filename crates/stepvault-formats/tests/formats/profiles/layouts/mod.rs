//! Frameworks without an archive of real checkpoints: directories written by hand, in the order in which the
//! framework writes, and checked after each write.

use stepvault_formats::detect::detect;
use stepvault_formats::find::{FindOptions, Found, find_steps};
use stepvault_formats::profile::{Profile, ProfileSet};

use crate::directory::memory::Memory;

mod hugging_face;
mod jax;
mod lightning;
mod reinforcement;
mod torch;
mod unknown;
mod unnumbered;

pub(super) fn profile(name: &str) -> Profile {
    ProfileSet::default().get(name).unwrap().clone()
}

pub(super) fn detected(memory: &Memory) -> String {
    let profiles = ProfileSet::default();
    detect(&memory.tree(), memory, &profiles).unwrap().profile.name.clone()
}

pub(super) fn look(name: &str, memory: &Memory) -> Found {
    let options = FindOptions::default();
    find_steps(&profile(name), &memory.tree(), memory, memory.settled(), &options)
}

/// Returns the paths of the complete steps.
pub(super) fn complete(name: &str, memory: &Memory) -> Vec<String> {
    let found = look(name, memory);
    found.steps.iter().filter(|step| step.is_complete()).map(|step| step.path.clone()).collect()
}

/// Writes a step after `before`, and checks that it is complete after the last write and after none before, even when
/// nothing happens for long: each prefix of the writes is what a kill leaves. `tells_nothing` lists the writes after
/// which it looks complete although it is not, because the framework's layout does not show it.
pub(super) fn killed_after_each_write(
    name: &str,
    before: &[&str],
    writes: &[&str],
    step: &str,
    tells_nothing: &[&str],
) {
    let mut memory = Memory::new(before);
    for write in writes {
        let (write, last) = (*write, std::ptr::eq(*write, *writes.last().unwrap()));
        memory.write(write);
        if !before.is_empty() || last {
            assert_eq!(detected(&memory), name, "after {write}");
        }
        let is_complete = complete(name, &memory).iter().any(|path| path == step);
        let expected = last || tells_nothing.contains(&write);
        let found = look(name, &memory);
        assert_eq!(is_complete, expected, "{name} after {write}: {:#?}", found.steps);
    }
    for write in tells_nothing {
        assert!(writes.contains(write), "{write}");
    }
}
