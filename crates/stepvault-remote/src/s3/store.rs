//! A bucket on S3, and what every request to it needs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8};

use aws_sdk_s3::Client;
use aws_sdk_s3::error::SdkError;
use aws_sdk_s3::operation::head_object::HeadObjectOutput;
use aws_sdk_s3::types::{ServerSideEncryption, StorageClass};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use stepvault_core::{Error, ErrorKind, RemoteSettings, Result};

use super::checksums::ALL_CHECKS;
use super::client::Clients;
use super::errors::{Fault, OperationError};
use crate::keys::{KeySpace, percent_encode};
use crate::options::StaticKeys;
use crate::store::IgnoredAttribute;

/// A bucket, or a prefix of one, on S3 or a compatible server.
#[derive(Debug)]
pub(crate) struct S3Store {
    pub(super) clients: Clients,
    pub(super) url: String,
    pub(super) bucket: String,
    keys: KeySpace,
    pub(super) attributes: Attributes,
    pub(super) lists_pending_uploads: AtomicBool,
    pub(super) deletes_in_batches: AtomicBool,
    /// Cleared once the store has refused `If-None-Match` as such, and done the same write without it.
    pub(super) sends_conditions: AtomicBool,
    /// Which checksums the store accepts at the completion of an upload.
    pub(super) completion_checks: AtomicU8,
}

impl S3Store {
    pub(crate) async fn open(settings: &RemoteSettings, keys: Option<StaticKeys>) -> Result<Self> {
        Ok(Self {
            clients: Clients::load(settings, keys).await?,
            url: settings.url.to_string(),
            bucket: settings.url.bucket.clone(),
            keys: KeySpace::new(&settings.url.prefix),
            attributes: Attributes::of(settings),
            lists_pending_uploads: AtomicBool::new(true),
            deletes_in_batches: AtomicBool::new(true),
            sends_conditions: AtomicBool::new(true),
            completion_checks: AtomicU8::new(ALL_CHECKS),
        })
    }

    pub(super) async fn client(&self) -> Result<Client> {
        Ok(self.clients.get().await?.sdk.clone())
    }

    /// Returns the key in the bucket.
    pub(super) fn full_key(&self, key: &str) -> String {
        self.keys.full_prefix(key)
    }

