//! Checks how files get from the trainer's directory into the vault, and the cost of it.

use super::forecast::Forecast;
use super::{Check, Finding};
use crate::doctor::seconds_for;
use stepvault_core::config::LinkPolicy;
use stepvault_core::disk_facts::{DiskRates, LinkAbility, LinkFacts};
use stepvault_core::words;

/// How files will be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealMethod {
    /// By reflink: blocks are shared.
    Reflink,
    /// By hard link.
    HardLink,
    /// By copy: every byte is copied.
    Copy,
}

/// The methods that are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRule {
    policy: LinkPolicy,
    /// The profile whose framework may overwrite finished files, if hard links are excluded only because of it.
    overwritten_by: Option<String>,
}

impl LinkRule {
    /// Returns the rule for the configured setting. `overwritten_by` is the profile that detects the steps, if its
    /// files may be overwritten in place: a hard link would change with them.
    pub fn new(configured: LinkPolicy, overwritten_by: Option<String>) -> Self {
        let overwritten_by = overwritten_by.filter(|_| configured == LinkPolicy::Auto);
        let policy = match overwritten_by {
            Some(_) => LinkPolicy::ReflinkOrCopy,
            None => configured,
        };
        Self { policy, overwritten_by }
    }

    /// Returns how files are sealed by this rule, where `facts` hold.
    pub fn seal_method(&self, facts: &LinkFacts) -> SealMethod {
        if self.policy != LinkPolicy::Copy && facts.reflink == LinkAbility::Works {
            return SealMethod::Reflink;
        }
        if self.policy == LinkPolicy::Auto
            && facts.hard_link == LinkAbility::Works
            && facts.foreign_owner.is_none()
        {
            return SealMethod::HardLink;
        }
        SealMethod::Copy
    }
}

/// Returns the findings on the cost of sealing each step: one for hard links, one for reflinks.
pub fn links(
    subject: &str,
    facts: &LinkFacts,
    rule: &LinkRule,
    forecast: Option<&Forecast>,
    rates: Option<&DiskRates>,
) -> Vec<Finding> {
    let policy = rule.policy;
    let seal_method = rule.seal_method(facts);
    let is_copied = seal_method == SealMethod::Copy;
    let cost = cost(forecast, rates);
    let check = Check::new("reflinks", subject);
    let reflinks = match (&facts.reflink, &rule.overwritten_by) {
        (LinkAbility::Works, _) => check.pass("work"),
        (LinkAbility::Refused(why), _) if !is_copied => {
            check.pass(format!("not available ({why}), and not needed"))
        }
        (LinkAbility::Refused(why), Some(profile)) => check.warn(
            format!(
                "not available ({why}), and with profile '{profile}' finished files may be overwritten in place: \
                 {cost}"
            ),
            "put checkpoints and vault on one XFS or btrfs filesystem; or, if the trainer never changes a finished \
             file, set its own profile or complete = \"quiet\" in [run.NAME]",
        ),
        (LinkAbility::Refused(why), None) if policy == LinkPolicy::ReflinkOrCopy => check.warn(
            format!("not available ({why}): {cost}"),
            "put checkpoints and vault on one XFS or btrfs filesystem, or set local.links = \"auto\" if the trainer \
             never changes a finished file",
        ),
        (LinkAbility::Refused(why), None) => check.pass(format!("not available: {why}")),
    };
    let check = Check::new("hard links", subject);
    let are_wanted = is_copied && policy == LinkPolicy::Auto;
    let hard_links = match (&facts.hard_link, facts.foreign_owner) {
        (LinkAbility::Works, Some(owner)) if are_wanted => check.warn(
            format!(
                "the trainer's files belong to user {owner}, and the kernel does not let other users link them: {cost}"
            ),
            "run the agent as the trainer's user",
        ),
        (LinkAbility::Works, _) if policy == LinkPolicy::Copy => {
            check.pass(format!("work, but local.links = \"copy\" does not use them: {cost}"))
        }
        (LinkAbility::Works, _) if is_copied && rule.overwritten_by.is_some() => {
            check.pass("work, but are not used")
        }
        (LinkAbility::Works, _) => check.pass("work"),
        (LinkAbility::Refused(why), _) if are_wanted => check.warn(
            format!("not available ({why}): {cost}"),
            "put the vault on the same mount as the checkpoints: links work only within one mount, and two bind \
             mounts or volumes of one disk are separate mounts",
        ),
        (LinkAbility::Refused(why), _) => check.pass(format!("not available: {why}")),
    };
    vec![hard_links, reflinks]
}

