//! Metadata of an S3 bucket and the credentials in use, for checks before the remote is used.

use async_trait::async_trait;
use aws_credential_types::credential_feature::AwsCredentialFeature;
use aws_credential_types::provider::ProvideCredentials as _;
use aws_sdk_s3::config::Credentials as Keys;
use aws_sdk_s3::error::ProvideErrorMetadata as _;
use aws_sdk_s3::types::{
    BucketVersioningStatus, ExpirationStatus, LifecycleRule as Rule, TransitionStorageClass,
};
use stepvault_core::Result;
use stepvault_core::store_facts::{
    BucketFacts, CredentialSource, Credentials, LeftBytes, LifecycleRule, Obstacle, Versioning,
};

use super::checksums::AnswerHeaders;
use super::client::Clients;
use super::errors::Fault;
use super::store::S3Store;
use crate::examine::{ExamineError, Examiner, ListingResult};
use crate::listed::Listed;
use crate::store::PendingUpload;

#[async_trait]
impl Examiner for S3Store {
    async fn credentials(&self) -> Result<Option<Credentials>> {
        if self.clients.settings.anonymous {
            return Ok(Some(Credentials::anonymous()));
        }
        let keys = self.clients.keys().await?;
        let source = source_of(&keys, &self.clients);
        Ok(Some(Credentials {
            source,
            expires: keys.expiry().map(Into::into),
            temporary: keys.session_token().is_some(),
        }))
    }

    async fn list_one(&self, prefix: &str) -> Option<ListingResult> {
        let headers = AnswerHeaders::default();
        let client = match self.client().await {
            Ok(client) => client,
            Err(error) => {
                return Some(ListingResult::of(Err(ExamineError { obstacle: Obstacle::Settings, error })));
            }
        };
        let request = client
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(self.full_key(prefix))
            .max_keys(1)
            .customize()
            .interceptor(headers.clone());
        let outcome = request.send().await.map(drop).map_err(|error| {
            let fault = self.fault(&error);
            ExamineError {
                obstacle: fault.obstacle(),
                error: fault.into_error("cannot list objects", &self.name(prefix)),
            }
        });
        Some(ListingResult { outcome, store_time: headers.date(), server: headers.server() })
    }

    async fn bucket(&self) -> Option<BucketFacts> {
        Some(BucketFacts {
            versioning: self.versioning().await,
            rules: self.rules().await,
            soft_delete_seconds: None,
        })
    }

    async fn listed_uploads(&self, prefix: &str, most_pages: usize) -> Result<Option<Listed>> {
        self.listed_multiparts(prefix, most_pages).await.map(Some)
    }

    async fn uploaded_bytes(&self, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
        self.parts_bytes(upload).await
    }
}

impl S3Store {
    /// Returns whether the bucket keeps old versions.
    async fn versioning(&self) -> Result<Versioning> {
        let request = self.client().await?.get_bucket_versioning().bucket(&self.bucket);
        let output = request
            .send()
            .await
            .map_err(|error| self.failed("cannot read the bucket's versioning", "", &error))?;
        Ok(match output.status() {
            Some(BucketVersioningStatus::Enabled) => Versioning::On,
            Some(BucketVersioningStatus::Suspended) => Versioning::Suspended,
            // Some servers return an empty status where versioning was never enabled.
            _ => Versioning::Off,
        })
    }

    /// Returns the bucket's enabled lifecycle rules.
    async fn rules(&self) -> Result<Vec<LifecycleRule>> {
        let request = self.client().await?.get_bucket_lifecycle_configuration().bucket(&self.bucket);
        match request.send().await {
            Ok(output) => Ok(output
                .rules()
                .iter()
                .filter(|rule| *rule.status() == ExpirationStatus::Enabled)
                .map(rule_of)
                .collect()),
            Err(error) if error.code() == Some("NoSuchLifecycleConfiguration") => Ok(Vec::new()),
            Err(error) => {
                let fault = self.fault(&error);
                let has_none = fault.is_unreadable_success() || fault.is_not_implemented();
                let error = fault.into_error("cannot read the bucket's lifecycle rules", &self.name(""));
                // OpenStack Swift answers with a listing of the bucket.
                Err(if has_none { error.because("the store knows no such rules") } else { error })
            }
        }
    }
}

