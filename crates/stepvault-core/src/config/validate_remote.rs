//! One remote: settings that its kind of store does not know, and endpoints that would send bytes in the clear.

use super::finding::Finding;
use super::key::KeyPath;
use super::merge::Merged;
use super::validate::fault;
use crate::remote_settings::{RemoteSettings, Scheme};

/// Which stores a setting means something to. One that is silently without effect (an encryption, an owner check)
/// would be worse than a refusal.
const STORES: [(&str, &[Scheme]); 9] = [
    ("endpoint", &[Scheme::S3, Scheme::Gcs, Scheme::Azure]),
    ("region", &[Scheme::S3]),
    ("profile", &[Scheme::S3]),
    ("allow-http", &[Scheme::S3, Scheme::Gcs, Scheme::Azure]),
    ("storage-class", &[Scheme::S3, Scheme::Gcs]),
    ("server-side-encryption", &[Scheme::S3]),
    ("kms-key", &[Scheme::S3, Scheme::Gcs]),
    ("tags", &[Scheme::S3]),
    ("expected-bucket-owner", &[Scheme::S3]),
];

/// Checks what spans several keys of a remote.
pub(in crate::config) fn check_remote(remote: &RemoteSettings, merged: &mut Merged) {
    let name = remote.name.as_str();
    for (key, schemes) in STORES {
        let path = KeyPath::of(&["remote", name, key]);
        if merged.is_given(&path) && !schemes.contains(&remote.url.scheme) {
            let known: Vec<String> = schemes
                .iter()
                .map(|scheme| format!("{}://", scheme.as_str()))
                .collect();
            let why = format!("a remote of {}:// does not know it", remote.url.scheme.as_str());
            let source = merged.source(&path);
            let hint = format!("remove it; it is for {}", known.join(", "));
            merged.faults.push(Finding::new(path, source, why).hint(hint));
        }
    }
    if let Some(endpoint) = &remote.endpoint
        && let Err((why, hint)) = check_endpoint(endpoint, remote.allow_http)
    {
        fault(merged, &["remote", name, "endpoint"], why, hint);
    }
    let aws_kms = remote
        .server_side_encryption
        .as_deref()
        .is_some_and(|kind| kind.starts_with("aws:kms"));
    if remote.url.scheme == Scheme::S3 && remote.kms_key.is_some() && !aws_kms {
        let why = "it has no effect without encryption by that service";
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
            "it holds more than scheme, host, port and path".to_owned(),
            EXAMPLE,
        ));
    }
    let loopback = match url.host() {
        Some(url::Host::Domain(domain)) => domain == "localhost" || domain.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => return Err(("it names no host".to_owned(), EXAMPLE)),
    };
    match url.scheme() {
        "https" => Ok(()),
        "http" if loopback || allow_http => Ok(()),
        "http" => {
            let why = "plain http to another machine would show every byte to the network".to_owned();
            Err((
                why,
                "use https, or set allow-http = true if that network is trusted",
            ))
        }
        other => Err((format!("its scheme is '{other}'"), EXAMPLE)),
    }
}
