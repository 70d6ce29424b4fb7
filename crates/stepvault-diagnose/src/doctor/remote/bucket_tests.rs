use super::super::subject;
use super::*;
use crate::doctor::Outcome;

fn facts(versioning: Versioning, rules: Vec<LifecycleRule>) -> BucketFacts {
    BucketFacts { versioning: Ok(versioning), rules: Ok(rules), soft_delete_seconds: None }
}

fn rule(prefixes: &[&str]) -> LifecycleRule {
    LifecycleRule {
        prefixes: prefixes.iter().map(|&prefix| prefix.to_owned()).collect(),
        ..LifecycleRule::default()
    }
}

fn found(url: &str, facts: &BucketFacts, check: &str) -> Finding {
    let findings = bucket(&subject(url), Some(facts));
    let mut of_check = findings.into_iter().filter(|finding| finding.check == check);
    of_check.next().unwrap()
}

/// Parses the rule at the end of a remedy.
fn pasted(finding: &Finding) -> serde_json::Value {
    let remedy = finding.remedy.as_deref().unwrap();
    let (_, rule) = remedy.split_once("): ").unwrap();
    serde_json::from_str(rule).unwrap()
}

#[test]
fn a_bucket_without_a_rule_for_abandoned_uploads_gets_one_to_paste() {
    let none = facts(Versioning::Off, Vec::new());
    let finding = found("s3://bucket/team/vault", &none, "abandoned uploads");
    assert_eq!(finding.outcome, Outcome::Warn);
    assert_eq!(
        pasted(&finding),
        serde_json::json!({
            "ID": "stepvault-abandoned-uploads",
            "Status": "Enabled",
            "Filter": {"Prefix": "team/vault/"},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        })
    );
    assert!(finding.remedy.unwrap().contains("replaces all existing rules"));
    let finding = found("gs://bucket", &none, "abandoned uploads");
    assert_eq!(
        pasted(&finding),
        serde_json::json!({"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}})
    );
}

#[test]
fn only_a_rule_for_the_whole_prefix_counts() {
    let with = |prefixes: &[&str], narrowed| {
        let rule = LifecycleRule { narrowed, drops_uploads_after_days: Some(3), ..rule(prefixes) };
        found("s3://bucket/team/vault", &facts(Versioning::Off, vec![rule]), "abandoned uploads")
    };
    for covering in [&[][..], &[""], &["team/"], &["team/vault/"], &["other/", "tea"]] {
        assert_eq!(with(covering, false).outcome, Outcome::Pass, "{covering:?}");
    }
    for other in [&["other/"][..], &["team/vault/run/"], &["team/vaults"]] {
        assert_eq!(with(other, false).outcome, Outcome::Warn, "{other:?}");
    }
    assert_eq!(with(&[], true).outcome, Outcome::Warn, "one for tagged objects alone");
    assert!(with(&[], false).measured.contains("after 3 days"));
}

#[test]
fn versions_that_nobody_drops_are_billed_for_ever() {
    let off = found("s3://bucket", &facts(Versioning::Off, Vec::new()), "versioning");
    assert_eq!(off.outcome, Outcome::Pass);
    for kept in [Versioning::On, Versioning::Suspended] {
        let finding = found("s3://bucket", &facts(kept, Vec::new()), "versioning");
        assert_eq!(finding.outcome, Outcome::Warn);
        assert!(finding.measured.ends_with("are billed forever"), "{finding:?}");
        assert_eq!(pasted(&finding)["NoncurrentVersionExpiration"]["NoncurrentDays"], 7);
    }
    let dropping = LifecycleRule { drops_old_versions_after_days: Some(30), ..rule(&[]) };
    let finding = found("s3://bucket", &facts(Versioning::On, vec![dropping]), "versioning");
    assert_eq!(finding.outcome, Outcome::Pass);
    assert!(finding.measured.contains("is billed for 30 days after"), "{finding:?}");
    let gcs = found("gs://bucket/vault", &facts(Versioning::On, Vec::new()), "versioning");
    assert_eq!(
        pasted(&gcs),
        serde_json::json!({
            "action": {"type": "Delete"},
            "condition": {"daysSinceNoncurrentTime": 7, "matchesPrefix": ["vault/"]},
        })
    );
}

#[test]
fn rules_that_delete_or_archive_steps_are_warned_of_also_where_they_touch_some() {
    let deleting =
        LifecycleRule { deletes_after_days: Some(14), narrowed: true, ..rule(&["team/vault/run-7/"]) };
    let archiving = LifecycleRule { archives_after_days: Some(60), ..rule(&["other/"]) };
    let findings = bucket(
        &subject("s3://bucket/team/vault"),
        Some(&facts(Versioning::Off, vec![deleting, archiving.clone()])),
    );
    let lifecycle: Vec<_> = findings.iter().filter(|one| one.check == "lifecycle").collect();
    assert_eq!(lifecycle.len(), 1, "{lifecycle:?}");
    assert_eq!(lifecycle[0].outcome, Outcome::Warn);
    assert!(lifecycle[0].measured.contains("deletes objects after 14 days"));
    assert!(lifecycle[0].remedy.as_ref().unwrap().contains("[keep.remote] within = \"14d\""));
    let finding = found("s3://bucket/other/x", &facts(Versioning::Off, vec![archiving]), "lifecycle");
    assert!(finding.measured.contains("archives objects after 60 days"), "{finding:?}");
}

#[test]
fn what_may_not_be_read_is_said_to_be_unread() {
    let denied = || Error::new(ErrorKind::Denied, "cannot read the bucket's rules");
    let facts = BucketFacts { versioning: Err(denied()), rules: Err(denied()), soft_delete_seconds: None };
    let findings = bucket(&subject("s3://bucket"), Some(&facts));
    assert_eq!(findings.len(), 2);
    for finding in &findings {
        assert_eq!(finding.outcome, Outcome::Warn);
        assert_eq!(finding.measured, "cannot read it: cannot read the bucket's rules");
    }
    assert!(findings[0].remedy.as_ref().unwrap().contains("s3:GetBucketVersioning"));
    assert!(findings[1].remedy.as_ref().unwrap().contains("s3:GetLifecycleConfiguration"));
    let gcs = found("gs://bucket", &facts, "abandoned uploads");
    assert!(gcs.remedy.unwrap().contains("storage.buckets.get"));
}

#[test]
fn soft_delete_is_named_with_its_days() {
    let mut facts = facts(Versioning::Off, Vec::new());
    facts.soft_delete_seconds = Some(604_800);
    let finding = found("gs://bucket", &facts, "soft delete");
    assert!(finding.measured.contains("for 7 more days"), "{finding:?}");
    assert!(finding.remedy.unwrap().ends_with("gs://bucket --clear-soft-delete"));
    facts.soft_delete_seconds = Some(0);
    assert_eq!(bucket(&subject("gs://bucket"), Some(&facts)).len(), 2);
}

#[test]
fn stores_without_such_rules_pass() {
    for url in ["az://container", "file:///data"] {
        let findings = bucket(&subject(url), None);
        assert_eq!(findings.len(), 2);
        assert!(findings.iter().all(|finding| finding.outcome == Outcome::Pass), "{findings:?}");
    }
}