impl Clients {
    /// Fetches keys from AWS's chain, or from the caller's replacement.
    async fn keys(&self) -> Result<Keys> {
        let base = self.chain().await?;
        let missing = |why: String| {
            Fault::no_credentials(why).into_error("cannot get credentials", &self.settings.url.to_string())
        };
        let Some(provider) = base.credentials_provider() else {
            return Err(missing("no provider is configured".to_owned()));
        };
        provider
            .provide_credentials()
            .await
            .map_err(|error| missing(super::credentials::credentials_fault(&error)))
    }
}

/// Returns the source of credentials. The SDK records the providers that they came through; of several, the one that
/// renews them counts.
fn source_of(keys: &Keys, clients: &Clients) -> CredentialSource {
    use AwsCredentialFeature as Feature;
    if clients.keys.is_some() {
        return CredentialSource::Given;
    }
    let none = Vec::new();
    let features = keys.get_property::<Vec<Feature>>().unwrap_or(&none);
    let any = |wanted: &[Feature]| features.iter().any(|feature| wanted.contains(feature));
    let sources: [(&[Feature], CredentialSource); 8] = [
        (
            &[
                Feature::CredentialsStsAssumeRoleWebId,
                Feature::CredentialsEnvVarsStsWebIdToken,
                Feature::CredentialsProfileStsWebIdToken,
            ],
            CredentialSource::WebIdentity,
        ),
        (&[Feature::CredentialsStsAssumeRole], CredentialSource::AssumedRole),
        (
            &[
                Feature::CredentialsSso,
                Feature::CredentialsProfileSso,
                Feature::CredentialsLogin,
                Feature::CredentialsProfileLogin,
            ],
            CredentialSource::SingleSignOn,
        ),
        (&[Feature::CredentialsProcess, Feature::CredentialsProfileProcess], CredentialSource::Process),
        (&[Feature::CredentialsHttp], CredentialSource::Container),
        (&[Feature::CredentialsImds], CredentialSource::Machine),
        (&[Feature::CredentialsEnvVars], CredentialSource::Environment),
        (&[Feature::CredentialsProfile], CredentialSource::Profile(clients.profile())),
    ];
    let found = sources.into_iter().find(|(wanted, _)| any(wanted));
    found.map_or(CredentialSource::Unnamed, |(_, source)| source)
}

fn rule_of(rule: &Rule) -> LifecycleRule {
    let days = |days: Option<i32>| days.and_then(|days| u32::try_from(days).ok());
    let filter = rule.filter();
    let and = filter.and_then(|filter| filter.and());
    #[allow(deprecated, reason = "older rules still have their prefix there")]
    let prefix = rule
        .prefix()
        .or_else(|| filter.and_then(|filter| filter.prefix()))
        .or_else(|| and.and_then(|and| and.prefix()));
    let narrowed = filter.is_some_and(|filter| {
        filter.tag().is_some()
            || filter.object_size_greater_than().is_some()
            || filter.object_size_less_than().is_some()
    }) || and.is_some_and(|and| {
        !and.tags().is_empty()
            || and.object_size_greater_than().is_some()
            || and.object_size_less_than().is_some()
    });
    let expiration = rule.expiration();
    let archives = rule
        .transitions()
        .iter()
        .filter(|transition| {
            matches!(
                transition.storage_class(),
                Some(TransitionStorageClass::Glacier | TransitionStorageClass::DeepArchive)
            )
        })
        // A rule with a date instead of days applies on that date, which may have passed.
        .map(|transition| days(transition.days()).unwrap_or(0))
        .min();
    LifecycleRule {
        prefixes: prefix.map(str::to_owned).into_iter().collect(),
        narrowed,
        drops_uploads_after_days: rule
            .abort_incomplete_multipart_upload()
            .and_then(|abort| days(abort.days_after_initiation())),
        drops_old_versions_after_days: rule
            .noncurrent_version_expiration()
            .and_then(|expiration| days(expiration.noncurrent_days())),
        deletes_after_days: expiration
            .and_then(|expiration| days(expiration.days()).or_else(|| expiration.date().map(|_| 0))),
        archives_after_days: archives,
    }
}