fn cost(forecast: Option<&Forecast>, rates: Option<&DiskRates>) -> String {
    let Some(forecast) = forecast else {
        return "every byte of a step is copied".to_owned();
    };
    let size = words::bytes(forecast.taken.bytes);
    let Some(rates) = rates else {
        return format!("{size} of each step are copied");
    };
    let seconds = seconds_for(forecast.taken.bytes, rates.write_bytes_per_second);
    format!("{size} of each step are copied, which takes {}", words::seconds(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use stepvault_core::forecast::Taken;

    fn facts(hard_link: bool, reflink: bool) -> LinkFacts {
        let ability = |works: bool| {
            if works { LinkAbility::Works } else { LinkAbility::Refused("not supported".to_owned()) }
        };
        LinkFacts { hard_link: ability(hard_link), reflink: ability(reflink), foreign_owner: None }
    }

    fn rule(configured: LinkPolicy) -> LinkRule {
        LinkRule::new(configured, None)
    }

    fn outcomes(facts: &LinkFacts, configured: LinkPolicy) -> Vec<Outcome> {
        let found = links("a to b", facts, &rule(configured), None, None);
        found.iter().map(|finding| finding.outcome).collect()
    }

    #[test]
    fn only_what_makes_copies_is_worth_a_warning() {
        use Outcome::{Pass, Warn};
        assert_eq!(outcomes(&facts(true, false), LinkPolicy::Auto), [Pass, Pass]);
        assert_eq!(outcomes(&facts(false, true), LinkPolicy::Auto), [Pass, Pass]);
        assert_eq!(outcomes(&facts(false, false), LinkPolicy::Auto), [Warn, Pass]);
        assert_eq!(outcomes(&facts(true, false), LinkPolicy::ReflinkOrCopy), [Pass, Warn]);
        assert_eq!(outcomes(&facts(true, false), LinkPolicy::Copy), [Pass, Pass]);
        let foreign = LinkFacts { foreign_owner: Some(1000), ..facts(true, false) };
        assert_eq!(outcomes(&foreign, LinkPolicy::Auto), [Warn, Pass]);
        let auto = rule(LinkPolicy::Auto);
        assert_eq!(auto.seal_method(&foreign), SealMethod::Copy);
        assert_eq!(auto.seal_method(&facts(true, true)), SealMethod::Reflink);
        assert_eq!(auto.seal_method(&facts(true, false)), SealMethod::HardLink);
    }

    #[test]
    fn what_a_framework_overwrites_is_not_linked_and_that_is_said() {
        let of = |configured| LinkRule::new(configured, Some("areal".to_owned()));
        assert_eq!(of(LinkPolicy::Auto).seal_method(&facts(true, false)), SealMethod::Copy);
        assert_eq!(of(LinkPolicy::Auto).seal_method(&facts(true, true)), SealMethod::Reflink);
        let found = links("a to b", &facts(true, false), &of(LinkPolicy::Auto), None, None);
        assert_eq!(found[0].measured, "work, but are not used");
        assert_eq!(found[1].outcome, Outcome::Warn);
        assert_eq!(
            found[1].measured,
            "not available (not supported), and with profile 'areal' finished files may be overwritten in place: \
             every byte of a step is copied"
        );
        // With `local.links = "copy"` the finding names the configuration as the reason.
        assert_eq!(of(LinkPolicy::Copy), rule(LinkPolicy::Copy));
    }

    #[test]
    fn a_copy_is_said_with_its_cost() {
        let forecast = Forecast {
            taken: Taken { bytes: 10 << 30, files: 1, directories: 1 },
            interval_seconds: None,
            interval_steps: None,
            source: "x".to_owned(),
        };
        let rates = DiskRates {
            probed_bytes: 1,
            write_bytes_per_second: 500_000_000,
            read_bytes_per_second: 500_000_000,
            sync_seconds: 0.001,
        };
        let found =
            links("a to b", &facts(false, false), &rule(LinkPolicy::Auto), Some(&forecast), Some(&rates));
        assert_eq!(
            found[0].measured,
            "not available (not supported): 10.0 GiB of each step are copied, which takes 21.5s"
        );
        assert!(
            found[0]
                .remedy
                .as_ref()
                .unwrap()
                .starts_with("put the vault on the same mount as the checkpoints")
        );
    }
}
