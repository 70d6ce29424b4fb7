//! The settings of one remote, after flags, environment and file have been merged.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::bandwidth::BandwidthLimit;
use crate::retention::Selection;
use crate::{Error, ErrorKind, RemoteName, Result, meant_url};

/// What to do about a store that ignores attributes that were requested for new objects.
pub const IGNORED_ATTRIBUTES_HINT: &str = "correct the setting, use a store that supports it, or set attributes = \"if-supported\" for this remote to accept this";

/// The kinds of store. Everything that depends on the kind follows from a `match` on it: here, where a store is opened,
/// and where `doctor` says which right or rule to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Scheme {
    /// `s3://bucket/prefix`
    S3,
    /// `gs://bucket/prefix`
    #[strum(serialize = "gs")]
    Gcs,
    /// `az://container/prefix`
    #[strum(serialize = "az")]
    Azure,
    /// `file:///directory`
    File,
    /// `memory://name`: exists as long as the process; for tests and trials.
    Memory,
}

impl Scheme {
    /// Returns the scheme as in a URL.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns whether the store is a directory of this machine, so that its URL names a path and no bucket.
    pub const fn is_directory(self) -> bool {
        matches!(self, Self::File)
    }

    /// The settings that not every store has, and the kinds of store that have them. A setting that has no effect
    /// without a warning (an encryption, an owner check) would be worse than an error.
    pub(crate) const SETTINGS_OF_SOME: [(&'static str, &'static [Self]); 18] = [
        ("endpoint", &[Self::S3, Self::Gcs, Self::Azure]),
        ("region", &[Self::S3]),
        ("profile", &[Self::S3]),
        ("path-style", &[Self::S3]),
        ("anonymous", &[Self::S3, Self::Gcs, Self::Azure]),
        ("allow-http", &[Self::S3, Self::Gcs, Self::Azure]),
        ("ca-file", &[Self::S3, Self::Gcs, Self::Azure]),
        ("client-certificate", &[Self::S3, Self::Gcs, Self::Azure]),
        ("client-key", &[Self::S3, Self::Gcs, Self::Azure]),
        ("send-token", &[Self::Gcs, Self::Azure]),
        ("transport", &[Self::Gcs]),
        ("storage-class", &[Self::S3, Self::Gcs]),
        ("server-side-encryption", &[Self::S3]),
        ("kms-key", &[Self::S3, Self::Gcs]),
        ("tags", &[Self::S3]),
        ("expected-bucket-owner", &[Self::S3]),
        ("attributes", &[Self::S3, Self::Gcs]),
        ("requester-pays", &[Self::S3]),
    ];

    /// Returns whether a setting that not every store has applies to this kind.
    pub fn takes(self, setting: &str) -> bool {
        let mut settings = Self::SETTINGS_OF_SOME.iter();
        settings.any(|(name, schemes)| *name == setting && schemes.contains(&self))
    }
}

/// A remote's URL without its query: scheme, bucket (or container, or name) and prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RemoteUrl {
    /// The kind of store.
    pub scheme: Scheme,
    /// Bucket, container or name; empty for `file`.
    pub bucket: String,
    /// Prefix without leading or trailing slash; for `file` the absolute directory.
    pub prefix: String,
}

