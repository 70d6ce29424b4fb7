//! Checks the credentials for a store, what prevents access to it, and its clock.

use std::time::Duration;

use stepvault_core::store_facts::{CredentialSource, Credentials, Obstacle};
use stepvault_core::words;
use stepvault_core::{Error, RemoteSettings, Timestamp};

use super::provider::{self, list_right};
use super::{check, remedy};
use crate::doctor::Finding;

/// Credentials that expire within this time, and that nothing renews, will expire during most runs.
const SOON_SECONDS: u64 = 24 * 60 * 60;

fn source_text(source: &CredentialSource) -> String {
    let words = match source {
        CredentialSource::Given => "given directly",
        CredentialSource::Environment => "from the environment (AWS_ACCESS_KEY_ID)",
        CredentialSource::Profile(name) => {
            return format!("from the profile '{name}' of AWS's configuration files");
        }
        CredentialSource::Process => "from the profile's credential_process",
        CredentialSource::SingleSignOn => "from AWS single sign-on",
        CredentialSource::AssumedRole => "from an assumed role",
        CredentialSource::WebIdentity => "from a web identity token (AWS_WEB_IDENTITY_TOKEN_FILE)",
        CredentialSource::Container => "from the container's credential service",
        CredentialSource::Machine => "from this machine's metadata service",
        CredentialSource::KeyFile(path) => return format!("from {path} (GOOGLE_APPLICATION_CREDENTIALS)"),
        CredentialSource::UserFile(path) => {
            return format!("from {path} (gcloud auth application-default login)");
        }
        CredentialSource::AccountKey => "the storage account's key",
        CredentialSource::SharedSignature => "a shared access signature",
        CredentialSource::DirectoryToken => "a token of the Azure directory",
        CredentialSource::NotAsked => "none needed: the store is on this machine",
        CredentialSource::Anonymous => "none: anonymous = true",
        CredentialSource::Unnamed => "from a provider that gives no name",
    };
    words.to_owned()
}

/// Returns whether they are renewed automatically.
fn renews_itself(source: &CredentialSource) -> bool {
    use CredentialSource as Source;
    matches!(
        source,
        Source::Process
            | Source::AssumedRole
            | Source::WebIdentity
            | Source::Container
            | Source::Machine
            | Source::KeyFile(_)
            | Source::UserFile(_)
            | Source::DirectoryToken
    )
}

/// Returns the finding on the credentials at `now`.
pub fn credentials(remote: &RemoteSettings, credentials: &Credentials, now: Timestamp) -> Finding {
    let check = check("credentials", remote);
    let source = source_text(&credentials.source);
    let renewed = renews_itself(&credentials.source);
    let Some(end) = credentials.expires else {
        if !credentials.temporary || renewed {
            let until = if renewed { "; renewed automatically" } else { "" };
            return check.pass(format!("{source}{until}"));
        }
        let advice = match credentials.source {
            CredentialSource::Environment => {
                "use a profile, a role or a credential_process, which stepvault reads again: a running process never \
                 sees new values in its environment"
            }
            _ => {
                "renew them before they expire: stepvault reads them again when the store reports them as expired"
            }
        };
        return check.warn(format!("{source}, with a session token of unknown expiry"), advice);
    };
    let until = end.to_rfc3339();
    if end <= now {
        let advice = "renew them (for a profile with single sign-on: `aws sso login`)";
        return check.fail(format!("{source}; expired at {until}"), advice);
    }
    if renewed {
        return check.pass(format!("{source}; expire at {until} and are renewed automatically"));
    }
    let left = end.seconds_since(now);
    let in_time = words::duration(Duration::from_secs(left));
    let measured = format!("{source}; expire at {until}, in {in_time}");
    let advice = "renew them before they expire, or use a role of the machine, pod or container; nothing renews them \
         automatically";
    check.pass_or_warn(left >= SOON_SECONDS, measured, advice)
}

/// Returns the finding for credentials that could not be obtained in time, or do not exist.
pub fn unchecked_credentials(remote: &RemoteSettings, error: &Error) -> Finding {
    let advice = remedy(error, "provide credentials through the provider's own mechanism");
    check("credentials", remote).fail(error.to_string(), advice)
}

/// Returns the finding on a bucket that could not be listed; `waited_seconds` is how long it was tried.
pub fn obstacle(remote: &RemoteSettings, obstacle: &Obstacle, error: &Error, waited_seconds: u64) -> Finding {
    const SETTINGS: &str = "correct the remote's settings";
    let (name, advice) = match obstacle {
        Obstacle::Settings => ("settings", remedy(error, SETTINGS)),
        Obstacle::Other => ("bucket", remedy(error, SETTINGS)),
        Obstacle::Credentials => {
            let otherwise = "provide other credentials through the provider's own mechanism";
            ("credentials", remedy(error, otherwise))
        }
        Obstacle::Rights => ("rights", list_right(remote)),
        Obstacle::Clock => ("clock", remedy(error, SET_CLOCK)),
        Obstacle::Bucket => ("bucket", remedy(error, "create the bucket, or correct the remote's url")),
        Obstacle::Region(Some(region)) => {
            ("region", format!("set it: [remote.{}] region = \"{region}\"", remote.name))
        }
        Obstacle::Region(None) => {
            let advice = format!(
                "find it with `aws s3api get-bucket-location --bucket {}` and set region under [remote.{}]",
                remote.url.bucket, remote.name
            );
            ("region", advice)
        }
        Obstacle::Network => {
            let otherwise = "check the endpoint, the network, firewalls and proxies";
            let measured = format!("{error} (tried for {waited_seconds} seconds)");
            return check("network", remote).fail(measured, remedy(error, otherwise));
        }
    };
    check(name, remote).fail(error.to_string(), advice)
}

