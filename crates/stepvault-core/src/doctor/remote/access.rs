//! Who stepvault is to a store, and what keeps it from getting there.

use super::{Subject, remedy};
use crate::doctor::{Finding, words};
use crate::error::{Error, ErrorKind};
use crate::remote_settings::Scheme;
use crate::timestamp::Timestamp;

/// Keys that end within this time, and that nothing renews, will end during most runs.
const SOON_SECONDS: u64 = 24 * 60 * 60;

/// Where credentials came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// Handed over by the program itself.
    Given,
    /// Keys in environment variables.
    Environment,
    /// Keys in a profile of AWS's files, by its name.
    Profile(String),
    /// A command that a profile names.
    Process,
    /// AWS's single sign-on.
    SingleSignOn,
    /// A role that was assumed with other credentials.
    AssumedRole,
    /// A role that was assumed with the token of a pod.
    WebIdentity,
    /// The container's own service: ECS, or EKS's pod identity.
    Container,
    /// The machine's own identity, from its metadata service.
    Machine,
    /// A file that `GOOGLE_APPLICATION_CREDENTIALS` names.
    KeyFile(String),
    /// The file that `gcloud auth application-default login` writes.
    UserFile(String),
    /// An Azure storage account's key.
    AccountKey,
    /// An Azure shared access signature.
    SharedSignature,
    /// A token of Azure's directory: a service principal, a workload or a managed identity.
    DirectoryToken,
    /// The store is on this machine and asks for none.
    NotAsked,
    /// The provider did not say.
    Unnamed,
}

impl CredentialSource {
    fn words(&self) -> String {
        let words = match self {
            Self::Given => "given directly",
            Self::Environment => "from the environment (AWS_ACCESS_KEY_ID)",
            Self::Profile(name) => return format!("from the profile '{name}' of AWS's configuration files"),
            Self::Process => "from the profile's credential_process",
            Self::SingleSignOn => "from AWS single sign-on",
            Self::AssumedRole => "from an assumed role",
            Self::WebIdentity => "from a web identity token (AWS_WEB_IDENTITY_TOKEN_FILE)",
            Self::Container => "from the container's credential service",
            Self::Machine => "from this machine's metadata service",
            Self::KeyFile(path) => return format!("from {path} (GOOGLE_APPLICATION_CREDENTIALS)"),
            Self::UserFile(path) => return format!("from {path} (gcloud auth application-default login)"),
            Self::AccountKey => "the storage account's key",
            Self::SharedSignature => "a shared access signature",
            Self::DirectoryToken => "a token of the Azure directory",
            Self::NotAsked => "none needed: the store is on this machine",
            Self::Unnamed => "from a provider that does not say its name",
        };
        words.to_owned()
    }

    /// Whether new ones are had without anybody doing anything.
    fn renews_itself(&self) -> bool {
        matches!(
            self,
            Self::Process
                | Self::AssumedRole
                | Self::WebIdentity
                | Self::Container
                | Self::Machine
                | Self::KeyFile(_)
                | Self::UserFile(_)
                | Self::DirectoryToken
        )
    }
}

/// The credentials that requests are made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Where they came from.
    pub source: CredentialSource,
    /// When they end, where that is told.
    pub expires: Option<Timestamp>,
    /// They carry a session token, so they do end.
    pub temporary: bool,
}

/// What is to be said of the credentials that were found, at `now`.
pub fn credentials(subject: &Subject, credentials: &Credentials, now: Timestamp) -> Finding {
    const CHECK: &str = "credentials";
    let source = credentials.source.words();
    let renewed = credentials.source.renews_itself();
    let Some(end) = credentials.expires else {
        if !credentials.temporary || renewed {
            let until = if renewed {
                "; renewed without your doing"
            } else {
                ""
            };
            return Finding::pass(CHECK, &subject.name, format!("{source}{until}"));
        }
        let advice = match credentials.source {
            CredentialSource::Environment => {
                "a running process never sees new values of its environment: use a profile, a role or a \
                 credential_process, which are asked again"
            }
            _ => "renew them before they end: they are read again when the store calls them expired",
        };
        let measured = format!("{source}, with a session token that does not say when it ends");
        return Finding::warn(CHECK, &subject.name, measured, advice);
    };
    let until = end.to_rfc3339();
    if end <= now {
        let measured = format!("{source}; they ended at {until}");
        let advice = "renew them (for a profile with single sign-on: `aws sso login`)";
        return Finding::fail(CHECK, &subject.name, measured, advice);
    }
    if renewed {
        let measured = format!("{source}; these end at {until} and are renewed without your doing");
        return Finding::pass(CHECK, &subject.name, measured);
    }
    let left = end.seconds_since(now);
    let measured = format!("{source}; they end at {until}, in {}", words::whole_seconds(left));
    if left >= SOON_SECONDS {
        return Finding::pass(CHECK, &subject.name, measured);
    }
    let advice =
        "nothing renews them: renew them before that, or use a role of the machine, pod or container";
    Finding::warn(CHECK, &subject.name, measured, advice)
}

