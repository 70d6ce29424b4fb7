//! Determines which provider notifies this machine before it is reclaimed.

use super::{Check, Finding};
use stepvault_core::config::NoticeSource;

/// Manufacturers of virtual machines: any provider may use them, EC2 among others for its older machines.
const VIRTUAL: [&str; 8] =
    ["Xen", "QEMU", "KVM", "VMware", "innotek", "Red Hat", "OpenStack", "Microsoft Corporation"];
/// The asset tag of Azure's machines: Hyper-V has the same manufacturer elsewhere.
const AZURE_ASSET_TAG: &str = "7783-7084-3265-9085-8269-3286-77";

/// What the firmware reports about the machine; `None` if it reports nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Firmware {
    /// `sys_vendor`
    pub vendor: Option<String>,
    /// `product_name`
    pub product: Option<String>,
    /// `chassis_asset_tag`
    pub asset_tag: Option<String>,
}

/// The provider of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    /// This provider.
    Of(NoticeSource),
    /// None of the providers.
    Other,
    /// Unknown.
    Unknown,
}

impl Firmware {
    fn host(&self) -> Host {
        let product = self.product.as_deref().unwrap_or_default();
        if self.asset_tag.as_deref() == Some(AZURE_ASSET_TAG) {
            return Host::Of(NoticeSource::Azure);
        }
        match self.vendor.as_deref().unwrap_or_default() {
            vendor if vendor.starts_with("Amazon EC2") => Host::Of(NoticeSource::Ec2),
            // Laptops by the same manufacturer do not run on its cloud.
            "Google" if product.starts_with("Google Compute Engine") => Host::Of(NoticeSource::Gce),
            "" => Host::Unknown,
            vendor if VIRTUAL.iter().any(|maker| vendor.starts_with(maker)) => Host::Unknown,
            _ => Host::Other,
        }
    }

    /// `'Amazon EC2' 'p5.48xlarge'`
    fn words(&self) -> String {
        let told: Vec<String> =
            [&self.vendor, &self.product].into_iter().flatten().map(|text| format!("'{text}'")).collect();
        if told.is_empty() {
            "its firmware gives no name".to_owned()
        } else {
            format!("its firmware says {}", told.join(" "))
        }
    }
}

/// Returns the provider's name.
pub const fn provider(source: NoticeSource) -> &'static str {
    match source {
        NoticeSource::Ec2 => "EC2",
        NoticeSource::Gce => "Compute Engine",
        NoticeSource::Azure => "Azure",
    }
}

/// Returns those of the polled sources whose notice this machine may get, and the finding about them. `named` is true
/// if the configuration names the sources.
pub fn notices(firmware: &Firmware, asked: &[NoticeSource], named: bool) -> (Vec<NoticeSource>, Finding) {
    let says = firmware.words();
    let check = Check::new("notices", "this machine");
    match firmware.host() {
        Host::Of(host) if asked.contains(&host) => {
            (vec![host], check.pass(format!("runs on {}: {says}", provider(host))))
        }
        Host::Of(host) => {
            let measured = format!(
                "runs on {} ({says}), but the agent does not poll its notices",
                provider(host)
            );
            let advice = match (host, named) {
                (_, true) => {
                    format!("add \"{host}\" to agent.notices, or set agent.notices = \"auto\"")
                }
                (NoticeSource::Ec2, false) => {
                    "unset AWS_EC2_METADATA_DISABLED where the agent is started".to_owned()
                }
                (NoticeSource::Gce | NoticeSource::Azure, false) => {
                    "set agent.notices = \"auto\"".to_owned()
                }
            };
            (Vec::new(), check.warn(measured, advice))
        }
        Host::Other if !named => (
            Vec::new(),
            check.pass(format!(
                "runs on neither EC2, Compute Engine nor Azure ({says}): SIGTERM and the drain file are the only notices"
            )),
        ),
        // Sources that the configuration names are believed. If the provider is unknown, the agent polls and counts
        // every answer.
        Host::Other | Host::Unknown => {
            let sources: Vec<&str> = asked.iter().map(|source| provider(*source)).collect();
            let measured = match (asked.is_empty(), named) {
                (true, _) => format!("the agent polls no provider's notices ({says})"),
                (false, true) => format!("agent.notices names {} ({says})", sources.join(", ")),
                (false, false) => format!(
                    "the provider is unknown ({says}): the agent polls notices of {} and acts on any that it \
                     receives",
                    sources.join(", ")
                ),
            };
            (asked.to_vec(), check.pass(measured))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    const ALL: [NoticeSource; 3] = [NoticeSource::Ec2, NoticeSource::Gce, NoticeSource::Azure];

    fn of(vendor: &str, product: &str) -> Firmware {
        let told = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Firmware { vendor: told(vendor), product: told(product), asset_tag: None }
    }

    #[test]
    fn one_provider_or_none_applies() {
        for (vendor, product, applies, measured) in [
            (
                "Amazon EC2",
                "p5.48xlarge",
                &[NoticeSource::Ec2][..],
                "runs on EC2: its firmware says 'Amazon EC2' 'p5.48xlarge'",
            ),
            (
                "Google",
                "Google Compute Engine",
                &[NoticeSource::Gce],
                "runs on Compute Engine: its firmware says 'Google' 'Google Compute Engine'",
            ),
            (
                "Dell Inc.",
                "PowerEdge R750",
                &[],
                "runs on neither EC2, Compute Engine nor Azure (its firmware says 'Dell Inc.' 'PowerEdge R750'): \
                 SIGTERM and the drain file are the only notices",
            ),
            (
                "Google",
                "Eve",
                &[],
                "runs on neither EC2, Compute Engine nor Azure (its firmware says 'Google' 'Eve'): SIGTERM and the \
                 drain file are the only notices",
            ),
            (
                "Xen",
                "HVM domU",
                &ALL,
                "the provider is unknown (its firmware says 'Xen' 'HVM domU'): the agent polls notices of EC2, \
                 Compute Engine, Azure and acts on any that it receives",
            ),
            (
                "",
                "",
                &ALL,
                "the provider is unknown (its firmware gives no name): the agent polls notices of EC2, Compute \
                 Engine, Azure and acts on any that it receives",
            ),
        ] {
            let (found, finding) = notices(&of(vendor, product), &ALL, false);
            assert_eq!(found, applies, "{vendor}");
            assert_eq!((finding.outcome, finding.measured.as_str()), (Outcome::Pass, measured));
        }
    }

    #[test]
    fn azure_is_known_by_its_asset_tag() {
        let hyper_v = of("Microsoft Corporation", "Virtual Machine");
        assert_eq!(notices(&hyper_v, &ALL, false).0, ALL);
        let azure = Firmware { asset_tag: Some(AZURE_ASSET_TAG.to_owned()), ..hyper_v };
        let (found, finding) = notices(&azure, &ALL, false);
        assert_eq!((found, finding.outcome), (vec![NoticeSource::Azure], Outcome::Pass));
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
            assert!(finding.measured.starts_with("agent.notices names EC2 ("), "{finding:?}");
        }
        let (found, finding) = notices(&of("", ""), &[], true);
        assert_eq!(found, []);
        assert_eq!(finding.measured, "the agent polls no provider's notices (its firmware gives no name)");
    }
}
