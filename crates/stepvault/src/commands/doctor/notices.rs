//! The notices that count for what fits: those that this machine may get.

use std::path::Path;
use std::time::Duration;

use stepvault_agent::NoticeOptions;
use stepvault_core::config::{NoticeSource, Notices};
use stepvault_core::doctor::Finding;
use stepvault_core::doctor::feasibility::Notice;
use stepvault_core::doctor::notices::{notices, provider};
use stepvault_engine::doctor::firmware::{DIRECTORY, firmware};

use crate::context::Settings;

/// What EC2 gives.
const EC2_SECONDS: u64 = 120;
/// What Compute Engine gives.
const GCE_SECONDS: u64 = 30;

/// The notices, and what is to be said of them; nothing where the command line gives the time.
pub(super) fn counted(settings: &Settings, given: Option<Duration>) -> (Vec<Notice>, Option<Finding>) {
    let notice = |name: String, seconds: u64| Notice { name, seconds };
    if let Some(given) = given {
        return (vec![notice("a notice of".to_owned(), given.as_secs())], None);
    }
    let agent = &settings.config.agent;
    // By the same rules as the agent, of which each question ends by itself where nobody answers it.
    let options = NoticeOptions::of(agent, &|name| std::env::var(name).ok());
    let ec2 = options.ec2_endpoint.map(|_| NoticeSource::Ec2);
    let gce = options.gce_endpoint.map(|_| NoticeSource::Gce);
    let asked: Vec<NoticeSource> = ec2.into_iter().chain(gce).collect();
    let named = agent.notices != Notices::Auto;
    let (sources, finding) = notices(&firmware(Path::new(DIRECTORY)), &asked, named);
    let mut counted: Vec<Notice> = sources
        .into_iter()
        .map(|source| match source {
            NoticeSource::Ec2 => notice(format!("{}'s spot notice of", provider(source)), EC2_SECONDS),
            NoticeSource::Gce => notice(
                format!("{}'s preemption notice of", provider(source)),
                GCE_SECONDS,
            ),
        })
        .collect();
    let deadline = agent.drain_deadline.as_secs();
    counted.push(notice("SIGTERM and agent.drain-deadline of".to_owned(), deadline));
    (counted, Some(finding))
}
