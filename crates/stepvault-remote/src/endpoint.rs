//! What an endpoint given by configuration or environment may be.

use stepvault_core::{Error, ErrorKind, Result};
use url::{Host, Url};

/// Reads an endpoint and refuses plain HTTP unless it goes to this machine or is allowed by name.
pub(crate) fn check_endpoint(text: &str, allow_http: bool) -> Result<Url> {
    let fault = |why: &str| Error::new(ErrorKind::Usage, "cannot use the endpoint").because(why);
    let url = Url::parse(text).map_err(|error| {
        fault("it is not a URL")
            .on(without_credentials(text))
            .caused_by(error)
            .hint("write http(s)://host:port")
    })?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(fault("credentials do not belong into a URL")
            .on(url.host_str().unwrap_or_default())
            .hint("give them by the provider's own means: environment, profile, instance identity"));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if allow_http || is_loopback(&url) => Ok(url),
        "http" => Err(fault("plain HTTP would send the data readable over the network")
            .on(without_credentials(text))
            .hint("use https://, or set allow-http = true for this remote (allow-http=true in its URL) if the network is trusted")),
        _ => Err(fault("it is neither http:// nor https://")
            .on(without_credentials(text))
            .hint("write http(s)://host:port")),
    }
}

/// Whether the URL's host can only be this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Whatever the text is, a secret would stand before an '@' or in a query.
fn without_credentials(text: &str) -> &str {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    text.rsplit_once('@').map_or(text, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_goes_to_this_machine_only() {
        for good in [
            "http://127.0.0.1:9000",
            "http://localhost:1",
            "http://[::1]:2",
            "https://s3.example.com",
        ] {
            check_endpoint(good, false).unwrap();
        }
        let error = check_endpoint("http://10.0.0.7:9000", false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot use the endpoint: http://10.0.0.7:9000: plain HTTP would send the data readable over the network"
        );
        assert_eq!(
            error.hint_text(),
            Some(
                "use https://, or set allow-http = true for this remote (allow-http=true in its URL) if the network is trusted"
            )
        );
        check_endpoint("http://10.0.0.7:9000", true).unwrap();
        for bad in ["127.0.0.1:9000", "ftp://localhost", ""] {
            assert_eq!(
                check_endpoint(bad, true).unwrap_err().kind(),
                ErrorKind::Usage,
                "{bad}"
            );
        }
    }

    #[test]
    fn secrets_in_an_endpoint_are_not_repeated() {
        for text in ["https://key:s3cr3t@host", "key:s3cr3t@host"] {
            let error = check_endpoint(text, true).unwrap_err();
            assert!(!error.to_string().contains("s3cr3t"), "{error}");
        }
    }
}
