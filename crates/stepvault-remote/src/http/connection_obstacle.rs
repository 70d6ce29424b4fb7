//! Connections that a certificate or a proxy prevents: what to do about them, and whether they are worth a retry.

use url::Url;

/// The variables that name the proxy of an https endpoint, in the order in which the HTTP clients read them.
const VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// What is known of a connection that failed because of a certificate or a proxy.
pub(crate) struct ConnectionObstacle {
    /// What to do.
    pub(crate) hint: String,
    /// Whether only the operator can mend it, so that no retry helps.
    pub(crate) is_lasting: bool,
}

impl ConnectionObstacle {
    /// Returns what prevented a connection that failed for this cause; `None` for any other failure.
    pub(crate) fn of(why: &str) -> Option<Self> {
        let by_certificate =
            certificate_hint(why).map(|hint| Self { hint: hint.to_owned(), is_lasting: true });
        let by_proxy = || {
            Some(Self {
                hint: proxy_hint(why)?,
                // No later request has the password either.
                is_lasting: why.contains("proxy authorization required"),
            })
        };
        by_certificate.or_else(by_proxy)
    }
}

/// Returns what to do if a connection failed because a proxy refused it, and `None` for any other failure.
fn proxy_hint(why: &str) -> Option<String> {
    why.contains("tunnel error").then(|| {
        let proxy = configured().map_or_else(String::new, |place| format!(" {place}"));
        format!(
            "the proxy{proxy} refuses the connection: check HTTPS_PROXY and its credentials, or name the host in NO_PROXY"
        )
    })
}

/// Returns host and port of the proxy in the environment, without its credentials.
fn configured() -> Option<String> {
    let texts = VARIABLES.iter().filter_map(|name| std::env::var(name).ok());
    let text = texts.into_iter().find(|text| !text.is_empty())?;
    let url = Url::parse(&text).or_else(|_| Url::parse(&format!("http://{text}"))).ok()?;
    let host = url.host_str()?;
    Some(match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    })
}

/// Returns what to do about a connection that failed because one side rejected the other's certificate; `None` for any
/// other failure. Matches the messages of the TLS library, because the SDKs hide its error type.
fn certificate_hint(why: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&["CertificateUnknown", "BadCertificate", "UnknownCA", "CertificateRequired"]) {
        return Some("the server refuses this client's certificate, or requires one");
    }
    if !has(&["invalid peer certificate"]) {
        return None;
    }
    Some(if has(&["UnknownIssuer", "BadSignature"]) {
        "no authority that this machine trusts has signed the server's certificate: set ca-file for this remote \
         (ca-file=PATH in its URL), or add the authority to the system's store"
    } else if has(&["certificate expired", "Expired"]) {
        "the server's certificate has expired: renew it, or set this machine's clock"
    } else if has(&["not valid yet", "NotValidYet"]) {
        "the server's certificate is not valid yet: set this machine's clock"
    } else if has(&["not valid for name", "NotValidForName"]) {
        "the server's certificate is for another host: correct the endpoint, or the certificate's names"
    } else {
        "check the server's certificate"
    })
}
