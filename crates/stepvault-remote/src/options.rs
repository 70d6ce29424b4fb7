//! Options of an open store, beside its settings, and the refusal of settings that a kind of store does not support.

use std::fmt;

use stepvault_core::remote_settings::{RemoteSettings, Scheme, Transport};
use stepvault_core::{Error, ErrorKind, Result};

/// Keys given directly instead of through AWS's usual chain; for tests.
#[derive(Clone)]
pub struct StaticKeys {
    /// Access key ID.
    pub access_key: String,
    /// Secret access key.
    pub secret_key: String,
}

impl fmt::Debug for StaticKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("StaticKeys(…)")
    }
}

/// Options beside the settings.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Keys for S3 instead of AWS's usual chain; for tests.
    pub s3_keys: Option<StaticKeys>,
    /// Whether a remote that answers no request at all is given up after some seconds, and not asked again: for commands
    /// that can be repeated.
    pub gives_up_soon: bool,
}

/// Refuses settings for another kind of store.
pub(crate) fn check_scheme(settings: &RemoteSettings, scheme: Scheme) -> Result<()> {
    if settings.url.scheme == scheme {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, "cannot open the remote")
        .on(&settings.url)
        .because(format!("it is not a {}:// remote", scheme.as_str())))
}

/// Refuses options that are set and that this kind of store does not have: an option silently without effect would be a
/// surprise in a bill or an audit.
pub(crate) fn refuse_options(settings: &RemoteSettings) -> Result<()> {
    let given = [
        ("endpoint", settings.endpoint.is_some()),
        ("transport", settings.transport != Transport::default()),
        ("storage-class", settings.storage_class.is_some()),
        ("server-side-encryption", settings.server_side_encryption.is_some()),
        ("kms-key", settings.kms_key.is_some()),
        ("tags", !settings.tags.is_empty()),
        ("expected-bucket-owner", settings.expected_bucket_owner.is_some()),
    ];
    match given.iter().find(|(option, given)| *given && !settings.url.scheme.takes(option)) {
        None => Ok(()),
        Some((option, _)) => Err(Error::new(ErrorKind::Usage, "cannot open the remote")
            .on(&settings.url)
            .because(format!("it does not support the option {option}"))
            .hint("remove the option, or configure it on the bucket, container or directory itself")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepvault_core::ids::RemoteName;

    #[test]
    fn an_option_without_effect_is_refused_by_name() {
        let mut settings = RemoteSettings::new(RemoteName::new("r").unwrap(), "gs://bucket".parse().unwrap());
        settings.kms_key = Some("k".to_owned());
        refuse_options(&settings).unwrap();
        settings.url = "file:///data".parse().unwrap();
        let error = refuse_options(&settings).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot open the remote: file:///data: it does not support the option kms-key"
        );
    }
}
