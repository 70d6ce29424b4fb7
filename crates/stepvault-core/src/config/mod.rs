//! The configuration: one TOML file, under the environment, under flags; where each value came from is kept.
//!
//! Pure: the caller reads the file and the environment and hands them over as [`Sources`]. Every fault is reported in
//! one go, with its key, the place it stands at and what to do about it.

mod build;
mod environment;
mod explain;
mod file;
mod finding;
mod key;
mod load;
mod merge;
mod model;
mod options;
mod paths;
mod remote;
mod schema;
mod suggest;
mod units;
mod validate;
mod validate_remote;
mod validate_run;
mod value;

pub use environment::variable_name;
pub use explain::Explained;
pub use finding::{Finding, Source};
pub use load::{FileText, FlagOverride, Report, Sources, check, faults_error, load};
pub use model::{
    AgentSettings, Completion, Config, ControlSocket, DoctorSettings, Links, LocalSettings, NoticeSource,
    Notices, RestartSettings, RunSettings, UploadSettings,
};
pub use suggest::nearest;
pub use units::{parse_duration, parse_size};

#[cfg(test)]
mod tests;