    /// Returns the key relative to the prefix, or `None` for a key outside it and for the prefix itself.
    pub(super) fn relative_key<'a>(&self, full_key: &'a str) -> Option<&'a str> {
        self.keys.key_of(full_key).filter(|key| !key.is_empty())
    }

    /// Returns the URL of an object, for messages.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}/{key}", self.url)
    }

    /// Returns the error of an operation `what` on the object `key`.
    pub(super) fn error(&self, kind: ErrorKind, what: &str, key: &str, why: impl std::fmt::Display) -> Error {
        Error::new(kind, what).on(self.name(key)).because(why)
    }

    /// Converts an SDK error.
    pub(super) fn fault<E: OperationError>(&self, error: &SdkError<E, HttpResponse>) -> Fault {
        self.noted(Fault::of(error))
    }

    /// Records what a refusal says about the credentials and about checksums.
    pub(super) fn noted(&self, mut fault: Fault) -> Fault {
        if fault.refuses_checksums() && self.clients.stop_checksums() {
            tracing::info!("{}: the store accepts no checksums; requests are sent without", self.url);
            fault.repeat();
        }
        if fault.is_expired() {
            self.clients.mark_expired();
        }
        fault
    }

    /// Returns the error of an operation `what` on the object `key` that the store answered.
    pub(super) fn failed<E: OperationError>(
        &self,
        what: &str,
        key: &str,
        error: &SdkError<E, HttpResponse>,
    ) -> Error {
        self.fault(error).into_error(what, &self.name(key))
    }

    /// Returns the answer, or `None` for a refusal that is `expected`; any other is the error of `what` on `key`.
    pub(super) fn unless<T, E: OperationError>(
        &self,
        what: &str,
        key: &str,
        answer: std::result::Result<T, SdkError<E, HttpResponse>>,
        expected: fn(&Fault) -> bool,
    ) -> Result<Option<T>> {
        let error = match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        let fault = self.fault(&error);
        if expected(&fault) {
            return Ok(None);
        }
        Err(fault.into_error(what, &self.name(key)))
    }

    /// Returns the requested attributes that the object at `key` does not have.
    pub(super) async fn compare_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        let attributes = &self.attributes;
        let mut ignored = Vec::new();
        if attributes.encryption.is_some() || attributes.storage_class_of(key).is_some() {
            ignored = attributes.differences(key, &self.head_output(key).await?);
        }
        if !attributes.tags.is_empty() {
            ignored.extend(self.compare_tags(key).await?);
        }
        if let Some(owner) = &self.clients.settings.expected_bucket_owner
            && self.answers_for_nobody(owner, key).await?
        {
            ignored.push(IgnoredAttribute::new("expected-bucket-owner", owner, Some("any account")));
        }
        Ok(ignored)
    }

    pub(super) async fn head_output(&self, key: &str) -> Result<HeadObjectOutput> {
        let what = "cannot read the object's attributes";
        let request = self.client().await?.head_object().bucket(&self.bucket).key(self.full_key(key));
        let answer = request.send().await;
        answer.map_err(|error| self.failed(what, key, &error))
    }

    async fn compare_tags(&self, key: &str) -> Result<Option<IgnoredAttribute>> {
        let what = "cannot read the object's tags";
        let request = self.client().await?.get_object_tagging().bucket(&self.bucket).key(self.full_key(key));
        let answer = request.send().await;
        let is_without_tags = |fault: &Fault| fault.is_not_implemented() || fault.is_missing();
        let output = match self.unless(what, key, answer, is_without_tags) {
            // Writing tags needs another right than reading them.
            Err(error) if error.kind() == ErrorKind::Denied => {
                tracing::warn!(
                    "{error}; without s3:GetObjectTagging it is not known whether the store keeps tags"
                );
                return Ok(None);
            }
            other => other?,
        };
        let stored: Option<BTreeMap<String, String>> = output.map(|output| {
            let tags = output.tag_set().iter();
            tags.map(|tag| (tag.key().to_owned(), tag.value().to_owned())).collect()
        });
        let shown = |tags: &BTreeMap<String, String>| {
            let tags: Vec<String> = tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
            tags.join(",")
        };
        Ok((stored.as_ref() != Some(&self.attributes.tags)).then(|| IgnoredAttribute {
            setting: "tags",
            requested: shown(&self.attributes.tags),
            reported: stored.filter(|tags| !tags.is_empty()).map(|tags| shown(&tags)),
        }))
    }

    /// Returns whether the store answers a request that another account than `owner` must own the bucket for.
    async fn answers_for_nobody(&self, owner: &str, key: &str) -> Result<bool> {
        let client = self.client().await?;
        let nobody = NOBODY.into_iter().find(|nobody| *nobody != owner);
        let request = client
            .head_object()
            .bucket(&self.bucket)
            .key(self.full_key(key))
            .set_expected_bucket_owner(nobody.map(str::to_owned));
        let error = match request.send().await {
            Ok(_) => return Ok(true),
            Err(error) => self.fault(&error),
        };
        let error: Error = error.into_error("cannot check the bucket's owner", &self.name(key));
        if error.is_transient() { Err(error) } else { Ok(false) }
    }
}

/// Accounts that own no bucket: the first for the comparison, the second where the first is the configured one.
const NOBODY: [&str; 2] = ["000000000000", "000000000001"];

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
    /// The same tags.
    tags: BTreeMap<String, String>,
}

