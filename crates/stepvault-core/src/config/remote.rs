//! The keys of a remote, and what they must not be together.

use super::http_url::{EXAMPLE, check_scheme};
use super::merge::Merged;
use super::run::rules;
use super::section::{Section, defaults};
use crate::ids::RemoteName;
use crate::remote_settings::{ReadBack, RemoteSettings, RemoteUrl, Scheme, Transport};
use crate::retention::{KeepRules, Selection};

impl RemoteSettings {
    /// Returns the defaults for a remote called `name` at `url`.
    pub fn new(name: RemoteName, url: RemoteUrl) -> Self {
        defaults(|table| settings(table, name, url))
    }
}

/// Reads the remote called `name`; returns `None` if its name or its URL is missing or invalid.
pub(super) fn named_remote(merged: &mut Merged, name: &str) -> Option<RemoteSettings> {
    let mut table = Section::new(merged, &["remote", name]);
    let remote_name = table.take("", RemoteName::new(name));
    let Some(text) = table.text("url", None) else {
        if !table.has_fault("url") {
            let hint = "write url = \"s3://bucket/prefix\"";
            table.fault("url", "the remote has no URL", hint);
        }
        return None;
    };
    // A URL that does not parse has already become a fault.
    let (url, _) = RemoteUrl::parse(&text).ok()?;
    let settings = settings(&mut table, remote_name?, url);
    check(&mut table, &settings);
    Some(settings)
}

/// Reads every key but the URL; each of them is also an option of the URL's query.
fn settings(table: &mut Section<'_>, name: RemoteName, url: RemoteUrl) -> RemoteSettings {
    let encryptions = ["AES256", "aws:kms", "aws:kms:dsse"].map(|word| (word, word));
    RemoteSettings {
        name,
        url,
        required: table.boolean("required", true),
        endpoint: table.text("endpoint", None),
        region: table.text("region", None),
        profile: table.text("profile", None),
        path_style: table.optional_boolean("path-style"),
        anonymous: table.boolean("anonymous", false),
        allow_http: table.boolean("allow-http", false),
        ca_file: table.path("ca-file"),
        client_certificate: table.path("client-certificate"),
        client_key: table.path("client-key"),
        send_token: table.boolean("send-token", false),
        transport: table
            .choice("transport", Some("xml"), &[("xml", Transport::Xml), ("json", Transport::Json)])
            .unwrap_or_default(),
        storage_class: table.text("storage-class", None),
        server_side_encryption: table.choice("server-side-encryption", None, &encryptions).map(str::to_owned),
        kms_key: table.text("kms-key", None),
        tags: table.text_map("tags"),
        expected_bucket_owner: table.text("expected-bucket-owner", None),
        attributes_required: table
            .choice("attributes", Some("required"), &[("required", true), ("if-supported", false)])
            .unwrap_or(true),
        requester_pays: table.boolean("requester-pays", false),
        max_concurrent_requests: table.number("max-concurrent-requests", 1, "256"),
        bandwidth_limit: table.bandwidth("bandwidth-limit"),
        stall_timeout_seconds: seconds(table, "stall-timeout", "30s"),
        retry_deadline_seconds: seconds(table, "retry-deadline", "2m"),
        read_back: table
            .choice("read-back", Some("auto"), &[("auto", ReadBack::Auto), ("always", ReadBack::Always)])
            .unwrap_or_default(),
        copy_unchanged: table.boolean("copy-unchanged", true),
        selection: selection(table),
    }
}

/// Reads what a selective remote gets; `None` without `from`, which makes it one.
fn selection(table: &mut Section<'_>) -> Option<Selection> {
    let from = table.text("from", None).map(RemoteName::new);
    let from = from.and_then(|from| table.take("from", from));
    let mut select = table.table("select");
    let rules = rules(&mut select, &KeepRules::default());
    let includes_newest = select.optional_boolean("final").unwrap_or(false);
    let is_given = select.strongest_source().is_some();
    let after_seconds = table.whole_seconds("after", None);
    for (key, is_given) in [("select", is_given), ("after", after_seconds.is_some())] {
        if is_given && !table.is_given("from") {
            let why = "it has no effect without from: every step is uploaded to the remote";
            table.fault(key, why, "write from = \"NAME\", the remote whose steps are copied to this one");
        }
    }
    if is_given && !rules.keeps_something() && !includes_newest {
        table.fault("select", "it selects no step", "set a rule above 0, or remove it to copy every step");
    }
    if includes_newest && after_seconds.unwrap_or(0) == 0 {
        let why = "every step is the newest one once: without a delay all of them are copied";
        table.warn(
            "select.final",
            why,
            "set after to longer than the time between two steps: after = \"24h\"",
        );
    }
    Some(Selection { from: from?, rules, includes_newest, after_seconds: after_seconds.unwrap_or(0) })
}

fn seconds(table: &mut Section<'_>, key: &str, default: &'static str) -> u64 {
    let duration = table.duration(key, default);
    if duration.as_secs() == 0 || duration.subsec_nanos() != 0 {
        let why = "it must be a whole number of seconds, at least one";
        table.fault(key, why, "write \"30s\"");
    }
    duration.as_secs()
}

/// Checks for settings that this kind of store does not support, for ones that need each other, and for an endpoint that
/// would receive data unencrypted.
fn check(table: &mut Section<'_>, remote: &RemoteSettings) {
    let scheme = remote.url.scheme;
    for (key, schemes) in Scheme::SETTINGS_OF_SOME {
        let is_asked_for = match key {
            // Not sending a token is the default of every store.
            "send-token" => remote.send_token,
            "transport" => remote.transport != Transport::default(),
            _ => true,
        };
        if table.is_given(key) && is_asked_for && !schemes.contains(&scheme) {
            let why = format!("it does not apply to a {}:// remote", scheme.as_str());
            let known: Vec<String> = schemes.iter().map(|scheme| format!("{}://", scheme.as_str())).collect();
            table.fault(key, why, format!("remove it; it applies only to {}", known.join(", ")));
        }
    }
    if let Some(endpoint) = &remote.endpoint
        && let Err((why, hint)) = check_endpoint(endpoint, remote.allow_http)
    {
        table.fault("endpoint", why, hint);
    }
    for (given, missing) in [("client-certificate", "client-key"), ("client-key", "client-certificate")] {
        if table.is_given(given) && !table.is_given(missing) {
            let hint = "set both: the certificate and its private key, each a PEM file";
            table.fault(given, format!("it has no effect without {missing}"), hint);
        }
    }
    if scheme == Scheme::Gcs && remote.transport == Transport::Xml {
        for key in ["ca-file", "client-certificate"] {
            if table.is_given(key) {
                let why = "Google's own client, which writes the objects, takes none";
                let hint = "set transport = \"json\", or add the authority to the system's store";
                table.fault(key, why, hint);
            }
        }
    }
    let aws_kms = |kind: &String| kind.starts_with("aws:kms");
    let has_aws_kms = remote.server_side_encryption.as_ref().is_some_and(aws_kms);
    if scheme == Scheme::S3 && remote.kms_key.is_some() && !has_aws_kms {
        let why = "it has no effect without aws:kms encryption";
        table.fault("kms-key", why, "set server-side-encryption = \"aws:kms\"");
    }
}

fn check_endpoint(endpoint: &str, allow_http: bool) -> Result<(), (String, &'static str)> {
    let url = url::Url::parse(endpoint).map_err(|error| (format!("it is not a URL: {error}"), EXAMPLE))?;
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err(("it contains more than scheme, host, port and path".to_owned(), EXAMPLE));
    }
    check_scheme(&url, allow_http)
}
