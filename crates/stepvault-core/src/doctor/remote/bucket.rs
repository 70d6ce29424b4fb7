//! The rules of a bucket that decide what deleted steps and abandoned uploads go on to cost, and which ones would
//! delete or archive steps without stepvault.

use super::Subject;
use crate::doctor::Finding;
use crate::error::{Error, ErrorKind};
use crate::remote_settings::Scheme;

const VERSIONING: &str = "versioning";
const ABANDONED: &str = "abandoned uploads";
/// What the rules that are given to paste say.
const DAYS: u32 = 7;

/// Whether a bucket keeps what is deleted or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versioning {
    /// It never did.
    Off,
    /// It does.
    On,
    /// It did, and keeps what it kept.
    Suspended,
}

/// One enabled lifecycle rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LifecycleRule {
    /// Keys that it is for; all of them where there are none.
    pub prefixes: Vec<String>,
    /// It asks for more than a prefix: tags, sizes, suffixes, storage classes.
    pub narrowed: bool,
    /// Days after which it drops uploads in parts that nobody completed.
    pub drops_uploads_after_days: Option<u32>,
    /// Days after which it drops versions that are no longer current.
    pub drops_old_versions_after_days: Option<u32>,
    /// Days after which it deletes objects.
    pub deletes_after_days: Option<u32>,
    /// Days after which it moves objects to where they cannot be read at once.
    pub archives_after_days: Option<u32>,
}

impl LifecycleRule {
    /// Whether it is for every key below `prefix`.
    fn covers(&self, prefix: &str) -> bool {
        !self.narrowed
            && (self.prefixes.is_empty() || self.prefixes.iter().any(|one| prefix.starts_with(one.as_str())))
    }

    /// Whether it may be for some key below `prefix`.
    fn touches(&self, prefix: &str) -> bool {
        self.prefixes.is_empty()
            || self
                .prefixes
                .iter()
                .any(|one| prefix.starts_with(one.as_str()) || one.starts_with(prefix))
    }
}

/// What a bucket told of itself.
#[derive(Debug)]
pub struct BucketFacts {
    /// Whether it keeps versions.
    pub versioning: Result<Versioning, Error>,
    /// Its enabled rules.
    pub rules: Result<Vec<LifecycleRule>, Error>,
    /// How long it keeps deleted objects besides (GCS).
    pub soft_delete_seconds: Option<u64>,
}

/// What the bucket's rules mean. `facts` are none for a store that has none, or does not tell them by the same interface.
pub fn bucket(subject: &Subject, facts: Option<&BucketFacts>) -> Vec<Finding> {
    let Some(facts) = facts else {
        return without_rules(subject);
    };
    let prefix = match subject.prefix.as_str() {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    };
    let empty = Vec::new();
    let rules = facts.rules.as_ref().unwrap_or(&empty);
    let soonest = |applies: fn(&LifecycleRule, &str) -> bool, days: fn(&LifecycleRule) -> Option<u32>| {
        let applying = rules.iter().filter(|rule| applies(rule, &prefix));
        applying.filter_map(days).min()
    };
    let covering = |days| soonest(LifecycleRule::covers, days);
    let touching = |days| soonest(LifecycleRule::touches, days);
    let mut findings = vec![versioning(
        subject,
        &facts.versioning,
        covering(|rule| rule.drops_old_versions_after_days),
    )];
    findings.push(match &facts.rules {
        Err(error) => unread(subject, ABANDONED, error),
        Ok(_) => abandoned(subject, covering(|rule| rule.drops_uploads_after_days), &prefix),
    });
    findings.extend(touching(|rule| rule.deletes_after_days).map(|days| deletes(subject, days)));
    findings.extend(touching(|rule| rule.archives_after_days).map(|days| archives(subject, days)));
    findings.extend(
        facts
            .soft_delete_seconds
            .filter(|seconds| *seconds > 0)
            .map(|seconds| soft_delete(subject, seconds)),
    );
    findings
}

fn without_rules(subject: &Subject) -> Vec<Finding> {
    let (kept, dropped) = match subject.scheme {
        Scheme::Azure => (
            "not looked at: it is set on the storage account, where versions and soft delete keep deleted steps, \
             and bill them",
            "Azure drops the blocks of an upload that nobody completed after a week",
        ),
        _ => (
            "a directory keeps no versions: what is deleted is gone",
            "`stepvault gc` removes them",
        ),
    };
    vec![
        Finding::pass(VERSIONING, &subject.name, kept),
        Finding::pass(ABANDONED, &subject.name, dropped),
    ]
}

fn versioning(subject: &Subject, told: &Result<Versioning, Error>, dropped_after: Option<u32>) -> Finding {
    let on = match told {
        Err(error) => return unread(subject, VERSIONING, error),
        Ok(Versioning::Off) => {
            let measured = "off: what is deleted is gone, and costs nothing any more";
            return Finding::pass(VERSIONING, &subject.name, measured);
        }
        Ok(Versioning::On) => "on",
        Ok(Versioning::Suspended) => "suspended, and old versions stay",
    };
    if let Some(days) = dropped_after {
        let measured = format!(
            "{on}; a rule drops old versions after {days} days, so a step costs storage for {days} days after \
             retention has deleted it"
        );
        return Finding::pass(VERSIONING, &subject.name, measured);
    }
    let measured = format!(
        "{on}, and no rule drops old versions: what retention deletes stays, and is billed, for ever"
    );
    Finding::warn(
        VERSIONING,
        &subject.name,
        measured,
        paste(subject, &old_versions_rule(subject)),
    )
}

