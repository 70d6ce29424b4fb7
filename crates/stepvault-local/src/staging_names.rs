//! What is in the directory of a restore in progress.

/// The directory of a restore that becomes the step.
pub(crate) const DATA: &str = "data";
/// The previous content of the target, on filesystems that cannot swap two names.
pub(crate) const REPLACED: &str = "replaced";
/// Directory that holds the previous content of the step's paths.
pub(crate) const TAKEN_DOWN: &str = "taken-down";
