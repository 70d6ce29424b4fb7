//! The notices that this machine may receive, for the feasibility check.

use std::path::Path;
use std::time::Duration;

use stepvault_agent::NoticeOptions;
use stepvault_core::config::{NoticeSource, Notices};
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::feasibility::Notice;
use stepvault_diagnose::doctor::notices::{notices, provider};
use stepvault_engine::doctor::local::{DIRECTORY, firmware};

use crate::context::Settings;

/// Notice period of EC2.
const EC2_SECONDS: u64 = 120;
/// Notice period of Compute Engine.
const GCE_SECONDS: u64 = 30;

/// Returns the notices and a finding about them; no finding if the command line gives the notice period.
pub(super) fn counted(settings: &Settings, given: Option<Duration>) -> (Vec<Notice>, Option<Finding>) {
    let notice = |name: String, seconds: u64| Notice { name, seconds };
    if let Some(given) = given {
        return (vec![notice("a notice of".to_owned(), given.as_secs())], None);
    }
    let agent = &settings.config.agent;
    // The same rules as the agent's; each query times out if nobody answers.
    let options = NoticeOptions::of(agent, &|name| std::env::var(name).ok());
    let ec2 = options.ec2_endpoint.map(|_| NoticeSource::Ec2);
    let gce = options.gce_endpoint.map(|_| NoticeSource::Gce);
    let asked: Vec<NoticeSource> = ec2.into_iter().chain(gce).collect();
    let named = agent.notices != Notices::Auto;
    let (sources, finding) = notices(&firmware(Path::new(DIRECTORY)), &asked, named);
    let of_source = |source| {
        let (kind, seconds) = match source {
            NoticeSource::Ec2 => ("spot", EC2_SECONDS),
            NoticeSource::Gce => ("preemption", GCE_SECONDS),
        };
        notice(format!("{}'s {kind} notice of", provider(source)), seconds)
    };
    let mut counted: Vec<Notice> = sources.into_iter().map(of_source).collect();
    let deadline = agent.drain_deadline.as_secs();
    counted.push(notice("SIGTERM and agent.drain-deadline of".to_owned(), deadline));
    (counted, Some(finding))
}
