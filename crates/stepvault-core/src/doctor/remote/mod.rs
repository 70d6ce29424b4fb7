//! What a remote was seen to do, and what that means before training starts.
//!
//! Everything here is a function from facts to findings: who asked the store, and how, is not known here.

mod access;
mod bucket;
mod clock;
mod promise;
mod speed;
mod uploads;

pub use self::access::{
    CredentialSource, Credentials, Obstacle, credentials, obstacle, unchecked_credentials,
};
pub use self::bucket::{BucketFacts, LifecycleRule, Versioning, bucket};
pub use self::clock::{clock, gap_seconds};
pub use self::promise::{Promise, left_behind, out_of_time, promise, takes_no_checksums};
pub use self::speed::{Direction, Measured, MeasuredRates, latency, rate, unmeasured};
pub use self::uploads::{
    LeftBytes, LeftUpload, LeftUploads, SWEPT_AFTER_SECONDS, left_uploads, uploads_not_listed, uploads_unread,
};

use crate::error::Error;
use crate::remote_settings::Scheme;

/// The remote that findings are about: what its configuration says of it.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The remote's name: the subject of each finding.
    pub name: String,
    /// The kind of store.
    pub scheme: Scheme,
    /// Bucket or container; empty for a directory.
    pub bucket: String,
    /// Below this the remote keeps everything, without slashes at its ends.
    pub prefix: String,
}

impl Subject {
    /// What `settings` say.
    pub fn of(settings: &crate::remote_settings::RemoteSettings) -> Self {
        Self {
            name: settings.name.to_string(),
            scheme: settings.url.scheme,
            bucket: settings.url.bucket.clone(),
            prefix: settings.url.prefix.clone(),
        }
    }
}

/// What to do about `error`: its own hint, or else `otherwise`.
fn remedy(error: &Error, otherwise: &str) -> String {
    error.hint_text().unwrap_or(otherwise).to_owned()
}

#[cfg(test)]
pub(crate) fn subject(url: &str) -> Subject {
    let url: crate::remote_settings::RemoteUrl = url.parse().unwrap();
    let name = crate::ids::RemoteName::new("main").unwrap();
    Subject::of(&crate::remote_settings::RemoteSettings::new(name, url))
}
