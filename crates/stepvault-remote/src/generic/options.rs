//! Rejects options that a kind of store does not support.

use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};

/// Refuses the options in `untaken` when they are set: an option silently without effect would be a surprise in a bill
/// or an audit.
pub(crate) fn refuse_options(settings: &RemoteSettings, untaken: &[&str]) -> Result<()> {
    let given = [
        ("endpoint", settings.endpoint.is_some()),
        ("storage-class", settings.storage_class.is_some()),
        (
            "server-side-encryption",
            settings.server_side_encryption.is_some(),
        ),
        ("kms-key", settings.kms_key.is_some()),
        ("tags", !settings.tags.is_empty()),
        ("expected-bucket-owner", settings.expected_bucket_owner.is_some()),
    ];
    match given
        .iter()
        .find(|(option, given)| *given && untaken.contains(option))
    {
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
        let mut settings =
            RemoteSettings::new(RemoteName::new("r").unwrap(), "file:///data".parse().unwrap());
        settings.kms_key = Some("k".to_owned());
        refuse_options(&settings, &["tags"]).unwrap();
        let error = refuse_options(&settings, &["tags", "kms-key"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot open the remote: file:///data: it does not support the option kms-key"
        );
    }
}
