//! Stores that are recognised by the host of the endpoint, or by what the server calls itself, and what is known of them.
//!
//! From the stores' documents and from issues, named in `docs/stores-by-name.md`; none of the clouds was tried. What a
//! store does is found out by the other checks; here is only what they cannot see.

use std::sync::LazyLock;

use serde::Deserialize;

use super::check;
use crate::doctor::Finding;
use stepvault_core::remote_settings::{RemoteSettings, Scheme};

/// A product or a service.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Product {
    name: String,
    /// The ends of its hosts.
    hosts: Vec<String>,
    /// The beginnings of its `Server` headers.
    servers: Vec<String>,
    /// What the other checks cannot see.
    limit: Option<String>,
    /// What to do about the limit.
    remedy: String,
}

static PRODUCTS: LazyLock<Vec<Product>> =
    LazyLock::new(|| crate::entries(include_str!("../../../texts/products.toml")));

/// Returns the finding on the product behind an S3 remote; `None` where it is not recognised.
///
/// `server` is what the server calls itself.
pub fn product(settings: &RemoteSettings, server: Option<&str>) -> Option<Finding> {
    if settings.url.scheme != Scheme::S3 {
        return None;
    }
    let host = settings.endpoint.as_deref().and_then(host_of);
    let by_host = host.and_then(|host| PRODUCTS.iter().find(|product| product.is_at(host)));
    let is_called = |product: &&Product, server: &str| {
        product.servers.iter().any(|beginning| server.starts_with(beginning))
    };
    let by_server = server.and_then(|server| PRODUCTS.iter().find(|product| is_called(product, server)));
    let (product, sign) = match (by_host, by_server) {
        (Some(product), _) => (product, "its host"),
        (None, Some(product)) => (product, "its Server header"),
        // Amazon's own header is that of others too.
        (None, None) => return None,
    };
    let recognised = format!("{}, by {sign}", product.name);
    let check = check("store", settings);
    Some(match &product.limit {
        None => check.pass(recognised),
        Some(limit) => check.warn(format!("{recognised}: {limit}"), &product.remedy),
    })
}

impl Product {
    fn is_at(&self, host: &str) -> bool {
        let is_below = |end: &String| {
            let rest = host.strip_suffix(end.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        self.hosts.iter().any(is_below)
    }
}

/// Returns the host of an endpoint, without port and path.
fn host_of(endpoint: &str) -> Option<&str> {
    let (_, rest) = endpoint.split_once("://")?;
    rest.split(['/', ':']).next()
}

#[cfg(test)]
mod tests {
    use stepvault_core::ids::RemoteName;

    use super::*;
    use crate::doctor::Outcome;

    fn found(endpoint: Option<&str>, server: Option<&str>) -> Option<(Outcome, String)> {
        let url = "s3://bucket/prefix".parse().unwrap();
        let mut settings = RemoteSettings::new(RemoteName::new("main").unwrap(), url);
        settings.endpoint = endpoint.map(str::to_owned);
        product(&settings, server).map(|finding| (finding.outcome, finding.measured))
    }

    #[test]
    fn stores_are_recognised_by_host_or_header_and_nothing_else_is() {
        let pass = |text: &str| Some((Outcome::Pass, text.to_owned()));
        assert_eq!(
            found(Some("https://s3.us-west-004.backblazeb2.com"), Some("nginx")),
            pass("Backblaze B2, by its host")
        );
        assert_eq!(found(Some("https://cwobject.com:443/"), None), pass("CoreWeave, by its host"));
        assert_eq!(
            found(Some("http://10.0.0.1:7480"), Some("Ceph Object Gateway (squid)")),
            pass("Ceph RGW, by its Server header")
        );
        // A service says more than the server behind it.
        assert_eq!(
            found(Some("https://ewr1.vultrobjects.com"), Some("Ceph Object Gateway (tentacle)")),
            pass("Vultr, by its host")
        );
        for endpoint in ["https://notbackblazeb2.com", "https://backblazeb2.com.evil.example", "none"] {
            assert_eq!(found(Some(endpoint), Some("nginx")), None, "{endpoint}");
        }
        assert_eq!(found(None, Some("AmazonS3")), None);
    }

    #[test]
    fn what_no_request_shows_is_a_warning() {
        let (outcome, measured) = found(Some("https://s3.fr-par.scw.cloud"), None).unwrap();
        assert_eq!(outcome, Outcome::Warn);
        assert!(measured.contains("at most 1,000 parts"), "{measured}");
    }
}