fn abandoned(subject: &Subject, dropped_after: Option<u32>, prefix: &str) -> Finding {
    if let Some(days) = dropped_after {
        let measured = format!("a rule drops uploads that nobody completed after {days} days");
        return Finding::pass(ABANDONED, &subject.name, measured);
    }
    let place = if prefix.is_empty() { "this bucket" } else { prefix };
    let measured = format!(
        "no rule for {place} drops uploads that nobody completed: the parts of a node that is lost are stored and \
         billed until `stepvault gc` runs"
    );
    Finding::warn(
        ABANDONED,
        &subject.name,
        measured,
        paste(subject, &uploads_rule(subject)),
    )
}

fn deletes(subject: &Subject, days: u32) -> Finding {
    Finding::warn(
        "lifecycle",
        &subject.name,
        format!(
            "a rule of the bucket deletes objects after {days} days: also of the newest step, of pinned ones and of \
             those that retention keeps"
        ),
        format!(
            "take {} out of that rule, and let stepvault's retention delete: [keep.remote] within = \"{days}d\"",
            place(subject)
        ),
    )
}

fn archives(subject: &Subject, days: u32) -> Finding {
    Finding::warn(
        "lifecycle",
        &subject.name,
        format!("a rule of the bucket archives objects after {days} days: a restore of such a step fails"),
        format!(
            "take {} out of that rule; GLACIER_IR and STANDARD_IA can be read at once",
            place(subject)
        ),
    )
}

fn soft_delete(subject: &Subject, seconds: u64) -> Finding {
    let days = seconds.div_ceil(86_400);
    Finding::warn(
        "soft delete",
        &subject.name,
        format!(
            "the bucket keeps deleted objects for {days} days more, and bills them: also steps that retention deletes"
        ),
        format!(
            "if that is not wanted: gcloud storage buckets update gs://{} --clear-soft-delete",
            subject.bucket
        ),
    )
}

fn unread(subject: &Subject, check: &str, error: &Error) -> Finding {
    let advice = match (error.kind(), subject.scheme, check) {
        (ErrorKind::Denied, Scheme::Gcs, _) => {
            "look yourself, or grant storage.buckets.get (roles/storage.legacyBucketReader)"
        }
        (ErrorKind::Denied, _, VERSIONING) => "look yourself, or allow s3:GetBucketVersioning",
        (ErrorKind::Denied, ..) => "look yourself, or allow s3:GetLifecycleConfiguration",
        _ => "look yourself: it decides what deleted steps and lost uploads go on to cost",
    };
    Finding::warn(
        check,
        &subject.name,
        format!("it could not be read: {error}"),
        advice,
    )
}

fn place(subject: &Subject) -> String {
    match subject.prefix.as_str() {
        "" => "this bucket".to_owned(),
        prefix => format!("{prefix}/"),
    }
}

/// How a rule gets to where it works. Both providers replace all rules by those that are given.
fn paste(subject: &Subject, rule: &str) -> String {
    let command = match subject.scheme {
        Scheme::Gcs => format!(
            "gcloud storage buckets update gs://{} --lifecycle-file=FILE",
            subject.bucket
        ),
        _ => format!(
            "aws s3api put-bucket-lifecycle-configuration --bucket {}",
            subject.bucket
        ),
    };
    format!("add to the bucket's lifecycle rules (`{command}` replaces all that are there): {rule}")
}

fn uploads_rule(subject: &Subject) -> String {
    match subject.scheme {
        Scheme::Gcs => gcs_rule(subject, "AbortIncompleteMultipartUpload", "age"),
        _ => s3_rule(
            subject,
            "stepvault-abandoned-uploads",
            &format!("\"AbortIncompleteMultipartUpload\":{{\"DaysAfterInitiation\":{DAYS}}}"),
        ),
    }
}

fn old_versions_rule(subject: &Subject) -> String {
    match subject.scheme {
        Scheme::Gcs => gcs_rule(subject, "Delete", "daysSinceNoncurrentTime"),
        _ => s3_rule(
            subject,
            "stepvault-old-versions",
            &format!("\"NoncurrentVersionExpiration\":{{\"NoncurrentDays\":{DAYS}}}"),
        ),
    }
}

fn s3_rule(subject: &Subject, id: &str, action: &str) -> String {
    let prefix = json_prefix(subject);
    format!("{{\"ID\":\"{id}\",\"Status\":\"Enabled\",\"Filter\":{{\"Prefix\":{prefix}}},{action}}}")
}

fn gcs_rule(subject: &Subject, action: &str, days: &str) -> String {
    let only = match subject.prefix.as_str() {
        "" => String::new(),
        _ => format!(",\"matchesPrefix\":[{}]", json_prefix(subject)),
    };
    format!("{{\"action\":{{\"type\":\"{action}\"}},\"condition\":{{\"{days}\":{DAYS}{only}}}}}")
}

/// The prefix as a JSON string, with its slash.
fn json_prefix(subject: &Subject) -> String {
    let prefix = match subject.prefix.as_str() {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    };
    serde_json::Value::from(prefix).to_string()
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
