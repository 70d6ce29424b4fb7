//! How a step gets from the trainer's directory into the vault, and what that costs.

use super::Finding;
use super::forecast::Forecast;
use super::speed::Rates;
use super::words;
use crate::config::Links;

/// Whether something was done, or why it was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ability {
    /// It was done.
    Works,
    /// It was refused, for this reason.
    Refused(String),
}

/// What was tried from the checkpoint directory into the vault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFacts {
    /// A second name for a file.
    pub hard_link: Ability,
    /// A file that shares another's blocks.
    pub reflink: Ability,
    /// Somebody else's file among the trainer's, which the kernel does not let this user link, and whose it is.
    pub foreign_owner: Option<u32>,
}

/// How files are going to be taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// Their blocks are shared.
    Reflink,
    /// They get a second name.
    HardLink,
    /// Every byte is copied.
    Copy,
}

/// Which ways are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRule {
    policy: Links,
    /// The profile of a framework that may overwrite finished files, where nothing but that forbids hard links.
    overwritten_by: Option<String>,
}

impl LinkRule {
    /// The configuration's setting. `overwritten_by` is the profile that the steps are found by, where its files may be
    /// overwritten in place: a hard link would change with them.
    pub fn new(configured: Links, overwritten_by: Option<String>) -> Self {
        let overwritten_by = overwritten_by.filter(|_| configured == Links::Auto);
        let policy = match overwritten_by {
            Some(_) => Links::ReflinkOrCopy,
            None => configured,
        };
        Self {
            policy,
            overwritten_by,
        }
    }
}

impl LinkFacts {
    /// How files are taken over by this rule.
    pub fn takeover(&self, rule: &LinkRule) -> Takeover {
        let policy = rule.policy;
        if policy != Links::Copy && self.reflink == Ability::Works {
            return Takeover::Reflink;
        }
        if policy == Links::Auto && self.hard_link == Ability::Works && self.foreign_owner.is_none() {
            return Takeover::HardLink;
        }
        Takeover::Copy
    }
}

/// What each step costs on its way into the vault: one finding for hard links, one for reflinks.
pub fn links(
    subject: &str,
    facts: &LinkFacts,
    rule: &LinkRule,
    forecast: Option<&Forecast>,
    rates: Option<&Rates>,
) -> Vec<Finding> {
    let policy = rule.policy;
    let takeover = facts.takeover(rule);
    let cost = cost(forecast, rates);
    let reflinks = match &facts.reflink {
        Ability::Works => Finding::pass("reflinks", subject, "work"),
        Ability::Refused(why) => match (takeover, &rule.overwritten_by) {
            (Takeover::Copy, Some(profile)) => Finding::warn(
                "reflinks",
                subject,
                format!(
                    "none ({why}), and by profile '{profile}' finished files may be overwritten in place: {cost}"
                ),
                "put both on one XFS or btrfs; or name the trainer's own profile in [run.NAME], or set complete = \"quiet\" \
                 there, if it never changes a finished file",
            ),
            (Takeover::Copy, None) if policy == Links::ReflinkOrCopy => Finding::warn(
                "reflinks",
                subject,
                format!("none ({why}): {cost}"),
                "put both on one XFS or btrfs, or set local.links = \"auto\" if the trainer never changes a finished file",
            ),
            (Takeover::Copy, None) => Finding::pass("reflinks", subject, format!("none: {why}")),
            _ => Finding::pass("reflinks", subject, format!("none ({why}), and none are needed")),
        },
    };
    let hard_links = match (&facts.hard_link, facts.foreign_owner) {
        (Ability::Works, Some(owner)) if takeover == Takeover::Copy && policy == Links::Auto => {
            Finding::warn(
                "hard links",
                subject,
                format!(
                    "the trainer's files belong to user {owner}, and the kernel lets no other user link them: {cost}"
                ),
                "run the agent as the trainer's user",
            )
        }
        (Ability::Works, _) if policy == Links::Copy => Finding::pass(
            "hard links",
            subject,
            format!("work, and local.links = \"copy\" does without them: {cost}"),
        ),
        (Ability::Works, _) if takeover == Takeover::Copy && rule.overwritten_by.is_some() => {
            Finding::pass("hard links", subject, "work, and are not used")
        }
        (Ability::Works, _) => Finding::pass("hard links", subject, "work"),
        (Ability::Refused(why), _) if takeover == Takeover::Copy && policy == Links::Auto => Finding::warn(
            "hard links",
            subject,
            format!("none ({why}): {cost}"),
            "put the vault on the checkpoints' own mount: files are linked only within one mount, and two bind mounts \
             or volumes of one disk are two",
        ),
        (Ability::Refused(why), _) => Finding::pass("hard links", subject, format!("none: {why}")),
    };
    vec![hard_links, reflinks]
}

