//! Judges what was observed of a remote before training starts.
//!
//! Everything here is a function from facts to findings; how the facts were requested is unknown here.

mod access;
mod bucket;
mod guarantee;
mod product;
mod provider;
mod speed;
mod uploads;

pub use self::access::{clock, credentials, obstacle, unchecked_credentials};
pub use self::bucket::bucket;
pub use self::guarantee::{Guarantee, attributes, guarantee, left_behind, out_of_time, takes_no_checksums};
pub use self::product::product;
pub use self::speed::{Measured, MeasuredRates, latency, rate};
pub use self::uploads::{
    GC_UPLOADS_AFTER_SECONDS, LeftUpload, LeftUploads, left_uploads, uploads_not_listed, uploads_unread,
};

use super::{Check, Finding};
use stepvault_core::{Error, RemoteSettings};

/// Returns a check whose subject is the remote's name.
fn check(name: &'static str, remote: &RemoteSettings) -> Check {
    Check::new(name, remote.name.as_str())
}

/// Returns the remedy for `error`: its own hint, or else `otherwise`.
fn remedy(error: &Error, otherwise: &str) -> String {
    error.hint_text().unwrap_or(otherwise).to_owned()
}

/// Returns the finding on whether a remote that is a directory is on its own disk: one on the vault's filesystem is no
/// second copy, and an unmounted mount point looks the same.
pub fn device(remote: &RemoteSettings, is_vaults: bool) -> Finding {
    let check = check("own filesystem", remote);
    if is_vaults {
        check.warn(
            "on the vault's filesystem: losing it loses both copies",
            "mount the missing filesystem, or choose a directory on another disk; use a directory below a mount \
             point, not the mount point itself, so that it is missing while nothing is mounted",
        )
    } else {
        check.pass("on a different filesystem than the vault")
    }
}

/// Returns the finding on a directory that does not exist yet, in a directory with other files.
pub fn not_begun(remote: &RemoteSettings) -> Finding {
    check("directory", remote).warn(
        "it does not exist yet, and nothing else was checked",
        "the first push, run or watch creates it; if it should exist already, mount its filesystem",
    )
}

#[cfg(test)]
pub(crate) fn subject(url: &str) -> RemoteSettings {
    let name = stepvault_core::ids::RemoteName::new("main").unwrap();
    RemoteSettings::new(name, url.parse().unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    #[test]
    fn a_copy_on_the_same_disk_is_no_second_copy() {
        let subject = subject("file:///data/archive");
        assert_eq!(device(&subject, true).outcome, Outcome::Warn);
        assert_eq!(device(&subject, false).outcome, Outcome::Pass);
        assert_eq!(not_begun(&subject).outcome, Outcome::Warn);
    }
}
