//! Environment variables that are set for the trainer in addition to stepvault's own environment.

use std::ffi::OsString;
use std::path::PathBuf;

use stepvault_core::ids::StepId;

/// The step that a trainer resumes from.
#[derive(Debug, Clone)]
pub(super) struct RestoredStep {
    /// The step.
    pub(super) id: StepId,
    /// The step's path.
    pub(super) path: PathBuf,
    /// Whether the trainer's directory holds a newer step that no tier has, from which the trainer resumes instead.
    pub(super) is_outrun: bool,
}

/// Returns the variables; empty values if there is no step, so that values of an outer `stepvault run` do not apply.
pub(super) fn launch_environment(restored: Option<&RestoredStep>) -> Vec<(&'static str, OsString)> {
    let step = restored.map(|step| step.id.step.number().to_string());
    let path = restored.map(|step| step.path.clone().into_os_string());
    vec![
        ("STEPVAULT_RESTORED_STEP", step.unwrap_or_default().into()),
        ("STEPVAULT_RESTORED_PATH", path.unwrap_or_default()),
    ]
}