impl RemoteUrl {
    /// Splits `text` into the URL and the percent-decoded options of its query, in order.
    pub fn parse(text: &str) -> Result<(Self, Vec<(String, String)>)> {
        let fault = |why: String| {
            let usual = "write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory or \
                         memory://name";
            let hint = meant_url::suggestion(text).filter(|hint| !hint.contains(&format!("mean {text}?")));
            Error::new(ErrorKind::Usage, "not a remote's URL")
                .on(without_secrets(text))
                .because(why)
                .hint(hint.unwrap_or_else(|| usual.to_owned()))
        };
        let (scheme_text, rest) =
            text.split_once("://").ok_or_else(|| fault("it has no scheme".to_owned()))?;
        let scheme: Scheme = scheme_text.parse().map_err(|_| fault(unknown_scheme(scheme_text)))?;
        // The URL parser would drop these characters silently, and the URL would name another location than the text.
        if text.chars().any(char::is_control) || text.ends_with(' ') {
            return Err(fault("it has a control character, or ends with a space".to_owned()));
        }
        let parsed = url::Url::parse(text).map_err(|error| fault(error.to_string()))?;
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(fault("do not write credentials into a URL".to_owned()).hint(
                "provide them through the provider's own mechanism: environment, profile, instance identity",
            ));
        }
        if parsed.fragment().is_some() || parsed.port().is_some() {
            return Err(fault("it has a fragment or a port".to_owned()));
        }
        // The parser's own path has its '..' resolved, and its backslashes converted for file://.
        let (authority, path) = place_of(rest);
        let path = percent_decode(path).ok_or_else(|| fault("its path is not UTF-8".to_owned()))?;
        let bucket = parsed.host_str().unwrap_or_default().to_owned();
        let options =
            parsed.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect();
        let prefix = if scheme.is_directory() {
            let is_local = matches!(authority, "" | "localhost");
            if !is_local || !bucket.is_empty() || path.trim_matches('/').is_empty() {
                return Err(fault("it needs an absolute directory: file:///directory".to_owned()));
            }
            path.trim_end_matches('/').to_owned()
        } else {
            if bucket.is_empty() {
                return Err(fault("it has no bucket".to_owned()));
            }
            if bucket.contains('%') {
                return Err(fault(
                    "its bucket contains a character that is not allowed in bucket names".to_owned(),
                ));
            }
            path.trim_matches('/').to_owned()
        };
        let clean = prefix.trim_start_matches('/');
        if !clean.is_empty() && crate::path::RelativePath::new(clean).is_err() {
            return Err(fault("its path has empty, '.' or '..' components or control characters".to_owned()));
        }
        let url = Self { scheme, bucket, prefix };
        Ok((url, options))
    }
}

/// Returns the text between the scheme and the query, split at the first slash.
fn place_of(rest: &str) -> (&str, &str) {
    let place = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
    place.split_at(place.find('/').unwrap_or(place.len()))
}

fn unknown_scheme(text: &str) -> String {
    let is_scheme = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    if text.chars().all(is_scheme) {
        format!("the scheme '{text}' is not supported")
    } else {
        "it does not begin with a scheme".to_owned()
    }
}

fn percent_decode(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push(u8::try_from(high << 4 | low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns a version of any text that is safe for messages. A query may contain a secret that was pasted by mistake;
/// the text before an '@', or after a colon in the bucket, may be a password with any characters.
fn without_secrets(text: &str) -> String {
    let place = &text[..text.find(['?', '#']).unwrap_or(text.len())];
    if let Some(at) = place.rfind('@') {
        return place[at..].to_owned();
    }
    let start = place.find("://").map_or(0, |end| end + "://".len());
    let authority_end = place[start..].find('/').map_or(place.len(), |length| start + length);
    match place[start..authority_end].find(':') {
        Some(colon) => format!("{}…", &place[..=start + colon]),
        None => place.to_owned(),
    }
}

/// The URL without its query, written so that it parses back to the same location.
impl fmt::Display for RemoteUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}://{}", self.scheme.as_str(), self.bucket)?;
        if !self.scheme.is_directory() && !self.prefix.is_empty() {
            out.write_str("/")?;
        }
        let mut letters = self.prefix.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '%' => out.write_str("%25")?,
                '?' => out.write_str("%3F")?,
                '#' => out.write_str("%23")?,
                ' ' if letters.peek().is_none() => out.write_str("%20")?,
                other => out.write_char(other)?,
            }
        }
        Ok(())
    }
}

impl FromStr for RemoteUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(Self::parse(text)?.0)
    }
}

/// When uploaded objects are read back and hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReadBack {
    /// When the store is not proven to check integrity: it returns no checksum, or a probe showed that it accepts
    /// wrong ones.
    #[default]
    Auto,
    /// Always.
    Always,
}

