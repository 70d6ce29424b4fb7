//! The sources of notices that the machine will be reclaimed.

use std::path::PathBuf;

use stepvault_core::config::{AgentSettings, NoticeSource, Notices};

const EC2_ENDPOINT: &str = "http://169.254.169.254";
const EC2_ENDPOINT_IPV6: &str = "http://[fd00:ec2::254]";
/// By address: where there is no such service, its name would be looked up in the network.
const GCE_HOST: &str = "169.254.169.254";

/// The sources of notices; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoticeOptions {
    /// The EC2 metadata service, if it is to be queried.
    pub ec2_endpoint: Option<String>,
    /// The Compute Engine metadata server, if it is to be queried.
    pub gce_endpoint: Option<String>,
    /// Whether these are expected to answer: then silence causes a warning, and they are queried again.
    pub expected: bool,
    /// Whether EC2's rebalance recommendation drains the service.
    pub drains_on_rebalance: bool,
    /// A file that drains the service when it appears.
    pub drain_file: Option<PathBuf>,
}

impl NoticeOptions {
    /// Builds the options from the configuration and the variables of the providers' own tools.
    pub fn of(settings: &AgentSettings, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let given = |name| variable(name).filter(|value| !value.is_empty());
        let is = |name, word: &str| given(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
        let wanted = |source| match &settings.notices {
            Notices::Auto => true,
            Notices::From(sources) => sources.contains(&source),
        };
        let ec2 = given("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| {
            let ipv6 = is("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ipv6");
            if ipv6 { EC2_ENDPOINT_IPV6 } else { EC2_ENDPOINT }.to_owned()
        });
        let gce = given("GCE_METADATA_HOST").unwrap_or_else(|| GCE_HOST.to_owned());
        let asks_ec2 = wanted(NoticeSource::Ec2) && !is("AWS_EC2_METADATA_DISABLED", "true");
        Self {
            ec2_endpoint: asks_ec2.then_some(ec2),
            gce_endpoint: wanted(NoticeSource::Gce).then(|| format!("http://{gce}")),
            expected: settings.notices != Notices::Auto,
            drains_on_rebalance: settings.drains_on_rebalance,
            drain_file: settings.drain_file.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn of(notices: Notices, variables: &[(&str, &str)]) -> NoticeOptions {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let settings = AgentSettings { notices, ..AgentSettings::default() };
        NoticeOptions::of(&settings, &|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn the_providers_own_variables_count() {
        let options = of(Notices::Auto, &[]);
        assert_eq!(options.ec2_endpoint.as_deref(), Some("http://169.254.169.254"));
        assert_eq!(options.gce_endpoint.as_deref(), Some("http://169.254.169.254"));
        assert!(!options.expected);
        let elsewhere = [
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1338/"),
            ("GCE_METADATA_HOST", "127.0.0.1:1339"),
        ];
        let options = of(Notices::From(vec![NoticeSource::Ec2, NoticeSource::Gce]), &elsewhere);
        assert_eq!(options.ec2_endpoint.as_deref(), Some("http://127.0.0.1:1338/"));
        assert_eq!(options.gce_endpoint.as_deref(), Some("http://127.0.0.1:1339"));
        assert!(options.expected);
        let ipv6 = of(Notices::Auto, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv6")]);
        assert_eq!(ipv6.ec2_endpoint.as_deref(), Some("http://[fd00:ec2::254]"));
        let disabled = of(Notices::Auto, &[("AWS_EC2_METADATA_DISABLED", "true")]);
        assert_eq!(disabled.ec2_endpoint, None);
    }

    #[test]
    fn only_what_is_named_is_asked() {
        let options = of(Notices::From(vec![]), &[]);
        assert_eq!((options.ec2_endpoint, options.gce_endpoint), (None, None));
        let options = of(Notices::From(vec![NoticeSource::Gce]), &[]);
        assert!(options.ec2_endpoint.is_none() && options.gce_endpoint.is_some());
    }
}
