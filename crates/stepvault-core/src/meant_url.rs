//! The remote's URL that another spelling of a bucket means: a scheme of another tool, a web address, an ARN.

use crate::remote_settings::Scheme;

/// Schemes of the stores, in the spelling of other tools.
const SCHEMES: [(&str, Scheme); 6] = [
    ("s3", Scheme::S3),
    ("s3a", Scheme::S3),
    ("s3n", Scheme::S3),
    ("gs", Scheme::Gcs),
    ("gcs", Scheme::Gcs),
    ("az", Scheme::Azure),
];
/// Hosts whose paths begin with the bucket, and which may also have it before their name.
const GOOGLE_HOSTS: [&str; 2] = ["storage.googleapis.com", "storage.cloud.google.com"];
const AZURE_DOMAINS: [&str; 2] = [".blob.core.windows.net", ".dfs.core.windows.net"];

/// Returns what to write in place of `text`, which is no remote's URL; `None` if it names no bucket. Nothing of its query
/// is repeated: that of a signed address is a secret.
pub(crate) fn suggestion(text: &str) -> Option<String> {
    let place = &text[..text.find(['?', '#']).unwrap_or(text.len())];
    let (scheme, rest) = place.split_once("://").unwrap_or(("", place));
    let scheme = scheme.to_ascii_lowercase();
    let arn = if rest.starts_with("arn:") { rest } else { place };
    if arn.starts_with("arn:") {
        return of_arn(arn);
    }
    if let Some((_, known)) = SCHEMES.iter().find(|(name, _)| *name == scheme) {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        return meant(*known, bucket, prefix, "");
    }
    match scheme.as_str() {
        "http" | "https" => of_web_address(rest),
        "abfs" | "abfss" | "wasb" | "wasbs" => {
            let (container, rest) = rest.split_once('@')?;
            let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            AZURE_DOMAINS.iter().any(|domain| host.ends_with(domain)).then_some(())?;
            meant(Scheme::Azure, container, prefix, "")
        }
        _ => None,
    }
}

/// Returns the question, if the parts can be those of a URL.
fn meant(scheme: Scheme, bucket: &str, prefix: &str, options: &str) -> Option<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    let is_plain = |letter: char| !letter.is_control() && !"?#@ ".contains(letter);
    let is_bucket = !bucket.is_empty() && bucket.chars().all(is_name);
    if !is_bucket || !prefix.chars().all(is_plain) {
        return None;
    }
    let slash = if prefix.is_empty() { "" } else { "/" };
    Some(format!("did you mean {}://{bucket}{slash}{prefix}{options}?", scheme.as_str()))
}

/// `arn:aws:s3:::bucket/key`, or that of an access point, which has no bucket's name but an alias that is one.
fn of_arn(arn: &str) -> Option<String> {
    let mut fields = arn.splitn(6, ':');
    let (_, _, service) = (fields.next()?, fields.next()?, fields.next()?);
    let (_, _, resource) = (fields.next()?, fields.next()?, fields.next()?);
    if !service.starts_with("s3") {
        return None;
    }
    if let Some(point) = resource.strip_prefix("accesspoint").filter(|rest| rest.starts_with(['/', ':'])) {
        let mut path = point[1..].splitn(3, '/');
        path.next();
        let object = path.next() == Some("object");
        let prefix = path.next().filter(|_| object).unwrap_or("prefix");
        return Some(format!(
            "did you mean s3://ALIAS/{prefix}? The alias of an access point, which ends with -s3alias, is a bucket's name; \
             'aws s3control get-access-point' prints it"
        ));
    }
    let (bucket, prefix) = resource.split_once('/').unwrap_or((resource, ""));
    meant(Scheme::S3, bucket, prefix.trim_end_matches('*'), "")
}

