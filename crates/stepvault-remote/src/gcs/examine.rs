//! Metadata of a Google Cloud Storage bucket.

use http::Method;
use serde::Deserialize;
use stepvault_core::store_facts::{BucketFacts, LifecycleRule, Versioning};
use stepvault_core::{Error, ErrorKind, Result};

use super::api::Api;

/// The requested fields, and no others: a bucket's description can be long.
const FIELDS: &str = "versioning,lifecycle,softDeletePolicy";
const WHAT: &str = "cannot read the bucket's rules";

/// Sends one request for versioning, lifecycle rules and soft delete.
pub(super) async fn facts(api: &Api) -> BucketFacts {
    match described(api).await {
        Ok(bucket) => bucket.facts(),
        Err(error) => {
            BucketFacts { versioning: Err(error.clone()), rules: Err(error), soft_delete_seconds: None }
        }
    }
}

async fn described(api: &Api) -> Result<Bucket> {
    let call = api.json(WHAT, Method::GET, None)?.query([("fields", FIELDS)]);
    let answer = api.send(call).await?;
    serde_json::from_str(&answer.document)
        .map_err(|error| Error::new(ErrorKind::Failed, WHAT).on(&api.url).caused_by(error))
}

/// The fields of the JSON API's bucket that are used here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Bucket {
    versioning: Switch,
    lifecycle: Lifecycle,
    soft_delete_policy: SoftDelete,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Switch {
    enabled: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lifecycle {
    rule: Vec<Rule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SoftDelete {
    /// This API writes 64-bit numbers as text.
    retention_duration_seconds: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rule {
    action: Action,
    condition: Condition,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Action {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    age: Option<u32>,
    is_live: Option<bool>,
    days_since_noncurrent_time: Option<u32>,
    num_newer_versions: Option<u32>,
    matches_prefix: Vec<String>,
    matches_suffix: Vec<String>,
    matches_storage_class: Vec<String>,
}

impl Bucket {
    fn facts(self) -> BucketFacts {
        BucketFacts {
            versioning: Ok(if self.versioning.enabled { Versioning::On } else { Versioning::Off }),
            rules: Ok(self.lifecycle.rule.into_iter().map(Rule::meaning).collect()),
            soft_delete_seconds: self.soft_delete_policy.retention_duration_seconds.parse().ok(),
        }
    }
}

impl Rule {
    fn meaning(self) -> LifecycleRule {
        let condition = self.condition;
        let of_old_versions = condition.is_live == Some(false)
            || condition.days_since_noncurrent_time.is_some()
            || condition.num_newer_versions.is_some();
        let days = condition.days_since_noncurrent_time.or(condition.age).unwrap_or(0);
        let when = |wanted: bool| wanted.then_some(days);
        let deletes = self.action.kind == "Delete";
        LifecycleRule {
            narrowed: !condition.matches_suffix.is_empty() || !condition.matches_storage_class.is_empty(),
            prefixes: condition.matches_prefix,
            drops_uploads_after_days: when(self.action.kind == "AbortIncompleteMultipartUpload"),
            drops_old_versions_after_days: when(deletes && of_old_versions),
            deletes_after_days: when(deletes && !of_old_versions),
            // Objects of every class of Google's can be read at once.
            archives_after_days: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(document: &str) -> BucketFacts {
        serde_json::from_str::<Bucket>(document).unwrap().facts()
    }

    #[test]
    fn a_bucket_that_says_nothing_has_no_rules() {
        let facts = facts("{}");
        assert_eq!(facts.versioning.unwrap(), Versioning::Off);
        assert_eq!(facts.rules.unwrap(), Vec::new());
        assert_eq!(facts.soft_delete_seconds, None);
    }

    #[test]
    fn rules_are_told_apart_by_action_and_condition() {
        let facts = facts(
            r#"{"kind": "storage#bucket", "versioning": {"enabled": true},
                "softDeletePolicy": {"retentionDurationSeconds": "604800", "effectiveTime": "x"},
                "lifecycle": {"rule": [
                    {"action": {"type": "AbortIncompleteMultipartUpload"},
                     "condition": {"age": 7, "matchesPrefix": ["vault/"]}},
                    {"action": {"type": "Delete"}, "condition": {"age": 30, "isLive": false}},
                    {"action": {"type": "Delete"}, "condition": {"age": 90, "matchesSuffix": [".tmp"]}},
                    {"action": {"type": "SetStorageClass", "storageClass": "COLDLINE"}, "condition": {"age": 1}}
                ]}}"#,
        );
        assert_eq!(facts.versioning.unwrap(), Versioning::On);
        assert_eq!(facts.soft_delete_seconds, Some(604_800));
        let rules = facts.rules.unwrap();
        assert_eq!(rules[0].drops_uploads_after_days, Some(7));
        assert_eq!(rules[0].prefixes, ["vault/"]);
        assert_eq!((rules[1].drops_old_versions_after_days, rules[1].deletes_after_days), (Some(30), None));
        assert_eq!((rules[2].deletes_after_days, rules[2].narrowed), (Some(90), true));
        assert_eq!(rules[3], LifecycleRule::default());
    }
}