/// Nobody could be asked for credentials in time, or nobody had any.
pub fn unchecked_credentials(subject: &Subject, error: &Error) -> Finding {
    let advice = remedy(error, "give credentials by the provider's own means");
    Finding::fail("credentials", &subject.name, error.to_string(), advice)
}

/// What stands between stepvault and a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The remote's settings cannot be used.
    Settings,
    /// No credentials, or wrong or expired ones.
    Credentials,
    /// The credentials are known, and may not do this.
    Rights,
    /// This machine's clock is too far from the store's.
    Clock,
    /// There is no such bucket.
    Bucket,
    /// The bucket is in another region: in this one, where that is told.
    Region(Option<String>),
    /// Nobody answers.
    Network,
    /// Something else, in the store's words.
    Other,
}

impl Obstacle {
    /// What an error's kind alone tells.
    pub fn of_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Denied => Self::Credentials,
            ErrorKind::Usage | ErrorKind::NotFound => Self::Bucket,
            ErrorKind::Unreachable => Self::Network,
            _ => Self::Other,
        }
    }

    fn check(&self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Credentials => "credentials",
            Self::Rights => "rights",
            Self::Clock => "clock",
            Self::Region(_) => "region",
            Self::Network => "network",
            Self::Bucket | Self::Other => "bucket",
        }
    }
}

/// The finding on a bucket that could not be listed: `waited_seconds` is how long it was tried.
pub fn obstacle(subject: &Subject, obstacle: &Obstacle, error: &Error, waited_seconds: u64) -> Finding {
    let measured = match obstacle {
        Obstacle::Network => format!("{error} (tried for {waited_seconds} seconds)"),
        _ => error.to_string(),
    };
    let advice = match obstacle {
        Obstacle::Region(Some(region)) => {
            format!("set it: [remote.{}] region = \"{region}\"", subject.name)
        }
        Obstacle::Region(None) => format!(
            "find it with `aws s3api get-bucket-location --bucket {}` and set region under [remote.{}]",
            subject.bucket, subject.name
        ),
        Obstacle::Rights => list_right(subject),
        _ => remedy(error, otherwise(obstacle)),
    };
    Finding::fail(obstacle.check(), &subject.name, measured, advice)
}

fn otherwise(obstacle: &Obstacle) -> &'static str {
    match obstacle {
        Obstacle::Credentials => "give other credentials by the provider's own means",
        Obstacle::Clock => "set this machine's clock, by NTP if possible",
        Obstacle::Bucket => "create the bucket, or correct the remote's url",
        Obstacle::Network => "check the endpoint, the network, firewalls and any proxy between",
        _ => "correct the remote's settings",
    }
}