fn of_web_address(rest: &str) -> Option<String> {
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.to_ascii_lowercase();
    let in_path = || path.split_once('/').unwrap_or((path, ""));
    for google in GOOGLE_HOSTS {
        if host == google {
            let (bucket, prefix) = in_path();
            return meant(Scheme::Gcs, bucket, prefix, "");
        }
        if let Some(bucket) = host.strip_suffix(google).and_then(|bucket| bucket.strip_suffix('.')) {
            return meant(Scheme::Gcs, bucket, path, "");
        }
    }
    if AZURE_DOMAINS.iter().any(|domain| host.ends_with(domain)) {
        let (container, prefix) = in_path();
        return meant(Scheme::Azure, container, prefix, "");
    }
    let aws = host.strip_suffix(".amazonaws.com").or_else(|| host.strip_suffix(".amazonaws.com.cn"))?;
    // `[bucket.]s3[.dualstack][.region]`, or `[bucket.]s3-region`.
    let labels: Vec<&str> = aws.split('.').collect();
    let service = labels.iter().rposition(|label| *label == "s3" || label.starts_with("s3-"))?;
    let (before, after) = labels.split_at(service);
    let joined = |label: &&str| label.strip_prefix("s3-").map(str::to_owned);
    let later = after.iter().skip(1).find(|label| !matches!(**label, "dualstack" | "express"));
    let region = later.map(|label| (*label).to_owned()).or_else(|| after.first().and_then(joined));
    let is_region = |region: &String| region.contains('-') && !region.contains("accesspoint");
    let options = region.filter(is_region).map(|region| format!("?region={region}")).unwrap_or_default();
    if before.is_empty() {
        let (bucket, prefix) = in_path();
        return meant(Scheme::S3, bucket, prefix, &options);
    }
    meant(Scheme::S3, &before.join("."), path, &options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_spellings_of_a_bucket_are_understood() {
        for (written, wanted) in [
            ("S3://bucket/old/run", "s3://bucket/old/run"),
            ("s3a://bucket/run", "s3://bucket/run"),
            ("gcs://bucket/run/", "gs://bucket/run/"),
            ("GS://bucket", "gs://bucket"),
            ("https://bucket.s3.amazonaws.com/a/b?X-Amz-Signature=secret", "s3://bucket/a/b"),
            ("https://bucket.s3.eu-west-1.amazonaws.com/a", "s3://bucket/a?region=eu-west-1"),
            ("https://my.bucket.s3-us-west-2.amazonaws.com", "s3://my.bucket?region=us-west-2"),
            ("https://s3.us-east-1.amazonaws.com/bucket/a/b", "s3://bucket/a/b?region=us-east-1"),
            ("https://bucket.s3.dualstack.us-east-1.amazonaws.com/a", "s3://bucket/a?region=us-east-1"),
            ("https://s3.cn-north-1.amazonaws.com.cn/bucket/a", "s3://bucket/a?region=cn-north-1"),
            ("https://storage.googleapis.com/bucket/a", "gs://bucket/a"),
            ("https://bucket.storage.googleapis.com/a", "gs://bucket/a"),
            ("https://account.blob.core.windows.net/container/a", "az://container/a"),
            ("abfss://container@account.dfs.core.windows.net/a", "az://container/a"),
            ("arn:aws:s3:::bucket/a/*", "s3://bucket/a/"),
            ("s3://arn:aws:s3:::bucket", "s3://bucket"),
        ] {
            assert_eq!(
                suggestion(written).as_deref(),
                Some(&*format!("did you mean {wanted}?")),
                "{written}"
            );
        }
    }

    #[test]
    fn an_access_point_is_named_by_its_alias() {
        for arn in [
            "arn:aws:s3:eu-west-1:123456789012:accesspoint/team/object/old/run",
            "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/team/object/old/run",
        ] {
            let told = suggestion(arn).unwrap();
            assert!(told.starts_with("did you mean s3://ALIAS/old/run? The alias"), "{told}");
        }
        let told = suggestion("arn:aws:s3:eu-west-1:123456789012:accesspoint:team").unwrap();
        assert!(told.starts_with("did you mean s3://ALIAS/prefix?"), "{told}");
    }

    #[test]
    fn what_names_no_bucket_has_no_suggestion() {
        for text in [
            "https://example.com/a",
            "https://s3.amazonaws.com",
            "https://key:secret@bucket.s3.amazonaws.com/a",
            "S3://key:secret@bucket/a",
            "arn:aws:iam::123456789012:role/r",
            "arn:aws",
            "ftp://x/y",
            "bucket/prefix",
            "",
        ] {
            assert_eq!(suggestion(text), None, "{text}");
        }
    }
}
