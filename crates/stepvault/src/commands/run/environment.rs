//! What a trainer finds in its environment beside what stepvault itself was started with.

use std::ffi::OsString;
use std::path::PathBuf;

use stepvault_core::ids::StepId;

/// The step that a trainer goes on from.
#[derive(Debug, Clone)]
pub(super) struct RestoredStep {
    /// The step.
    pub(super) id: StepId,
    /// Where it is.
    pub(super) path: PathBuf,
    /// Whether the trainer's directory holds a newer one that no tier has, which it will take instead.
    pub(super) is_outrun: bool,
}

/// The variables; empty where there is no step, so that one of an outer start is not taken for this one's.
pub(super) fn launch_environment(restored: Option<&RestoredStep>) -> Vec<(&'static str, OsString)> {
    let step = restored.map(|step| step.id.step.number().to_string());
    let path = restored.map(|step| step.path.clone().into_os_string());
    vec![
        ("STEPVAULT_RESTORED_STEP", step.unwrap_or_default().into()),
        ("STEPVAULT_RESTORED_PATH", path.unwrap_or_default()),
    ]
}