impl Attributes {
    pub(crate) fn of(settings: &RemoteSettings) -> Self {
        let encryption = settings.server_side_encryption.as_deref().map(ServerSideEncryption::from);
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
            tags: settings.tags.clone(),
        }
    }

    /// Returns the storage class for an object at `key`. A probe sent in parts is never read, and has that of data.
    pub(crate) fn storage_class_of(&self, key: &str) -> Option<StorageClass> {
        let record = key.split('/').any(|component| component == stepvault_core::ids::RECORDS_DIRECTORY);
        let is_data = !record || key.ends_with(stepvault_core::keys::PARTS_PROBE);
        self.storage_class.clone().filter(|_| is_data)
    }

    /// Returns the attributes of the object at `key`, except its tags, that differ from the requested ones.
    fn differences(&self, key: &str, reported: &HeadObjectOutput) -> Vec<IgnoredAttribute> {
        let encryption = self.encryption.as_ref().map(ServerSideEncryption::as_str);
        let found_encryption = reported.server_side_encryption().map(ServerSideEncryption::as_str);
        let (kms_key, found_key) = (self.kms_key.as_deref(), reported.ssekms_key_id());
        let class = self.storage_class_of(key);
        let class = class.as_ref().map(StorageClass::as_str);
        let found_class = reported.storage_class().map(StorageClass::as_str);
        let is_same_key = kms_key.is_some_and(|kms_key| is_key(kms_key, found_key));
        // S3 reports no class for the standard one.
        let is_same_class = class == Some(found_class.unwrap_or("STANDARD"));
        let compared = [
            ("server-side-encryption", encryption, found_encryption, encryption == found_encryption),
            ("kms-key", kms_key, found_key, is_same_key),
            ("storage-class", class, found_class, is_same_class),
        ];
        let differing = compared.into_iter().filter(|(_, _, _, is_same)| !is_same);
        differing
            .filter_map(|(setting, requested, found, _)| {
                requested.map(|requested| IgnoredAttribute::new(setting, requested, found))
            })
            .collect()
    }
}

/// Returns whether a store that reports the key `reported` encrypted with the one that was requested by its ARN, its ID
/// or an alias. An alias says nothing about the ID behind it.
fn is_key(requested: &str, reported: Option<&str>) -> bool {
    let Some(reported) = reported else { return false };
    let is_alias = requested.starts_with("alias/") || requested.contains(":alias/");
    is_alias || requested == reported || reported.ends_with(&format!("/{requested}"))
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
    fn keys_are_compared_by_what_the_answer_can_say() {
        let arn = "arn:aws:kms:eu-west-1:111122223333:key/1234";
        for (requested, reported, is_same) in [
            (arn, Some(arn), true),
            ("1234", Some(arn), true),
            ("alias/checkpoints", Some(arn), true),
            ("alias/checkpoints", None, false),
            ("5678", Some(arn), false),
            ("234", Some(arn), false),
        ] {
            assert_eq!(is_key(requested, reported), is_same, "{requested} {reported:?}");
        }
    }

    #[test]
    fn a_key_alone_means_kms_and_records_stay_in_the_standard_class() {
        let mut settings = settings();
        settings.kms_key = Some("alias/k".to_owned());
        settings.storage_class = Some("GLACIER_IR".to_owned());
        settings.tags =
            BTreeMap::from([("team".to_owned(), "a&b".to_owned()), ("x".to_owned(), String::new())]);
        let attributes = Attributes::of(&settings);
        assert_eq!(attributes.encryption, Some(ServerSideEncryption::AwsKms));
        assert_eq!(attributes.tagging.as_deref(), Some("team=a%26b&x="));
        assert_eq!(attributes.storage_class_of("run/step/a1/x"), Some(StorageClass::GlacierIr));
        assert_eq!(attributes.storage_class_of("run/.stepvault/commits/x.json"), None);
        assert_eq!(
            attributes.storage_class_of("run/.stepvault/probes/0-parts"),
            Some(StorageClass::GlacierIr)
        );
    }
}
