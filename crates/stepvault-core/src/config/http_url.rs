//! What the URLs of services have in common.

use std::fmt;
use std::str::FromStr;

use super::finding::Fault;
use crate::{Error, ErrorKind};

/// The URL of a service that documents are sent to: a webhook, a collector of traces, a Pushgateway. Who knows it can send
/// there, so only its scheme and host are ever shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceUrl(url::Url);

impl ServiceUrl {
    /// Returns the whole URL, which no message may contain.
    pub fn secret(&self) -> &url::Url {
        &self.0
    }

    /// Returns the URL with these segments behind its path.
    #[must_use]
    pub fn below<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut url = self.0.clone();
        // It has a host, and therefore a path.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        Self(url)
    }

    /// Returns whether what is sent to it can be read on the network.
    pub fn is_exposed(&self) -> bool {
        check_scheme(&self.0, false).is_err()
    }

    /// Parses it; the fault is about "it", which it does not name.
    pub(super) fn parse(text: &str, allow_http: bool) -> Result<Self, Fault> {
        const EXAMPLE: &str = "write a URL such as \"https://host/path\"";
        let url =
            url::Url::parse(text).map_err(|error| Fault::new(format!("is not a URL: {error}"), EXAMPLE))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Fault::new("contains a user", EXAMPLE));
        }
        check_scheme(&url, allow_http)
            .map_err(|(why, hint)| Fault::new(format!("is refused: {why}"), hint))?;
        Ok(Self(url))
    }
}

/// Accepts plain http to every machine.
impl FromStr for ServiceUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text, true).map_err(|fault| {
            Error::new(ErrorKind::Usage, "cannot use the URL")
                .because(format!("it {}", fault.why))
                .hint(fault.hint)
        })
    }
}

/// As in `https://hooks.slack.com/…`.
impl fmt::Display for ServiceUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}://{}", self.0.scheme(), self.0.host_str().unwrap_or_default())?;
        match self.0.port() {
            Some(port) => write!(out, ":{port}/…"),
            None => out.write_str("/…"),
        }
    }
}

impl fmt::Debug for ServiceUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ServiceUrl({self})")
    }
}

pub(super) const EXAMPLE: &str = "write \"https://host\" or \"http://127.0.0.1:9000\"";

/// Refuses plain http to other machines.
pub(super) fn check_scheme(url: &url::Url, allow_http: bool) -> Result<(), (String, &'static str)> {
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
            Err((why, "use https, or set allow-http = true if that network is trusted"))
        }
        other => Err((format!("its scheme is '{other}'"), EXAMPLE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> ServiceUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_service_is_shown_by_its_host_alone() {
        let secret = url("https://gateway.example.com:9091/s3cr3t?key=s3cr3t");
        assert_eq!(secret.to_string(), "https://gateway.example.com:9091/…");
        assert!(!format!("{secret:?}").contains("s3cr3t"));
        for text in ["https://user:s3cr3t@host/", "ftp://host/s3cr3t", "s3cr3t", "unix:/run/s3cr3t"] {
            let error = text.parse::<ServiceUrl>().unwrap_err();
            assert!(!error.text_with_hint().contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn segments_are_added_to_any_path() {
        for base in ["http://127.0.0.1:9091", "http://127.0.0.1:9091/"] {
            assert_eq!(url(base).below(["metrics", "a/b"]).secret().path(), "/metrics/a%2Fb");
        }
        assert_eq!(url("https://host/prefix/").below(["v1", "traces"]).secret().path(), "/prefix/v1/traces");
    }

    #[test]
    fn plain_http_to_another_machine_is_exposed() {
        assert!(url("http://collector:4318").is_exposed());
        assert!(!url("http://127.0.0.1:4318").is_exposed() && !url("https://collector").is_exposed());
    }
}
