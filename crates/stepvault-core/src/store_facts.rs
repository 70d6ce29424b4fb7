//! Facts about a store: the credentials, the bucket's rules, and what keeps requests from it. What they mean is decided
//! elsewhere.

use crate::{Error, ErrorKind, Timestamp};

/// The source of credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// Passed by the program itself.
    Given,
    /// Keys in environment variables.
    Environment,
    /// Keys in a profile of AWS's configuration files; contains the profile's name.
    Profile(String),
    /// A command that a profile names.
    Process,
    /// AWS's single sign-on.
    SingleSignOn,
    /// A role that was assumed with other credentials.
    AssumedRole,
    /// A role that was assumed with the token of a pod.
    WebIdentity,
    /// The container's credential service: ECS, or EKS's pod identity.
    Container,
    /// The machine's identity, from its metadata service.
    Machine,
    /// The file that `GOOGLE_APPLICATION_CREDENTIALS` names.
    KeyFile(String),
    /// The file that `gcloud auth application-default login` writes.
    UserFile(String),
    /// An Azure storage account's key.
    AccountKey,
    /// An Azure shared access signature.
    SharedSignature,
    /// A token of Azure's directory: of a service principal, a workload identity or a managed identity.
    DirectoryToken,
    /// The store is on this machine and requires none.
    NotAsked,
    /// None, as the remote's settings ask for.
    Anonymous,
    /// The provider gives no name.
    Unnamed,
}

/// The credentials used for requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Their source.
    pub source: CredentialSource,
    /// When they expire, if known.
    pub expires: Option<Timestamp>,
    /// Whether they have a session token, and therefore expire.
    pub temporary: bool,
}

impl Credentials {
    /// Returns what is used for a remote with `anonymous = true`.
    pub const fn anonymous() -> Self {
        Self { source: CredentialSource::Anonymous, expires: None, temporary: false }
    }
}

/// What prevents access to a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The remote's settings are invalid.
    Settings,
    /// There are no credentials, or they are wrong or expired.
    Credentials,
    /// The credentials are valid but lack permission.
    Rights,
    /// This machine's clock differs too much from the store's.
    Clock,
    /// The bucket does not exist.
    Bucket,
    /// The bucket is in another region; contains that region, if known.
    Region(Option<String>),
    /// The store does not answer.
    Network,
    /// Another error of the store.
    Other,
}

impl Obstacle {
    /// Returns what an error's kind alone tells.
    pub fn of_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Denied => Self::Credentials,
            ErrorKind::Usage | ErrorKind::NotFound => Self::Bucket,
            ErrorKind::Unreachable => Self::Network,
            _ => Self::Other,
        }
    }
}

/// Whether a bucket keeps deleted or replaced objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versioning {
    /// It never did.
    Off,
    /// It does.
    On,
    /// It no longer does, but keeps the old versions.
    Suspended,
}

/// One enabled lifecycle rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LifecycleRule {
    /// The key prefixes it applies to; all keys if empty.
    pub prefixes: Vec<String>,
    /// Whether it has other conditions than a prefix: tags, sizes, suffixes, storage classes.
    pub narrowed: bool,
    /// Days after which it deletes incomplete multipart uploads.
    pub drops_uploads_after_days: Option<u32>,
    /// Days after which it deletes versions that are no longer current.
    pub drops_old_versions_after_days: Option<u32>,
    /// Days after which it deletes objects.
    pub deletes_after_days: Option<u32>,
    /// Days after which it moves objects to a storage class that cannot be read at once.
    pub archives_after_days: Option<u32>,
}

/// What a bucket reports about itself.
#[derive(Debug)]
pub struct BucketFacts {
    /// Whether it keeps versions.
    pub versioning: Result<Versioning, Error>,
    /// Its enabled rules.
    pub rules: Result<Vec<LifecycleRule>, Error>,
    /// How long it keeps deleted objects in addition (GCS).
    pub soft_delete_seconds: Option<u64>,
}

/// Bytes of parts of an incomplete upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftBytes {
    /// Bytes of the parts that were counted.
    pub bytes: u64,
    /// Whether all parts were counted.
    pub all: bool,
}
