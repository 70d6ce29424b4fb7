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
pub use self::speed::{Direction, Measured, MeasuredRates, latency, rate};
pub use self::uploads::{
    GC_UPLOADS_AFTER_SECONDS, LeftUpload, LeftUploads, left_uploads, uploads_not_listed, uploads_unread,
};

use super::Check;
use stepvault_core::error::Error;
use stepvault_core::remote_settings::RemoteSettings;

/// Returns a check whose subject is the remote's name.
fn check(name: &'static str, remote: &RemoteSettings) -> Check {
    Check::new(name, remote.name.as_str())
}

/// Returns the remedy for `error`: its own hint, or else `otherwise`.
fn remedy(error: &Error, otherwise: &str) -> String {
    error.hint_text().unwrap_or(otherwise).to_owned()
}

#[cfg(test)]
pub(crate) fn subject(url: &str) -> RemoteSettings {
    let name = stepvault_core::ids::RemoteName::new("main").unwrap();
    RemoteSettings::new(name, url.parse().unwrap())
}
