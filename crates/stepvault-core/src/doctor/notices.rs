//! Which provider gives this machine notice before it is taken away.

use super::Finding;
use crate::config::NoticeSource;

const CHECK: &str = "notices";
const SUBJECT: &str = "this machine";
/// Makers of virtual machines: any provider's may be behind them, EC2's older ones among them.
const VIRTUAL: [&str; 7] = ["Xen", "QEMU", "KVM", "VMware", "innotek", "Red Hat", "OpenStack"];

/// What the firmware says of the machine; none where it is not told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Firmware {
    /// `sys_vendor`
    pub vendor: Option<String>,
    /// `product_name`
    pub product: Option<String>,
}

/// Whose machine it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    /// This provider's.
    Of(NoticeSource),
    /// Neither's.
    Neither,
    /// That cannot be told.
    Unknown,
}

impl Firmware {
    fn host(&self) -> Host {
        let product = self.product.as_deref().unwrap_or_default();
        match self.vendor.as_deref().unwrap_or_default() {
            vendor if vendor.starts_with("Amazon EC2") => Host::Of(NoticeSource::Ec2),
            // The same maker's laptops are none.
            "Google" if product.starts_with("Google Compute Engine") => Host::Of(NoticeSource::Gce),
            "" => Host::Unknown,
            vendor if VIRTUAL.iter().any(|maker| vendor.starts_with(maker)) => Host::Unknown,
            _ => Host::Neither,
        }
    }

    /// `'Amazon EC2' 'p5.48xlarge'`
    fn words(&self) -> String {
        let told: Vec<String> = [&self.vendor, &self.product]
            .into_iter()
            .flatten()
            .map(|text| format!("'{text}'"))
            .collect();
        if told.is_empty() {
            "its firmware tells nothing".to_owned()
        } else {
            format!("its firmware says {}", told.join(" "))
        }
    }
}

/// The provider in words.
pub const fn provider(source: NoticeSource) -> &'static str {
    match source {
        NoticeSource::Ec2 => "EC2",
        NoticeSource::Gce => "Compute Engine",
    }
}

/// Of the sources that the agent asks, those whose notice this machine may get; and what is to be said of it. `named`:
/// the configuration names them.
pub fn notices(firmware: &Firmware, asked: &[NoticeSource], named: bool) -> (Vec<NoticeSource>, Finding) {
    let says = firmware.words();
    let pass = |measured: String| Finding::pass(CHECK, SUBJECT, measured);
    match firmware.host() {
        Host::Of(host) if asked.contains(&host) => (
            vec![host],
            pass(format!("a machine of {}: {says}", provider(host))),
        ),
        Host::Of(host) => {
            let measured = format!(
                "a machine of {} ({says}), and the agent does not look for its notices",
                provider(host)
            );
            let advice = match (host, named) {
                (_, true) => format!(
                    "add \"{}\" to agent.notices, or set agent.notices = \"auto\"",
                    host.word()
                ),
                (NoticeSource::Ec2, false) => {
                    "unset AWS_EC2_METADATA_DISABLED where the agent is started".to_owned()
                }
                (NoticeSource::Gce, false) => "set agent.notices = \"auto\"".to_owned(),
            };
            (Vec::new(), Finding::warn(CHECK, SUBJECT, measured, advice))
        }
        Host::Neither if !named => (
            Vec::new(),
            pass(format!(
                "neither EC2's nor Compute Engine's machine ({says}): no notice comes but SIGTERM and the drain file"
            )),
        ),
        // What is named is believed; where nothing is known, the agent asks, and counts what answers.
        Host::Neither | Host::Unknown => {
            let sources: Vec<&str> = asked.iter().map(|source| provider(*source)).collect();
            let measured = match (asked.is_empty(), named) {
                (true, _) => format!("no provider's notices are looked for ({says})"),
                (false, true) => format!("agent.notices names {} ({says})", sources.join(" and ")),
                (false, false) => format!(
                    "whose machine this is cannot be told ({says}): notices of {} are looked for, and count if it is",
                    sources.join(" and ")
                ),
            };
            (asked.to_vec(), pass(measured))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    const BOTH: [NoticeSource; 2] = NoticeSource::ALL;

    fn of(vendor: &str, product: &str) -> Firmware {
        let told = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Firmware {
            vendor: told(vendor),
            product: told(product),
        }
    }

    #[test]
    fn one_provider_or_none_applies() {
        for (vendor, product, applies, measured) in [
            (
                "Amazon EC2",
                "p5.48xlarge",
                &[NoticeSource::Ec2][..],
                "a machine of EC2: its firmware says 'Amazon EC2' 'p5.48xlarge'",
            ),
            (
                "Google",
                "Google Compute Engine",
                &[NoticeSource::Gce],
                "a machine of Compute Engine: its firmware says 'Google' 'Google Compute Engine'",
            ),
            (
                "Dell Inc.",
                "PowerEdge R750",
                &[],
                "neither EC2's nor Compute Engine's machine (its firmware says 'Dell Inc.' 'PowerEdge R750'): no notice \
                 comes but SIGTERM and the drain file",
            ),
            (
                "Google",
                "Eve",
                &[],
                "neither EC2's nor Compute Engine's machine (its firmware says 'Google' 'Eve'): no notice comes but \
                 SIGTERM and the drain file",
            ),
            (
                "Xen",
                "HVM domU",
                &BOTH,
                "whose machine this is cannot be told (its firmware says 'Xen' 'HVM domU'): notices of EC2 and Compute \
                 Engine are looked for, and count if it is",
            ),
            (
                "",
                "",
                &BOTH,
                "whose machine this is cannot be told (its firmware tells nothing): notices of EC2 and Compute Engine \
                 are looked for, and count if it is",
            ),
        ] {
            let (found, finding) = notices(&of(vendor, product), &BOTH, false);
            assert_eq!(found, applies, "{vendor}");
            assert_eq!(
                (finding.outcome, finding.measured.as_str()),
                (Outcome::Pass, measured)
            );
        }
    }

    #[test]
    fn a_notice_that_nobody_looks_for_is_a_warning() {
        let ec2 = of("Amazon EC2", "g6.xlarge");
        let (found, finding) = notices(&ec2, &[NoticeSource::Gce], true);
        assert_eq!((found, finding.outcome), (Vec::new(), Outcome::Warn));
        assert_eq!(
            finding.remedy.as_deref(),
            Some("add \"ec2\" to agent.notices, or set agent.notices = \"auto\"")
        );
        let (_, finding) = notices(&ec2, &[NoticeSource::Gce], false);
        assert_eq!(
            finding.remedy.as_deref(),
            Some("unset AWS_EC2_METADATA_DISABLED where the agent is started")
        );
    }

    #[test]
    fn what_is_named_is_believed_where_the_firmware_does_not_say_otherwise() {
        for vendor in ["", "QEMU", "Supermicro"] {
            let (found, finding) = notices(&of(vendor, ""), &[NoticeSource::Ec2], true);
            assert_eq!((found, finding.outcome), (vec![NoticeSource::Ec2], Outcome::Pass));
            assert!(
                finding.measured.starts_with("agent.notices names EC2 ("),
                "{finding:?}"
            );
        }
        let (found, finding) = notices(&of("", ""), &[], true);
        assert_eq!(found, []);
        assert_eq!(
            finding.measured,
            "no provider's notices are looked for (its firmware tells nothing)"
        );
    }
}
