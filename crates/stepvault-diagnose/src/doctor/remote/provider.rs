//! What differs between the kinds of store: the rights to grant, the rules to set, the meaning of the clock.

use super::guarantee::Guarantee;
use stepvault_core::remote_settings::{RemoteSettings, Scheme};

/// Number of days in the suggested rules.
const DAYS: u32 = 7;
const AZURE_ROLE: &str = "grant the role Storage Blob Data Contributor on the container";
const LOCAL_RIGHT: &str = "allow the user that runs stepvault to read and write there";

/// Returns the permission that a guarantee requires.
pub(super) fn right(scheme: Scheme, guarantee: Guarantee) -> &'static str {
    match (scheme, guarantee) {
        (Scheme::S3, Guarantee::Get) => "allow s3:GetObject",
        (Scheme::S3, Guarantee::List | Guarantee::KeepNames) => "allow s3:ListBucket",
        (Scheme::S3, Guarantee::Delete | Guarantee::DeleteTogether) => {
            "allow s3:DeleteObject to the identity that runs prune and gc; uploads do not need it"
        }
        (Scheme::S3, Guarantee::Abort | Guarantee::ListUploads) => {
            "allow s3:AbortMultipartUpload and s3:ListBucketMultipartUploads"
        }
        (Scheme::S3, _) => "allow s3:PutObject (and kms:GenerateDataKey and kms:Decrypt for a kms-key)",
        (Scheme::Gcs, Guarantee::Get) => "grant storage.objects.get",
        (Scheme::Gcs, Guarantee::List | Guarantee::KeepNames) => "grant storage.objects.list",
        (Scheme::Gcs, Guarantee::Delete | Guarantee::DeleteTogether) => {
            "grant storage.objects.delete to the identity that runs prune and gc; uploads do not need it"
        }
        (Scheme::Gcs, Guarantee::Abort | Guarantee::ListUploads) => {
            "grant storage.multipartUploads.abort and storage.multipartUploads.list"
        }
        (Scheme::Gcs, Guarantee::Multipart) => {
            "grant storage.multipartUploads.create and storage.objects.create"
        }
        (Scheme::Gcs, _) => "grant storage.objects.create",
        (Scheme::Azure, _) => AZURE_ROLE,
        (Scheme::File | Scheme::Memory, _) => LOCAL_RIGHT,
    }
}

/// Returns the permission to list, which every access needs first.
pub(super) fn list_right(remote: &RemoteSettings) -> String {
    let bucket = &remote.url.bucket;
    match remote.url.scheme {
        Scheme::S3 => format!(
            "allow s3:ListBucket on arn:aws:s3:::{bucket} to these credentials; if expected-bucket-owner is set, \
             check it"
        ),
        Scheme::Gcs => format!("grant storage.objects.list on gs://{bucket} (roles/storage.objectUser)"),
        Scheme::Azure => AZURE_ROLE.to_owned(),
        Scheme::File | Scheme::Memory => LOCAL_RIGHT.to_owned(),
    }
}

/// Returns the permission to list pending uploads.
pub(super) fn uploads_right(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => "allow s3:ListBucketMultipartUploads on the bucket",
        Scheme::Gcs => "grant storage.multipartUploads.list (roles/storage.objectUser)",
        Scheme::Azure => AZURE_ROLE,
        Scheme::File | Scheme::Memory => LOCAL_RIGHT,
    }
}

/// Returns the permission to read the bucket's versioning, else its lifecycle rules.
pub(super) fn bucket_right(scheme: Scheme, versioning: bool) -> &'static str {
    match (scheme, versioning) {
        (Scheme::S3, true) => "allow s3:GetBucketVersioning",
        (Scheme::S3, false) => "allow s3:GetLifecycleConfiguration",
        (Scheme::Gcs, _) => "grant storage.buckets.get (roles/storage.legacyBucketReader)",
        (Scheme::Azure, _) => AZURE_ROLE,
        (Scheme::File | Scheme::Memory, _) => LOCAL_RIGHT,
    }
}

