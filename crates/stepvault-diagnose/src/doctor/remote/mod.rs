//! Judges what was observed of a remote before training starts.
//!
//! Everything here is a function from facts to findings; how the facts were requested is unknown here.

mod access;
mod bucket;
mod clock;
mod device;
mod guarantee;
mod product;
mod provider;
mod speed;
mod uploads;

pub use self::access::{credentials, obstacle, unchecked_credentials};
pub use self::bucket::bucket;
pub use self::clock::{clock, gap_seconds};
pub use self::device::device;
pub use self::guarantee::{Guarantee, attributes, guarantee, left_behind, out_of_time, takes_no_checksums};
pub use self::product::product;
pub use self::speed::{Direction, Measured, MeasuredRates, latency, rate, unmeasured};
pub use self::uploads::{
    GC_UPLOADS_AFTER_SECONDS, LeftUpload, LeftUploads, left_uploads, uploads_not_listed, uploads_unread,
};

use stepvault_core::error::Error;
use stepvault_core::remote_settings::Scheme;

/// The remote that findings are about, as configured.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The remote's name: the subject of each finding.
    pub name: String,
    /// The kind of store.
    pub scheme: Scheme,
    /// Bucket or container; empty for a directory.
    pub bucket: String,
    /// The prefix of everything on the remote, without leading or trailing slash.
    pub prefix: String,
}

impl Subject {
    /// Returns the subject for `settings`.
    pub fn of(settings: &stepvault_core::remote_settings::RemoteSettings) -> Self {
        Self {
            name: settings.name.to_string(),
            scheme: settings.url.scheme,
            bucket: settings.url.bucket.clone(),
            prefix: settings.url.prefix.clone(),
        }
    }
}

/// Returns the remedy for `error`: its own hint, or else `otherwise`.
fn remedy(error: &Error, otherwise: &str) -> String {
    error.hint_text().unwrap_or(otherwise).to_owned()
}

#[cfg(test)]
pub(crate) fn subject(url: &str) -> Subject {
    let url: stepvault_core::remote_settings::RemoteUrl = url.parse().unwrap();
    let name = stepvault_core::ids::RemoteName::new("main").unwrap();
    Subject::of(&stepvault_core::remote_settings::RemoteSettings::new(name, url))
}