/// Which of Google Cloud Storage's APIs carries files of several parts, listings and reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Transport {
    /// The XML API: files of several parts are its multipart uploads.
    #[default]
    Xml,
    /// The JSON API alone: the parts of a file are temporary objects, which are composed to one. For emulators and
    /// proxies without multipart uploads.
    Json,
}

/// The complete settings of one remote. Credentials are never part of them: each provider's own credential chain
/// supplies them.
#[derive(Debug, Clone, PartialEq)]
// Each flag is a key of its own, and independent of the others.
#[allow(clippy::struct_excessive_bools)]
pub struct RemoteSettings {
    /// The remote's name.
    pub name: RemoteName,
    /// Its URL.
    pub url: RemoteUrl,
    /// Whether a step must be durable here before it may be removed elsewhere.
    pub required: bool,
    /// Endpoint that replaces the provider's own.
    pub endpoint: Option<String>,
    /// Region (S3).
    pub region: Option<String>,
    /// Profile of the provider's configuration files (S3).
    pub profile: Option<String>,
    /// Whether the bucket is in the path of each URL, and not in its host (S3).
    pub path_style: Option<bool>,
    /// Sends requests without credentials, to read a public bucket (S3, GCS and Azure).
    pub anonymous: bool,
    /// Allows plain HTTP to an endpoint that is not a loopback address.
    pub allow_http: bool,
    /// PEM file with authorities that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the certificate by which this machine proves itself to the server, followed by those of its
    /// issuers.
    pub client_certificate: Option<PathBuf>,
    /// PEM file with the private key of `client_certificate`.
    pub client_key: Option<PathBuf>,
    /// Sends the provider's access token to `endpoint` although it is not one of the provider's hosts (GCS and Azure).
    pub send_token: bool,
    /// The API in use (GCS).
    pub transport: Transport,
    /// Storage class of data objects, with the provider's name for it.
    pub storage_class: Option<String>,
    /// Server-side encryption of new objects: `AES256`, `aws:kms`, `aws:kms:dsse` (S3).
    pub server_side_encryption: Option<String>,
    /// Key for server-side encryption, with the provider's name for it (S3 and GCS).
    pub kms_key: Option<String>,
    /// Tags of new objects (S3).
    pub tags: BTreeMap<String, String>,
    /// Account that must own the bucket (S3).
    pub expected_bucket_owner: Option<String>,
    /// Whether a store that ignores the five attributes above is not used.
    pub attributes_required: bool,
    /// Agrees to pay for requests in place of the bucket's owner (S3).
    pub requester_pays: bool,
    /// Maximum number of concurrent requests.
    pub max_concurrent_requests: usize,
    /// Maximum number of bytes sent or received per second.
    pub bandwidth_limit: BandwidthLimit,
    /// Seconds without a byte after which a request has failed.
    pub stall_timeout_seconds: u64,
    /// Total time of one request and its retries after which the remote counts as unreachable.
    pub retry_deadline_seconds: u64,
    /// When uploads are read back.
    pub read_back: ReadBack,
    /// Whether the store copies data that it has from an earlier step, so that it is not sent again.
    pub copy_unchanged: bool,
    /// What a selective remote gets. `None` for a remote to which every step is uploaded.
    pub selection: Option<Selection>,
}

impl RemoteSettings {
    /// Whether it is a selective remote: steps are copied to it and not uploaded, and count as durable without it.
    pub fn is_selective(&self) -> bool {
        self.selection.is_some()
    }

    /// Whether it is a selective remote that gets steps of the remote `from`.
    pub fn is_fed_by(&self, from: &RemoteName) -> bool {
        self.selection.as_ref().is_some_and(|selection| selection.from == *from)
    }

