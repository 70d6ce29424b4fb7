//! What the URLs of services have in common.

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
