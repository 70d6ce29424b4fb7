//! Applies profiles and structural checks to a checkpoint that is pushed by hand.

use std::path::Path;

use stepvault_core::config::LinkPolicy;
use stepvault_core::ids::Step;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::find::{Extent, FindOptions};
use stepvault_formats::profile::{GENERIC, Profile, ProfileSet};
use stepvault_formats::step_name::says_newest;

use crate::inspect::{InspectRequest, InspectedStep, inspect};

/// Facts about a checkpoint, known before it is sealed.
#[derive(Debug, Default)]
pub struct SourceCheck {
    /// Whether its framework overwrites finished files in place, so that hard links would change with them.
    pub is_overwritten_in_place: bool,
    /// The damage found in its files, each with a path.
    pub faults: Vec<String>,
    /// What identified it; without its directory.
    pub origin: StepOrigin,
    /// The number that its content states, if its name has none.
    pub stated_step: Option<Step>,
}

impl SourceCheck {
    /// Returns how its files may be linked or copied, given the configured `links`.
    pub fn links(&self, links: LinkPolicy) -> LinkPolicy {
        match links {
            LinkPolicy::Auto if self.is_overwritten_in_place => LinkPolicy::ReflinkOrCopy,
            stricter => stricter,
        }
    }
}

/// Inspects one checkpoint; `extent` gives its size. A checkpoint that cannot be inspected has no faults here: sealing
/// it reports why it cannot be read. Blocks.
pub fn check_source(
    source: &Path,
    profiles: &ProfileSet,
    profile: Option<&str>,
    extent: Extent,
    now: Timestamp,
) -> SourceCheck {
    let request = InspectRequest {
        profiles,
        profile,
        reads_best: true,
        deep: None,
        options: FindOptions { extent, ..FindOptions::default() },
    };
    let Ok(inspection) = inspect(source, &request, now) else {
        return SourceCheck { is_overwritten_in_place: true, ..SourceCheck::default() };
    };
    // An unknown writer may overwrite files in place next time.
    let profile = profiles.get(&inspection.framework);
    // Files without a number in a directory that was pushed are those of the step, unless a name says more.
    let is_its_file = |only: &InspectedStep| {
        inspection.framework == GENERIC
            && only.step.rewritten
            && source.is_dir()
            && !says_newest(&only.step.path)
    };
    let only = match inspection.steps.as_slice() {
        [only] if !is_its_file(only) => Some(only),
        _ => None,
    };
    let origin = match (only, profile) {
        (Some(only), Some(profile)) => StepOrigin { best: only.best.clone(), ..only.step.origin(profile) },
        _ => StepOrigin::default(),
    };
    let only = only.map(|only| &only.step);
    let overwrites = |profile: &Profile| match only {
        Some(step) => step.is_overwritten(profile),
        None => profile.overwrites_finished_files(),
    };
    let rewritten = only.filter(|step| step.rewritten);
    SourceCheck {
        is_overwritten_in_place: profile.is_none_or(overwrites),
        faults: inspection.steps.iter().flat_map(|step| step.check.damage()).collect(),
        origin,
        stated_step: rewritten.and_then(|step| Step::new(step.step?).ok()),
    }
}
