//! Checks the rules of a bucket that decide whether deleted steps and abandoned uploads are still billed, and rules
//! that would delete or archive steps behind stepvault's back.

use super::Subject;
use super::provider::{self, RuleTarget, add_rule};
use crate::doctor::Finding;
use stepvault_core::error::{Error, ErrorKind};
use stepvault_core::store_facts::{BucketFacts, LifecycleRule, Versioning};

const VERSIONING: &str = "versioning";
const ABANDONED: &str = "abandoned uploads";

/// Returns whether it applies to every key below `prefix`.
fn covers(rule: &LifecycleRule, prefix: &str) -> bool {
    !rule.narrowed
        && (rule.prefixes.is_empty() || rule.prefixes.iter().any(|one| prefix.starts_with(one.as_str())))
}

/// Returns whether it may apply to some key below `prefix`.
fn touches(rule: &LifecycleRule, prefix: &str) -> bool {
    rule.prefixes.is_empty()
        || rule
            .prefixes
            .iter()
            .any(|one| prefix.starts_with(one.as_str()) || one.starts_with(prefix))
}

/// Returns the findings on the bucket's rules. `facts` is `None` for a store that has no rules, or does not report
/// them through the same API.
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
    let covering = |days| soonest(covers, days);
    let touching = |days| soonest(touches, days);
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
    let (kept, dropped) = provider::without_rules(subject.scheme);
    vec![
        Finding::pass(VERSIONING, &subject.name, kept),
        Finding::pass(ABANDONED, &subject.name, dropped),
    ]
}

fn versioning(subject: &Subject, told: &Result<Versioning, Error>, dropped_after: Option<u32>) -> Finding {
    let on = match told {
        Err(error) => return unread(subject, VERSIONING, error),
        Ok(Versioning::Off) => {
            let measured = "off: deleted data is gone and no longer billed";
            return Finding::pass(VERSIONING, &subject.name, measured);
        }
        Ok(Versioning::On) => "on",
        Ok(Versioning::Suspended) => "suspended; old versions stay",
    };
    if let Some(days) = dropped_after {
        let measured = format!(
            "{on}; a rule deletes old versions after {days} days, so a step is billed for {days} days after \
             retention deletes it"
        );
        return Finding::pass(VERSIONING, &subject.name, measured);
    }
    let measured = format!(
        "{on}, and no rule deletes old versions: steps that retention deletes stay and are billed forever"
    );
    Finding::warn(
        VERSIONING,
        &subject.name,
        measured,
        add_rule(subject, RuleTarget::OldVersions),
    )
}

fn abandoned(subject: &Subject, dropped_after: Option<u32>, prefix: &str) -> Finding {
    if let Some(days) = dropped_after {
        let measured = format!("a rule deletes incomplete uploads after {days} days");
        return Finding::pass(ABANDONED, &subject.name, measured);
    }
    let place = if prefix.is_empty() { "this bucket" } else { prefix };
    let measured = format!(
        "no rule for {place} deletes incomplete uploads: the parts that a lost node uploaded are stored and billed \
         until `stepvault gc` runs"
    );
    Finding::warn(
        ABANDONED,
        &subject.name,
        measured,
        add_rule(subject, RuleTarget::AbandonedUploads),
    )
}

fn deletes(subject: &Subject, days: u32) -> Finding {
    Finding::warn(
        "lifecycle",
        &subject.name,
        format!(
            "a rule of the bucket deletes objects after {days} days, including those of the newest step, of pinned \
             steps and of steps that retention keeps"
        ),
        format!(
            "exclude {} from that rule, and let stepvault's retention delete: [keep.remote] within = \"{days}d\"",
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
            "exclude {} from that rule; GLACIER_IR and STANDARD_IA can be read at once",
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
            "the bucket keeps deleted objects, including steps that retention deletes, for {days} more days and \
             bills them"
        ),
        format!(
            "if you do not want that: gcloud storage buckets update gs://{} --clear-soft-delete",
            subject.bucket
        ),
    )
}

fn unread(subject: &Subject, check: &str, error: &Error) -> Finding {
    let advice = if error.kind() == ErrorKind::Denied {
        let right = provider::bucket_right(subject.scheme, check == VERSIONING);
        format!("check it yourself, or {right}")
    } else {
        "check it yourself: it decides whether deleted steps and abandoned uploads are still billed"
            .to_owned()
    };
    Finding::warn(check, &subject.name, format!("cannot read it: {error}"), advice)
}

fn place(subject: &Subject) -> String {
    match subject.prefix.as_str() {
        "" => "this bucket".to_owned(),
        prefix => format!("{prefix}/"),
    }
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
