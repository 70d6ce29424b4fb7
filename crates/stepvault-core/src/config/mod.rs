//! The configuration: one TOML file, overridden by the environment, overridden by flags. The source of each value is
//! recorded.
//!
//! This module does no I/O: the caller reads the file and the environment and passes them as [`Sources`]. All faults
//! are reported together, each with its key, its position and a hint.

mod finding;
mod http_url;
mod key;
mod load;
mod merge;
mod model;
mod notify;
mod remote;
mod run;
mod run_names;
mod section;
mod sources;
mod tables;
mod validate;
mod value;

pub use self::finding::nearest;
pub use finding::{Explained, Finding, Source};
pub use http_url::ServiceUrl;
pub use load::{Report, check, faults_error, load};
pub use model::{
    AgentSettings, Completion, Config, ControlSocket, LinkPolicy, LocalSettings, LogFormat, MetricsSettings,
    NoticeSource, Notices, RestartSettings, RestoreSync, RunSettings, UploadSettings,
};
pub use notify::{NotifyEvent, NotifySink, NotifyTarget, WebhookFormat};
pub use run_names::HOSTNAME;
pub use sources::{FileText, FlagOverride, Sources, variable_name};
pub use value::{parse_duration, parse_size};

#[cfg(test)]
mod tests;