fn list_right(subject: &Subject) -> String {
    let bucket = &subject.bucket;
    match subject.scheme {
        Scheme::S3 => format!(
            "allow s3:ListBucket on arn:aws:s3:::{bucket} to these credentials; if expected-bucket-owner is set, \
             check it"
        ),
        Scheme::Gcs => format!("grant storage.objects.list on gs://{bucket} (roles/storage.objectUser)"),
        Scheme::Azure => "grant the role Storage Blob Data Contributor on the container".to_owned(),
        Scheme::File | Scheme::Memory => {
            "give the user that runs stepvault the right to read and write there".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::subject;
    use super::*;
    use crate::doctor::Outcome;

    const NOW: Timestamp = Timestamp::from_seconds(1_800_000_000);

    fn found(source: CredentialSource, expires_in: Option<i64>, temporary: bool) -> Finding {
        let facts = Credentials {
            source,
            expires: expires_in.map(|seconds| Timestamp::from_seconds(NOW.seconds + seconds)),
            temporary,
        };
        credentials(&subject("s3://bucket/prefix"), &facts, NOW)
    }

    #[test]
    fn keys_without_an_end_and_keys_that_renew_themselves_are_well() {
        let finding = found(CredentialSource::Environment, None, false);
        assert_eq!(
            (finding.outcome, finding.measured.as_str()),
            (Outcome::Pass, "from the environment (AWS_ACCESS_KEY_ID)")
        );
        let finding = found(CredentialSource::Machine, Some(600), true);
        assert_eq!(finding.outcome, Outcome::Pass);
        assert_eq!(
            finding.measured,
            "from this machine's metadata service; these end at 2027-01-15T08:10:00Z and are renewed without your \
             doing"
        );
    }

    #[test]
    fn keys_that_end_are_named_with_their_end() {
        let sso = CredentialSource::SingleSignOn;
        let soon = found(sso.clone(), Some(3 * 3_600), true);
        assert_eq!(soon.outcome, Outcome::Warn);
        assert!(
            soon.measured.ends_with("they end at 2027-01-15T11:00:00Z, in 3h"),
            "{soon:?}"
        );
        assert_eq!(found(sso.clone(), Some(3 * 86_400), true).outcome, Outcome::Pass);
        let over = found(sso, Some(0), true);
        assert_eq!(over.outcome, Outcome::Fail);
        assert!(
            over.measured.ends_with("they ended at 2027-01-15T08:00:00Z"),
            "{over:?}"
        );
    }

    #[test]
    fn a_session_token_without_an_end_is_a_warning() {
        let environment = found(CredentialSource::Environment, None, true);
        assert_eq!(environment.outcome, Outcome::Warn);
        assert!(environment.remedy.unwrap().contains("never sees new values"));
        let profile = found(CredentialSource::Profile("training".to_owned()), None, true);
        assert_eq!(
            profile.measured,
            "from the profile 'training' of AWS's configuration files, with a session token that does not say when \
             it ends"
        );
        assert!(profile.remedy.unwrap().contains("read again"));
    }

    #[test]
    fn each_obstacle_has_its_own_line_and_remedy() {
        let subject = subject("s3://bucket/prefix");
        let error = |kind| {
            Error::new(kind, "cannot list objects")
                .on("s3://bucket/prefix")
                .because("refused")
        };
        let line = |what: Obstacle, kind| {
            let finding = obstacle(&subject, &what, &error(kind), 5);
            assert_eq!(
                (finding.outcome, finding.subject.as_str()),
                (Outcome::Fail, "main")
            );
            (finding.check, finding.remedy.unwrap())
        };
        let (check, advice) = line(
            Obstacle::Region(Some("eu-central-1".to_owned())),
            ErrorKind::Usage,
        );
        assert_eq!(
            (check.as_str(), advice.as_str()),
            ("region", "set it: [remote.main] region = \"eu-central-1\"")
        );
        let (check, advice) = line(Obstacle::Region(None), ErrorKind::Usage);
        assert!(
            check == "region" && advice.contains("get-bucket-location --bucket bucket"),
            "{advice}"
        );
        let (check, advice) = line(Obstacle::Rights, ErrorKind::Denied);
        assert!(
            check == "rights" && advice.contains("s3:ListBucket on arn:aws:s3:::bucket"),
            "{advice}"
        );
        for (what, wanted) in [
            (Obstacle::Credentials, "credentials"),
            (Obstacle::Bucket, "bucket"),
            (Obstacle::Network, "network"),
            (Obstacle::Clock, "clock"),
            (Obstacle::Settings, "settings"),
            (Obstacle::Other, "bucket"),
        ] {
            let (check, advice) = line(what, ErrorKind::Failed);
            assert_eq!(check, wanted);
            assert!(!advice.is_empty());
        }
    }

    #[test]
    fn an_errors_own_hint_goes_before_the_general_one() {
        let error = Error::new(ErrorKind::Unreachable, "cannot list objects").hint("look at the proxy");
        let finding = obstacle(&subject("gs://bucket"), &Obstacle::Network, &error, 7);
        assert_eq!(finding.measured, "cannot list objects (tried for 7 seconds)");
        assert_eq!(finding.remedy.as_deref(), Some("look at the proxy"));
        assert_eq!(Obstacle::of_kind(ErrorKind::Unreachable), Obstacle::Network);
    }
}
