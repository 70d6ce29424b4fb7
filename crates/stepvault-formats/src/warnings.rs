//! What a user should know of a directory besides the verdict on each step: pointers to nothing, a step whose content is
//! of another number, and a step that lacks files which all earlier ones have.

use serde::Deserialize;
use stepvault_core::words;

use crate::find::{Found, FoundStep};
use crate::profile::last_component;
use crate::step_name;
use crate::structure::torch;
use crate::text_file::read_json;
use crate::tree::{OpenFile, Tree, joined};

/// Maximum number of missing files that are named.
const MAX_NAMED: usize = 3;
/// Files that state the number of their step under a key of their object, by the ending of their names.
const STATES: [(&str, &str); 2] = [("_model_states.pt", "global_steps"), (".ckpt", "global_step")];

/// The part of `trainer_state.json` that names the step.
#[derive(Deserialize)]
struct TrainerState {
    global_step: u64,
}

/// Returns the warnings about a directory.
pub fn warnings(found: &Found, tree: &Tree, files: &dyn OpenFile) -> Vec<String> {
    let pointers = found.pointers.iter().filter(|pointer| pointer.dangling);
    let mut warnings: Vec<String> = pointers
        .map(|pointer| {
            let path = &pointer.path;
            let what = if pointer.says.is_empty() {
                format!("{path} is empty, or cannot be read as text")
            } else {
                format!("{path} names {}, and no such step exists", pointer.says)
            };
            let reader = if pointer.is_for_resuming() {
                "the trainer, which resumes by it, will fail or start anew"
            } else {
                "what reads it will find no step"
            };
            format!("{what}: {reader}; write the name of a complete step into it")
        })
        .collect();
    for step in &found.steps {
        if let Some((path, stated)) = stated_step(step, tree, files)
            && step.step != Some(stated)
        {
            warnings.push(format!(
                "{path} states step {stated}, and the name of {} states another: it was renamed, or its files are of two steps",
                step.path
            ));
        }
        if let Some(Some(missing)) = found.missing.get(&step.path)
            && !missing.is_empty()
        {
            warnings.push(format!("{} {}: its save may have been cut off", step.path, lacks(missing)));
        }
    }
    warnings
}

/// Returns what a step lacks of the files that all earlier ones have, as a part of a sentence.
pub fn lacks(missing: &[String]) -> String {
    let named = words::first_of(missing, MAX_NAMED, 0);
    format!("lacks {named}, which all earlier steps have")
}

/// Returns the number that a file of a step states, with the file; `None` if no file that is known to do so states one,
/// or if the number in the step's name may count something else, such as epochs.
fn stated_step(step: &FoundStep, tree: &Tree, files: &dyn OpenFile) -> Option<(String, u64)> {
    let named = step.step?;
    for member in &step.members {
        let path = joined(member, "trainer_state.json");
        if let Ok(state) = read_json::<TrainerState>(tree, files, &path) {
            return Some((path, state.global_step));
        }
        let name = last_component(member);
        let counts_steps =
            name.to_ascii_lowercase().contains("step") && step_name::parse(name) == Some(named);
        if !counts_steps {
            continue;
        }
        let inside = tree.inside(member).map(|(path, _)| path);
        let paths = std::iter::once(member.as_str()).chain(inside);
        let key_of = |path: &str| STATES.iter().find(|(ending, _)| path.ends_with(ending));
        let stated = paths.filter(|path| tree.is_file(path)).filter_map(|path| Some((path, key_of(path)?.1)));
        // One file of a step is enough: they state the same.
        for (path, key) in stated.take(1) {
            let object = files.open(path).ok().map(|source| torch::read_object(&*source));
            if let Some(Ok(object)) = object
                && let Some(number) = object.entry(object.root, key).and_then(|value| object.unsigned(value))
            {
                return Some((path.to_owned(), number));
            }
        }
    }
    None
}
