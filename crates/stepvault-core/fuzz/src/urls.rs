//! A remote's URL, which a person wrote.

use stepvault_core::config::{Config, FlagOverride, Sources, load};
use stepvault_core::path::RelativePath;
use stepvault_core::remote_settings::{RemoteUrl, Scheme};

/// Stands for a secret.
pub const CANARY: &str = "cAnArYs3cr3t";

/// Members of a query that people take from elsewhere.
const SECRET_MEMBERS: [&str; 5] =
    ["secret-access-key", "token", "sig", "X-Amz-Signature", "X-Amz-Security-Token"];

/// The text as a URL; and its lines as the pieces of one that holds a secret.
pub fn check(text: &str) {
    check_place(text);
    check_secrets(text);
}

fn check_place(text: &str) {
    let Ok((url, options)) = RemoteUrl::parse(text) else {
        return;
    };
    let shown = url.to_string();
    let (again, none) = RemoteUrl::parse(&shown).unwrap_or_else(|error| panic!("{shown:?}: {error}"));
    assert_eq!((&again, none.len()), (&url, 0), "{shown:?}");
    assert!(!url.bucket.contains(['/', '@', '?', '#']), "{url:?}");
    let inner = url.prefix.trim_start_matches('/');
    assert!(inner.is_empty() || RelativePath::new(inner).is_ok(), "{url:?}");
    assert_eq!(url.scheme == Scheme::File, url.bucket.is_empty(), "{url:?}");
    // Every option is one that can be written so again.
    let written: String =
        options.iter().map(|(name, value)| format!("&{}={}", encoded(name), encoded(value))).collect();
    let whole = format!("{shown}?{}", written.trim_start_matches('&'));
    assert_eq!(RemoteUrl::parse(&whole).unwrap(), (url, options), "{whole:?}");
    let _ = configured(text);
}

/// A secret as password or in the query, whatever stands around it.
fn check_secrets(text: &str) {
    // Where it stands for something else as well, it may be shown.
    if text.contains(CANARY) {
        return;
    }
    let mut lines = text.lines().chain(std::iter::repeat(""));
    let mut next = || lines.next().unwrap_or_default();
    let (scheme, user, tail, host, rest) = (next(), next(), next(), next(), next());
    if [scheme, user].iter().any(|piece| piece.contains(['/', '?', '#', '@', ':'])) {
        return;
    }
    let member = SECRET_MEMBERS[text.len() % SECRET_MEMBERS.len()];
    for text in [
        format!("{scheme}://{user}:{CANARY}{tail}@{host}"),
        format!("{scheme}://{user}:{CANARY}{tail}@{host}/{rest}?{member}={CANARY}&{rest}"),
        format!("s3://bucket/{rest}?{member}={CANARY}"),
        format!("s3://bucket/prefix?endpoint=http://{user}:{CANARY}{tail}@{host}"),
        format!("{user}:{CANARY}"),
    ] {
        let mut told = Vec::new();
        match RemoteUrl::parse(&text) {
            Ok((url, _)) => told.push(url.to_string()),
            Err(error) => told.push(format!("{error} {:?} {error:?}", error.hint_text())),
        }
        if let Err(error) = configured(&text) {
            told.push(format!("{error} {:?}", error.hint_text()));
        }
        // What was taken for the place is no secret to anybody.
        let is_place = RemoteUrl::parse(&text).is_ok_and(|(url, _)| url.to_string().contains(CANARY));
        assert!(is_place || told.iter().all(|told| !told.contains(CANARY)), "{text:?}: {told:?}");
    }
}

/// A configuration with the URL as the only remote's.
fn configured(url: &str) -> stepvault_core::Result<Config> {
    let flag = FlagOverride {
        key: "remote.r.url".to_owned(),
        value: toml::Value::String(url.to_owned()),
        flag: "--flag".to_owned(),
    };
    load(&Sources { flags: vec![flag], ..Sources::default() })
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// One of each kind, and pieces.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        "s3://bucket/a/b?region=eu-west-1&endpoint=http://127.0.0.1:9000",
        "gs://bucket/pre%20fix/",
        "az://container/prefix?endpoint=https://account.blob.core.windows.net",
        "file:///data/vault%3F/50%25",
        "file://localhost/data",
        "memory://name/p",
        "s3\nAKIA\n+/x\nbucket\nprefix",
        "s3\n\n?x#y\nbucket\na=b",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