/// Returns what a store without rules, or whose rules cannot be read here, does with deleted data, and with incomplete
/// uploads.
pub(super) fn without_rules(scheme: Scheme) -> (&'static str, &'static str) {
    match scheme {
        Scheme::Azure => (
            "not checked: the storage account sets it; versions and soft delete there keep deleted steps, and bill \
             them",
            "Azure deletes the blocks of an incomplete upload after a week",
        ),
        Scheme::S3 | Scheme::Gcs => (
            "not checked: the store does not report its rules",
            "not checked: the store does not report its rules",
        ),
        Scheme::File | Scheme::Memory => {
            ("a directory keeps no versions: deleted data is gone", "`stepvault gc` removes them")
        }
    }
}

/// Returns what a wrong clock means for requests to a store: for one that refuses signatures with a wrong time, what
/// stepvault does then; and what a smaller difference means.
pub(super) fn clock(scheme: Scheme) -> (Option<&'static str>, &'static str) {
    const REFUSES: &str = "the store refuses requests when they differ by 15 minutes or more, and the times in records are wrong";
    match scheme {
        // Stepvault learns the store's time from the first rejected request. Credentials, other programs and the times
        // that distinguish steps still use this machine's clock.
        Scheme::S3 => {
            (Some("; stepvault signs again by the store's clock, but other programs may not"), REFUSES)
        }
        Scheme::Azure => (Some(""), REFUSES),
        Scheme::Gcs => (None, "tokens may be refused, and the times in records are wrong"),
        Scheme::File | Scheme::Memory => (None, "the times in records are wrong"),
    }
}

/// What a rule of a bucket deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleTarget {
    AbandonedUploads,
    OldVersions,
}

/// Returns instructions to add a rule. S3 and Google Cloud Storage replace all existing rules by the given ones.
pub(super) fn add_rule(remote: &RemoteSettings, target: RuleTarget) -> String {
    let bucket = &remote.url.bucket;
    let (command, rule) = match remote.url.scheme {
        Scheme::S3 => (
            format!("aws s3api put-bucket-lifecycle-configuration --bucket {bucket}"),
            s3_rule(remote, target),
        ),
        Scheme::Gcs => (
            format!("gcloud storage buckets update gs://{bucket} --lifecycle-file=FILE"),
            gcs_rule(remote, target),
        ),
        Scheme::Azure | Scheme::File | Scheme::Memory => {
            return "set such a rule with the provider's own tools".to_owned();
        }
    };
    format!("add this to the bucket's lifecycle rules (`{command}` replaces all existing rules): {rule}")
}

fn s3_rule(remote: &RemoteSettings, target: RuleTarget) -> String {
    let (id, action, days) = match target {
        RuleTarget::AbandonedUploads => {
            ("stepvault-abandoned-uploads", "AbortIncompleteMultipartUpload", "DaysAfterInitiation")
        }
        RuleTarget::OldVersions => {
            ("stepvault-old-versions", "NoncurrentVersionExpiration", "NoncurrentDays")
        }
    };
    format!(
        "{{\"ID\":\"{id}\",\"Status\":\"Enabled\",\"Filter\":{{\"Prefix\":{}}},\"{action}\":{{\"{days}\":{DAYS}}}}}",
        json_prefix(remote)
    )
}

fn gcs_rule(remote: &RemoteSettings, target: RuleTarget) -> String {
    let (action, days) = match target {
        RuleTarget::AbandonedUploads => ("AbortIncompleteMultipartUpload", "age"),
        RuleTarget::OldVersions => ("Delete", "daysSinceNoncurrentTime"),
    };
    let only = match remote.url.prefix.as_str() {
        "" => String::new(),
        _ => format!(",\"matchesPrefix\":[{}]", json_prefix(remote)),
    };
    format!("{{\"action\":{{\"type\":\"{action}\"}},\"condition\":{{\"{days}\":{DAYS}{only}}}}}")
}

/// Returns the prefix of everything on the remote with its slash; empty without one.
pub(super) fn prefix(remote: &RemoteSettings) -> String {
    match remote.url.prefix.as_str() {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    }
}

fn json_prefix(remote: &RemoteSettings) -> String {
    serde_json::Value::from(prefix(remote)).to_string()
}
