//! Checks endpoints given by configuration or environment.

use stepvault_core::{Error, ErrorKind, Result};
use url::{Host, Url};

/// Parses an endpoint. Refuses plain HTTP unless it goes to this machine or is explicitly allowed.
pub(crate) fn check_endpoint(text: &str, allow_http: bool) -> Result<Url> {
    let fault = |why: &str| Error::new(ErrorKind::Usage, "cannot use the endpoint").because(why);
    let url = Url::parse(text).map_err(|error| {
        fault("it is not a URL")
            .on(without_credentials(text))
            .caused_by(error)
            .hint("write http(s)://host:port")
    })?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(fault("do not write credentials into a URL")
            .on(url.host_str().unwrap_or_default())
            .hint(
                "provide them through the provider's own mechanism: environment, profile, instance identity",
            ));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if allow_http || is_loopback(&url) => Ok(url),
        "http" => Err(fault("plain HTTP would send the data unencrypted")
            .on(without_credentials(text))
            .hint("use https://, or set allow-http = true for this remote (allow-http=true in its URL) if the network is trusted")),
        _ => Err(fault("it is neither http:// nor https://")
            .on(without_credentials(text))
            .hint("write http(s)://host:port")),
    }
}

/// Returns whether the URL's host belongs to one of these domains of a provider.
pub(crate) fn is_host_of(url: &Url, domains: &[&str]) -> bool {
    let Some(Host::Domain(host)) = url.host() else {
        return false;
    };
    let host = host.trim_end_matches('.');
    domains.iter().any(|domain| {
        let above = host.strip_suffix(domain);
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    })
}

/// Refuses to send a provider's access token to a host outside the provider's domains: its operator could use the
/// token.
pub(crate) fn refuse_token(url: &Url, provider: &str) -> Error {
    Error::new(ErrorKind::Usage, "cannot use the endpoint")
        .on(url.host_str().unwrap_or_default())
        .because(format!("it is not a host of {provider}, and its operator could use the access token that is sent there"))
        .hint("remove the endpoint, or set send-token = true for this remote (send-token=true in its URL) if the host is trusted with the token")
}

/// Returns whether the URL's host can only be this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Removes credentials from a text for messages: a secret would be in front of an '@' or in a query.
fn without_credentials(text: &str) -> &str {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    text.rsplit_once('@').map_or(text, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_goes_to_this_machine_only() {
        for good in
            ["http://127.0.0.1:9000", "http://localhost:1", "http://[::1]:2", "https://s3.example.com"]
        {
            check_endpoint(good, false).unwrap();
        }
        let error = check_endpoint("http://10.0.0.7:9000", false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot use the endpoint: http://10.0.0.7:9000: plain HTTP would send the data unencrypted"
        );
        assert_eq!(
            error.hint_text(),
            Some(
                "use https://, or set allow-http = true for this remote (allow-http=true in its URL) if the network is trusted"
            )
        );
        check_endpoint("http://10.0.0.7:9000", true).unwrap();
        for bad in ["127.0.0.1:9000", "ftp://localhost", ""] {
            assert_eq!(check_endpoint(bad, true).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
    }

    #[test]
    fn a_providers_host_is_one_below_its_domain_and_no_other() {
        let is_host = |text: &str| is_host_of(&Url::parse(text).unwrap(), &["googleapis.com"]);
        for good in [
            "https://storage.googleapis.com",
            "https://storage-psc.p.googleapis.com/",
            "https://STORAGE.googleapis.com.",
            "https://googleapis.com",
        ] {
            assert!(is_host(good), "{good}");
        }
        for bad in [
            "https://evilgoogleapis.com",
            "https://storage.googleapis.com.evil.example",
            "https://evil.example/storage.googleapis.com",
            "https://storage.googleapis.com@evil.example",
            "https://10.0.0.7",
            "https://[::1]",
        ] {
            assert!(!is_host(bad), "{bad}");
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
