//! Checks one remote: settings that its kind of store does not support, and endpoints that would receive data
//! unencrypted.

use super::finding::Finding;
use super::key::KeyPath;
use super::merge::{Merged, fault};
use crate::remote_settings::{RemoteSettings, Scheme, Transport};

/// The settings that not every store has.
const SETTINGS_OF_SOME: [&str; 17] = [
    "endpoint",
    "region",
    "profile",
    "path-style",
    "allow-http",
    "ca-file",
    "client-certificate",
    "client-key",
    "send-token",
    "transport",
    "storage-class",
    "server-side-encryption",
    "kms-key",
    "tags",
    "expected-bucket-owner",
    "attributes",
    "requester-pays",
];

/// Checks what involves several keys of a remote.
pub(super) fn check_remote(remote: &RemoteSettings, merged: &mut Merged) {
    let name = remote.name.as_str();
    for key in SETTINGS_OF_SOME {
        let path = KeyPath::of(&["remote", name, key]);
        let is_asked_for = match key {
            // Not sending a token is the default of every store.
            "send-token" => remote.send_token,
            "transport" => remote.transport != Transport::default(),
            _ => true,
        };
        if merged.is_given(&path) && is_asked_for && !remote.url.scheme.takes(key) {
            let takers = Scheme::ALL.iter().filter(|(scheme, _)| scheme.takes(key));
            let known: Vec<String> = takers
                .map(|(scheme, _)| format!("{}://", scheme.as_str()))
                .collect();
            let why = format!("it does not apply to a {}:// remote", remote.url.scheme.as_str());
            let source = merged.source(&path);
            let hint = format!("remove it; it applies only to {}", known.join(", "));
            merged.faults.push(Finding::new(path, source, why).hint(hint));
        }
    }
    if let Some(endpoint) = &remote.endpoint
        && let Err((why, hint)) = check_endpoint(endpoint, remote.allow_http)
    {
        fault(merged, &["remote", name, "endpoint"], why, hint);
    }
    for (given, missing) in [
        ("client-certificate", "client-key"),
        ("client-key", "client-certificate"),
    ] {
        let is_given = |key| merged.is_given(&KeyPath::of(&["remote", name, key]));
        if is_given(given) && !is_given(missing) {
            let why = format!("it has no effect without {missing}");
            let hint = "set both: the certificate and its private key, each a PEM file";
            fault(merged, &["remote", name, given], why, hint);
        }
    }
    if remote.url.scheme == Scheme::Gcs && remote.transport == Transport::Xml {
        for key in ["ca-file", "client-certificate"] {
            if merged.is_given(&KeyPath::of(&["remote", name, key])) {
                let why = "Google's own client, which writes the objects, takes none";
                let hint = "set transport = \"json\", or add the authority to the system's store";
                fault(merged, &["remote", name, key], why, hint);
            }
        }
    }
    let aws_kms = remote
        .server_side_encryption
        .as_deref()
        .is_some_and(|kind| kind.starts_with("aws:kms"));
    if remote.url.scheme == Scheme::S3 && remote.kms_key.is_some() && !aws_kms {
        let why = "it has no effect without aws:kms encryption";
        let hint = "set server-side-encryption = \"aws:kms\"";
        fault(merged, &["remote", name, "kms-key"], why, hint);
    }
}

fn check_endpoint(endpoint: &str, allow_http: bool) -> Result<(), (String, &'static str)> {
    const EXAMPLE: &str = "write \"https://host\" or \"http://127.0.0.1:9000\"";
    let url = url::Url::parse(endpoint).map_err(|error| (format!("it is not a URL: {error}"), EXAMPLE))?;
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err((
            "it contains more than scheme, host, port and path".to_owned(),
            EXAMPLE,
        ));
    }
    let loopback = match url.host() {
        Some(url::Host::Domain(domain)) => domain == "localhost" || domain.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => return Err(("it has no host".to_owned(), EXAMPLE)),
    };
    match url.scheme() {
        "https" => Ok(()),
        "http" if loopback || allow_http => Ok(()),
        "http" => {
            let why = "plain http to another machine would expose every byte on the network".to_owned();
            Err((
                why,
                "use https, or set allow-http = true if that network is trusted",
            ))
        }
        other => Err((format!("its scheme is '{other}'"), EXAMPLE)),
    }
}