fn cost(forecast: Option<&Forecast>, rates: Option<&Rates>) -> String {
    let Some(forecast) = forecast else {
        return "every byte of a step is copied".to_owned();
    };
    let size = words::bytes(forecast.taken.bytes);
    let Some(rates) = rates else {
        return format!("{size} of each step are copied");
    };
    let seconds = words::seconds_for(forecast.taken.bytes, rates.write_bytes_per_second);
    format!("{size} of each step are copied, in {}", words::time(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use crate::forecast::Taken;

    fn facts(hard_link: bool, reflink: bool) -> LinkFacts {
        let ability = |works: bool| {
            if works {
                Ability::Works
            } else {
                Ability::Refused("not supported".to_owned())
            }
        };
        LinkFacts {
            hard_link: ability(hard_link),
            reflink: ability(reflink),
            foreign_owner: None,
        }
    }

    fn rule(configured: Links) -> LinkRule {
        LinkRule::new(configured, None)
    }

    fn outcomes(facts: &LinkFacts, configured: Links) -> Vec<Outcome> {
        let found = links("a to b", facts, &rule(configured), None, None);
        found.iter().map(|finding| finding.outcome).collect()
    }

    #[test]
    fn only_what_makes_copies_is_worth_a_warning() {
        use Outcome::{Pass, Warn};
        assert_eq!(outcomes(&facts(true, false), Links::Auto), [Pass, Pass]);
        assert_eq!(outcomes(&facts(false, true), Links::Auto), [Pass, Pass]);
        assert_eq!(outcomes(&facts(false, false), Links::Auto), [Warn, Pass]);
        assert_eq!(outcomes(&facts(true, false), Links::ReflinkOrCopy), [Pass, Warn]);
        assert_eq!(outcomes(&facts(true, false), Links::Copy), [Pass, Pass]);
        let foreign = LinkFacts {
            foreign_owner: Some(1000),
            ..facts(true, false)
        };
        assert_eq!(outcomes(&foreign, Links::Auto), [Warn, Pass]);
        let auto = rule(Links::Auto);
        assert_eq!(foreign.takeover(&auto), Takeover::Copy);
        assert_eq!(facts(true, true).takeover(&auto), Takeover::Reflink);
        assert_eq!(facts(true, false).takeover(&auto), Takeover::HardLink);
    }

    #[test]
    fn what_a_framework_overwrites_is_not_linked_and_that_is_said() {
        let of = |configured| LinkRule::new(configured, Some("areal".to_owned()));
        assert_eq!(facts(true, false).takeover(&of(Links::Auto)), Takeover::Copy);
        assert_eq!(facts(true, true).takeover(&of(Links::Auto)), Takeover::Reflink);
        let found = links("a to b", &facts(true, false), &of(Links::Auto), None, None);
        assert_eq!(found[0].measured, "work, and are not used");
        assert_eq!(found[1].outcome, Outcome::Warn);
        assert_eq!(
            found[1].measured,
            "none (not supported), and by profile 'areal' finished files may be overwritten in place: every byte of a step \
             is copied"
        );
        // Where the configuration says so it is the configuration that says so.
        assert_eq!(of(Links::Copy), rule(Links::Copy));
    }

    #[test]
    fn a_copy_is_said_with_its_cost() {
        let forecast = Forecast {
            taken: Taken {
                bytes: 10 << 30,
                files: 1,
                directories: 1,
            },
            interval_seconds: None,
            interval_steps: None,
            source: "x".to_owned(),
        };
        let rates = Rates {
            probed_bytes: 1,
            write_bytes_per_second: 500_000_000,
            read_bytes_per_second: 500_000_000,
            sync_seconds: 0.001,
        };
        let found = links(
            "a to b",
            &facts(false, false),
            &rule(Links::Auto),
            Some(&forecast),
            Some(&rates),
        );
        assert_eq!(
            found[0].measured,
            "none (not supported): 10.0 GiB of each step are copied, in 21.5 s"
        );
        assert!(
            found[0]
                .remedy
                .as_ref()
                .unwrap()
                .starts_with("put the vault on the checkpoints' own mount")
        );
    }
}