/// A difference from which a finding is reported.
const WORTH_SAYING_SECONDS: u64 = 60;
/// A difference from which stores reject signatures that contain the time.
const REFUSED_SECONDS: u64 = 15 * 60;

const SET_CLOCK: &str = "set this machine's clock, by NTP if possible";

/// Returns the finding on a difference between the clocks for this kind of store.
pub fn clock(remote: &RemoteSettings, gap_seconds: i64) -> Finding {
    let check = check("clock", remote).with("ahead_seconds", gap_seconds);
    let seconds = gap_seconds.unsigned_abs();
    let gap = words::duration(Duration::from_secs(seconds));
    let measured = match gap_seconds {
        0 => "the store's clock and this machine's agree to the second".to_owned(),
        1.. => format!("the store's clock is {gap} ahead of this machine's"),
        _ => format!("the store's clock is {gap} behind this machine's"),
    };
    if seconds <= WORTH_SAYING_SECONDS {
        return check.pass(measured);
    }
    let (refused, meaning) = provider::clock(remote.url.scheme);
    if let Some(healed) = refused.filter(|_| seconds > REFUSED_SECONDS) {
        let measured =
            format!("{measured}: the store refuses requests when they differ by 15 minutes or more{healed}");
        return check.fail(measured, SET_CLOCK);
    }
    check.warn(format!("{measured}: {meaning}"), SET_CLOCK)
}

#[cfg(test)]
mod tests {
    use stepvault_core::error::ErrorKind;

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
            "from this machine's metadata service; expire at 2027-01-15T08:10:00Z and are renewed automatically"
        );
    }

    #[test]
    fn keys_that_end_are_named_with_their_end() {
        let sso = CredentialSource::SingleSignOn;
        let soon = found(sso.clone(), Some(3 * 3_600), true);
        assert_eq!(soon.outcome, Outcome::Warn);
        assert!(soon.measured.ends_with("expire at 2027-01-15T11:00:00Z, in 3h"), "{soon:?}");
        assert_eq!(found(sso.clone(), Some(3 * 86_400), true).outcome, Outcome::Pass);
        let over = found(sso, Some(0), true);
        assert_eq!(over.outcome, Outcome::Fail);
        assert!(over.measured.ends_with("expired at 2027-01-15T08:00:00Z"), "{over:?}");
    }

    #[test]
    fn a_session_token_without_an_end_is_a_warning() {
        let environment = found(CredentialSource::Environment, None, true);
        assert_eq!(environment.outcome, Outcome::Warn);
        assert!(environment.remedy.unwrap().contains("never sees new values"));
        let profile = found(CredentialSource::Profile("training".to_owned()), None, true);
        assert_eq!(
            profile.measured,
            "from the profile 'training' of AWS's configuration files, with a session token of unknown expiry"
        );
        assert!(profile.remedy.unwrap().contains("reads them again"));
    }

    #[test]
    fn each_obstacle_has_its_own_line_and_remedy() {
        let subject = subject("s3://bucket/prefix");
        let error =
            |kind| Error::new(kind, "cannot list objects").on("s3://bucket/prefix").because("refused");
        let line = |what: Obstacle, kind| {
            let finding = obstacle(&subject, &what, &error(kind), 5);
            assert_eq!((finding.outcome, finding.subject.as_str()), (Outcome::Fail, "main"));
            (finding.check, finding.remedy.unwrap())
        };
        let (check, advice) = line(Obstacle::Region(Some("eu-central-1".to_owned())), ErrorKind::Usage);
        assert_eq!((check, advice.as_str()), ("region", "set it: [remote.main] region = \"eu-central-1\""));
        let (check, advice) = line(Obstacle::Region(None), ErrorKind::Usage);
        assert!(check == "region" && advice.contains("get-bucket-location --bucket bucket"), "{advice}");
        let (check, advice) = line(Obstacle::Rights, ErrorKind::Denied);
        assert!(check == "rights" && advice.contains("s3:ListBucket on arn:aws:s3:::bucket"), "{advice}");
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

    #[test]
    fn a_minute_is_said_and_a_quarter_of_an_hour_refused_where_the_time_is_signed() {
        let outcome = |url: &str, gap| clock(&subject(url), gap).outcome;
        for (gap, s3, gcs) in [
            (0, Outcome::Pass, Outcome::Pass),
            (60, Outcome::Pass, Outcome::Pass),
            (-61, Outcome::Warn, Outcome::Warn),
            (900, Outcome::Warn, Outcome::Warn),
            (-901, Outcome::Fail, Outcome::Warn),
            (i64::MIN, Outcome::Fail, Outcome::Warn),
        ] {
            assert_eq!(outcome("s3://b", gap), s3, "{gap}");
            assert_eq!(outcome("az://b", gap), s3, "{gap}");
            assert_eq!(outcome("gs://b", gap), gcs, "{gap}");
            assert_eq!(outcome("file:///b", gap), gcs, "{gap}");
        }
        let finding = clock(&subject("s3://b"), 3_600);
        assert_eq!(
            finding.measured,
            "the store's clock is 1h ahead of this machine's: the store refuses requests when they differ by 15 \
             minutes or more; stepvault signs again by the store's clock, but other programs may not"
        );
        let azure = clock(&subject("az://b"), -3_600);
        assert_eq!(
            azure.measured,
            "the store's clock is 1h behind this machine's: the store refuses requests when they differ by 15 \
             minutes or more"
        );
        assert_eq!(finding.remedy.as_deref(), Some(SET_CLOCK));
    }
}
