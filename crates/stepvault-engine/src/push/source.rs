//! What the profiles and the structural checks say of a checkpoint that is pushed by hand.

use std::path::Path;

use stepvault_core::clock::Clock;
use stepvault_formats::find::{Extent, FindOptions};
use stepvault_formats::profile::{GENERIC, Profile, ProfileSet};
use stepvault_local::seal::LinkPolicy;

use crate::inspect::{InspectRequest, inspect};

/// What is known of a checkpoint before it is sealed.
#[derive(Debug, Default)]
pub struct SourceCheck {
    /// Whether its framework overwrites finished files in place, so that hard links would change with them.
    pub is_overwritten_in_place: bool,
    /// What is broken inside, each with its path.
    pub faults: Vec<String>,
}

impl SourceCheck {
    /// How its files may be taken over, where the configuration says `links`.
    pub fn links(&self, links: LinkPolicy) -> LinkPolicy {
        match links {
            LinkPolicy::Auto if self.is_overwritten_in_place => LinkPolicy::ReflinkOrCopy,
            stricter => stricter,
        }
    }
}

/// Looks at one checkpoint, of which `extent` says how much is there. What cannot be looked at has no faults here: sealing it says why it cannot be read. Blocks.
pub fn check_source(
    source: &Path,
    profiles: &ProfileSet,
    profile: Option<&str>,
    extent: Extent,
    clock: &dyn Clock,
) -> SourceCheck {
    let request = InspectRequest {
        profiles,
        profile,
        options: FindOptions {
            extent,
            ..FindOptions::default()
        },
    };
    let Ok(inspection) = inspect(source, &request, clock) else {
        return SourceCheck::default();
    };
    let framework = Some(inspection.framework.as_str()).filter(|name| *name != GENERIC);
    let profile = framework.and_then(|name| profiles.get(name));
    SourceCheck {
        is_overwritten_in_place: profile.is_some_and(Profile::overwrites_finished_files),
        faults: inspection
            .steps
            .iter()
            .flat_map(|step| step.check.broken())
            .map(|(path, why)| format!("{path}: {why}"))
            .collect(),
    }
}
