//! Checks the rules of a bucket that decide whether deleted steps and abandoned uploads are still billed, and rules
//! that would delete or archive steps behind stepvault's back.

use super::check;
use super::provider::{self, RuleTarget, add_rule};
use crate::doctor::Finding;
use stepvault_core::store_facts::{BucketFacts, LifecycleRule, Versioning};
use stepvault_core::{Error, ErrorKind, RemoteSettings};

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
        || rule.prefixes.iter().any(|one| prefix.starts_with(one.as_str()) || one.starts_with(prefix))
}

/// Returns the findings on the bucket's rules. `facts` is `None` for a store that has no rules, or does not report
/// them through the same API.
pub fn bucket(remote: &RemoteSettings, facts: Option<&BucketFacts>) -> Vec<Finding> {
    let Some(facts) = facts else {
        return without_rules(remote);
    };
    let prefix = provider::prefix(remote);
    let empty = Vec::new();
    let rules = facts.rules.as_ref().unwrap_or(&empty);
    let soonest = |applies: fn(&LifecycleRule, &str) -> bool, days: fn(&LifecycleRule) -> Option<u32>| {
        let applying = rules.iter().filter(|rule| applies(rule, &prefix));
        applying.filter_map(days).min()
    };
    let covering = |days| soonest(covers, days);
    let touching = |days| soonest(touches, days);
    let old_versions = covering(|rule| rule.drops_old_versions_after_days);
    let mut findings = vec![versioning(remote, &facts.versioning, old_versions)];
    findings.push(match &facts.rules {
        Err(error) => unread(remote, ABANDONED, error),
        Ok(_) => abandoned(remote, covering(|rule| rule.drops_uploads_after_days)),
    });
    findings.extend(touching(|rule| rule.deletes_after_days).map(|days| deletes(remote, days)));
    findings.extend(touching(|rule| rule.archives_after_days).map(|days| archives(remote, days)));
    let soft_delete_seconds = facts.soft_delete_seconds.filter(|seconds| *seconds > 0);
    findings.extend(soft_delete_seconds.map(|seconds| soft_delete(remote, seconds)));
    findings
}

fn without_rules(remote: &RemoteSettings) -> Vec<Finding> {
    let (kept, dropped) = provider::without_rules(remote.url.scheme);
    vec![check(VERSIONING, remote).pass(kept), check(ABANDONED, remote).pass(dropped)]
}

fn versioning(
    remote: &RemoteSettings,
    told: &Result<Versioning, Error>,
    dropped_after: Option<u32>,
) -> Finding {
    let check = check(VERSIONING, remote);
    let on = match told {
        Err(error) => return unread(remote, VERSIONING, error),
        Ok(Versioning::Off) => return check.pass("off: deleted data is gone and no longer billed"),
        Ok(Versioning::On) => "on",
        Ok(Versioning::Suspended) => "suspended; old versions stay",
    };
    if let Some(days) = dropped_after {
        return check.pass(format!(
            "{on}; a rule deletes old versions after {days} days, so a step is billed for {days} days after \
             retention deletes it"
        ));
    }
    check.warn(
        format!(
            "{on}, and no rule deletes old versions: steps that retention deletes stay and are billed forever"
        ),
        add_rule(remote, RuleTarget::OldVersions),
    )
}

fn abandoned(remote: &RemoteSettings, dropped_after: Option<u32>) -> Finding {
    let check = check(ABANDONED, remote);
    if let Some(days) = dropped_after {
        return check.pass(format!("a rule deletes incomplete uploads after {days} days"));
    }
    check.warn(
        format!(
            "no rule for {} deletes incomplete uploads: the parts that a lost node uploaded are stored and billed \
             until `stepvault gc` runs",
            place(remote)
        ),
        add_rule(remote, RuleTarget::AbandonedUploads),
    )
}

fn deletes(remote: &RemoteSettings, days: u32) -> Finding {
    check("lifecycle", remote).warn(
        format!(
            "a rule of the bucket deletes objects after {days} days, including those of the newest step, of pinned \
             steps and of steps that retention keeps"
        ),
        format!(
            "exclude {} from that rule, and let stepvault's retention delete: [keep.remote] within = \"{days}d\"",
            place(remote)
        ),
    )
}

fn archives(remote: &RemoteSettings, days: u32) -> Finding {
    let place = place(remote);
    check("lifecycle", remote).warn(
        format!("a rule of the bucket archives objects after {days} days: a restore of such a step fails"),
        format!("exclude {place} from that rule; GLACIER_IR and STANDARD_IA can be read at once"),
    )
}

fn soft_delete(remote: &RemoteSettings, seconds: u64) -> Finding {
    let days = seconds.div_ceil(86_400);
    check("soft delete", remote).warn(
        format!(
            "the bucket keeps deleted objects, including steps that retention deletes, for {days} more days and \
             bills them"
        ),
        format!(
            "if you do not want that: gcloud storage buckets update gs://{} --clear-soft-delete",
            remote.url.bucket
        ),
    )
}

fn unread(remote: &RemoteSettings, name: &'static str, error: &Error) -> Finding {
    let advice = if error.kind() == ErrorKind::Denied {
        let right = provider::bucket_right(remote.url.scheme, name == VERSIONING);
        format!("check it yourself, or {right}")
    } else {
        "check it yourself: it decides whether deleted steps and abandoned uploads are still billed"
            .to_owned()
    };
    check(name, remote).warn(format!("cannot read it: {error}"), advice)
}

fn place(remote: &RemoteSettings) -> String {
    Some(provider::prefix(remote))
        .filter(|prefix| !prefix.is_empty())
        .unwrap_or_else(|| "this bucket".to_owned())
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