    /// Returns how long a request may move no byte: at least a second.
    pub fn stall_timeout(&self) -> Duration {
        Duration::from_secs(self.stall_timeout_seconds.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        RemoteUrl::parse(text).expect(text).0.to_string()
    }

    #[test]
    fn urls_are_taken_apart_and_shown_without_their_query() {
        assert_eq!(shown("s3://bucket/a/b/?region=eu-west-1"), "s3://bucket/a/b");
        assert_eq!(shown("gs://bucket"), "gs://bucket");
        assert_eq!(shown("file:///data/my%20vault/"), "file:///data/my vault");
        assert_eq!(shown("memory://demo"), "memory://demo");
        let (_, options) =
            RemoteUrl::parse("s3://b/p?endpoint=http://127.0.0.1:9000&region=us-east-1").unwrap();
        assert_eq!(options[0], ("endpoint".to_owned(), "http://127.0.0.1:9000".to_owned()));
    }

    #[test]
    fn wrong_urls_are_refused_without_showing_secrets() {
        for bad in [
            "bucket/prefix",
            "ftp://x/y",
            "s3:///prefix",
            "file://host/x",
            "file:///",
            "s3://b/../c",
            "s3://b/a//c",
        ] {
            let _ = RemoteUrl::parse(bad).map(|url| panic!("{bad} gave {url:?}"));
        }
        for bad in [
            "s3://AKIA:s3cr3t@bucket/p?token=s3cr3t",
            "s3://AKIA:s3cr3t?x@bucket/p",
            "s3://AKIA:s3cr3t#x@bucket/p",
            "s3://AKIA:s3cr3t/x@bucket/p",
            "s3://AKIA:s3cr3t/x",
            "AKIA:s3cr3t",
            "AKIA:s3cr3t@s3://bucket",
        ] {
            let error = RemoteUrl::parse(bad).expect_err(bad);
            let told = format!("{error} {:?}", error.hint_text());
            assert!(!told.contains("s3cr3t"), "{told}");
        }
    }

    #[test]
    fn another_spelling_of_a_bucket_gets_a_suggestion() {
        for (bad, wanted) in [
            ("gcs://bucket/run", "did you mean gs://bucket/run?"),
            ("S3://bucket/run", "did you mean s3://bucket/run?"),
            (
                "https://bucket.s3.eu-west-1.amazonaws.com/run",
                "did you mean s3://bucket/run?region=eu-west-1?",
            ),
            ("ftp://x/y", "write s3://bucket/prefix, gs://bucket/prefix"),
            ("s3://b/../c", "write s3://bucket/prefix, gs://bucket/prefix"),
        ] {
            let error = RemoteUrl::parse(bad).expect_err(bad);
            assert!(error.hint_text().unwrap().starts_with(wanted), "{bad}: {error:?}");
        }
        let arn = "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/team";
        let error = RemoteUrl::parse(arn).expect_err(arn);
        assert!(error.hint_text().unwrap().starts_with("did you mean s3://ALIAS/prefix?"), "{error:?}");
    }

    #[test]
    fn a_url_names_the_place_that_is_written_and_no_other() {
        for (written, prefix) in [
            ("s3://b/a%20", "a "),
            ("s3://b/a%20/", "a "),
            ("s3://b/%3Fx%23%25", "?x#%"),
            (r"file:///a%5C..%5Cb", r"/a\..\b"),
            ("file:///C%7C/x", "/C|/x"),
            ("file://localhost/x", "/x"),
        ] {
            let (url, _) = RemoteUrl::parse(written).unwrap();
            assert_eq!(url.prefix, prefix, "{written}");
            assert_eq!(RemoteUrl::parse(&url.to_string()).unwrap().0, url, "{url}");
        }
        for bad in [
            "s3://b/a/%2e%2e/c",
            "s3://b/a/.%2E",
            "s3://b/a/.\t./c",
            "s3://b/a ",
            "s3://b%41/c",
            "file://C:/x",
            r"file://\host/x",
        ] {
            let _ = RemoteUrl::parse(bad).map(|url| panic!("{bad} gave {url:?}"));
        }
    }
}
