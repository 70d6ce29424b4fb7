//! Stores that are recognised by the host of the endpoint, or by what the server calls itself, and what is known of them.
//!
//! From the stores' documents and from issues, named in `docs/stores-by-name.md`; none of the clouds was tried. What a
//! store does is found out by the other checks; here is only what they cannot see.

use super::check;
use crate::doctor::Finding;
use stepvault_core::remote_settings::{RemoteSettings, Scheme};

/// A product or a service.
struct Product {
    name: &'static str,
    /// The ends of its hosts.
    hosts: &'static [&'static str],
    /// The beginnings of its `Server` headers.
    servers: &'static [&'static str],
    /// What the other checks cannot see, and what to do about it.
    limit: Option<(&'static str, &'static str)>,
}

const fn service(name: &'static str, hosts: &'static [&'static str]) -> Product {
    Product { name, hosts, servers: &[], limit: None }
}

const fn server(name: &'static str, servers: &'static [&'static str]) -> Product {
    Product { servers, ..service(name, &[]) }
}

/// Services first: behind many of their hosts is one of the servers.
const PRODUCTS: [Product; 25] = [
    service("Google Cloud Storage by its S3 interface", &["storage.googleapis.com"]).limited(
        "its buckets have their own gs:// interface, which checks more",
        "write gs://bucket/prefix and remove endpoint",
    ),
    service("Scaleway", &["scw.cloud"]).limited(
        "an upload has at most 1,000 parts: a file above 7.8 GiB cannot be sent",
        "keep each file of a checkpoint below that, or use another store",
    ),
    service("Cloudflare R2", &["r2.cloudflarestorage.com"]).limited(
        "copies within the store may be refused; everything is then sent again",
        "set copy-unchanged = false if the log shows refused copies",
    ),
    service("Backblaze B2", &["backblazeb2.com"]),
    service("Wasabi", &["wasabisys.com"]),
    service("CoreWeave", &["cwobject.com", "cwlota.com", "coreweave.com"]),
    service("Nebius", &["nebius.cloud"]),
    service("Tigris", &["storage.dev", "storage.tigris.dev"]),
    service("Hetzner", &["your-objectstorage.com"]),
    service("Oracle OCI", &["oci.customer-oci.com", "oraclecloud.com"]),
    service("DigitalOcean Spaces", &["digitaloceanspaces.com"]),
    service("IBM Cloud Object Storage", &["cloud-object-storage.appdomain.cloud"]),
    service("OVHcloud", &["cloud.ovh.net"]),
    service("Linode", &["linodeobjects.com"]),
    service("Vultr", &["vultrobjects.com"]),
    service("Crusoe", &["crusoecloudcompute.com"]),
    service("Lambda", &["lambda.ai"]),
    service("Amazon S3", &["amazonaws.com", "amazonaws.com.cn"]),
    server("MinIO", &["MinIO"]),
    server("Ceph RGW", &["Ceph Object Gateway"]),
    server("SeaweedFS", &["SeaweedFS"]),
    server("NetApp StorageGRID", &["StorageGRID/"]),
    server("Dell ECS", &["ViPR/"]),
    server("Wasabi", &["WasabiS3/"]),
    server("IBM Cloud Object Storage", &["Cleversafe/"]),
];

/// Returns the finding on the product behind an S3 remote; `None` where it is not recognised.
///
/// `server` is what the server calls itself.
pub fn product(settings: &RemoteSettings, server: Option<&str>) -> Option<Finding> {
    if settings.url.scheme != Scheme::S3 {
        return None;
    }
    let host = settings.endpoint.as_deref().and_then(host_of);
    let by_host = host.and_then(|host| PRODUCTS.iter().find(|product| product.is_at(host)));
    let by_server = server.and_then(|server| PRODUCTS.iter().find(|product| product.is_called(server)));
    let (product, sign) = match (by_host, by_server) {
        (Some(product), _) => (product, "its host"),
        (None, Some(product)) => (product, "its Server header"),
        // Amazon's own header is that of others too.
        (None, None) => return None,
    };
    let recognised = format!("{}, by {sign}", product.name);
    let check = check("store", settings);
    Some(match product.limit {
        None => check.pass(recognised),
        Some((limit, remedy)) => check.warn(format!("{recognised}: {limit}"), remedy),
    })
}

impl Product {
    const fn limited(self, what: &'static str, remedy: &'static str) -> Self {
        Self { limit: Some((what, remedy)), ..self }
    }

    fn is_at(&self, host: &str) -> bool {
        let is_below = |end: &&str| {
            let rest = host.strip_suffix(end);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        self.hosts.iter().any(is_below)
    }

    fn is_called(&self, server: &str) -> bool {
        self.servers.iter().any(|beginning| server.starts_with(beginning))
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
