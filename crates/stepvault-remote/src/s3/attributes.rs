//! Attributes of new objects: storage class, encryption, tags.

use std::fmt::Write as _;

use aws_sdk_s3::types::{ServerSideEncryption, StorageClass};
use stepvault_core::remote_settings::RemoteSettings;

/// Attributes of new objects, as the SDK's requests expect them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attributes {
    /// Storage class, for data objects only: records must stay immediately readable.
    pub(crate) storage_class: Option<StorageClass>,
    /// Kind of server-side encryption.
    pub(crate) encryption: Option<ServerSideEncryption>,
    /// Its key.
    pub(crate) kms_key: Option<String>,
    /// Tags, as a query string.
    pub(crate) tagging: Option<String>,
}

impl Attributes {
    pub(crate) fn of(settings: &RemoteSettings) -> Self {
        let encryption = settings
            .server_side_encryption
            .as_deref()
            .map(ServerSideEncryption::from);
        let tagging: Vec<String> = settings
            .tags
            .iter()
            .map(|(name, value)| format!("{}={}", percent_encode(name, ""), percent_encode(value, "")))
            .collect();
        Self {
            storage_class: settings.storage_class.as_deref().map(StorageClass::from),
            // A key without a kind can only mean KMS.
            encryption: encryption
                .or_else(|| settings.kms_key.as_ref().map(|_| ServerSideEncryption::AwsKms)),
            kms_key: settings.kms_key.clone(),
            tagging: (!tagging.is_empty()).then(|| tagging.join("&")),
        }
    }

    /// Returns the storage class for an object at `key`.
    pub(crate) fn storage_class_of(&self, key: &str) -> Option<StorageClass> {
        let record = key
            .split('/')
            .any(|component| component == stepvault_core::ids::RECORDS_DIRECTORY);
        self.storage_class.clone().filter(|_| !record)
    }
}

/// Percent-encodes all characters except unreserved ones and those in `kept`.
pub(crate) fn percent_encode(text: &str, kept: &str) -> String {
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut encoded, byte| {
            let character = char::from(byte);
            if byte.is_ascii_alphanumeric()
                || "-_.~".contains(character)
                || (byte.is_ascii() && kept.contains(character))
            {
                encoded.push(character);
            } else {
                let _ = write!(encoded, "%{byte:02X}");
            }
            encoded
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stepvault_core::ids::RemoteName;
    use stepvault_core::remote_settings::RemoteUrl;

    use super::*;

    fn settings() -> RemoteSettings {
        let url: RemoteUrl = "s3://bucket/prefix".parse().unwrap();
        RemoteSettings::new(RemoteName::new("s3").unwrap(), url)
    }

    #[test]
    fn all_but_the_unreserved_is_encoded() {
        assert_eq!(percent_encode("a b/+%ü~", "/"), "a%20b/%2B%25%C3%BC~");
    }

    #[test]
    fn a_key_alone_means_kms_and_records_stay_in_the_standard_class() {
        let mut settings = settings();
        settings.kms_key = Some("alias/k".to_owned());
        settings.storage_class = Some("GLACIER_IR".to_owned());
        settings.tags = BTreeMap::from([
            ("team".to_owned(), "a&b".to_owned()),
            ("x".to_owned(), String::new()),
        ]);
        let attributes = Attributes::of(&settings);
        assert_eq!(attributes.encryption, Some(ServerSideEncryption::AwsKms));
        assert_eq!(attributes.tagging.as_deref(), Some("team=a%26b&x="));
        assert_eq!(
            attributes.storage_class_of("run/step/a1/x"),
            Some(StorageClass::GlacierIr)
        );
        assert_eq!(attributes.storage_class_of("run/.stepvault/commits/x.json"), None);
    }
}
