//! `doctor`: checks before training that everything the service needs works.

mod local;
mod remotes;

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use console::Color;
use futures::future::join_all;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_agent::NoticeOptions;
use stepvault_agent::notifications::send_test;
use stepvault_core::Result;
use stepvault_core::config::{NoticeSource, Notices};
use stepvault_diagnose::doctor::feasibility::{Feasibility, Notice, Situation, feasibility};
use stepvault_diagnose::doctor::notices::{notices, provider};
use stepvault_diagnose::doctor::{Check, Finding, Outcome, worst};
use stepvault_engine::doctor::local::{DIRECTORY, firmware};
use stepvault_engine::doctor::local::{GivenForecast, RunLook, RunToCheck, check_local};

use self::remotes::RemoteLook;
use crate::arguments::values;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::session::Session;

/// Check directories, disks, limits, remotes and throughput before training
///
/// It briefly performs the operations of the service: it writes, syncs, renames, links and deletes its own test files
/// in each directory, measures each disk with at most 256 MiB in a few seconds, and removes its files. On each remote
/// it creates objects of its own below the run's keys, checks that they cannot be overwritten, reads, lists and deletes
/// them, and measures both directions. It also reports leftovers, and whether saves, uploads and notices fit into the
/// available time and space. A mount or a store that does not answer is a finding. Each line is pass, warn (works, but
/// at a cost) or fail, with the measurement and a remedy. Run it as the trainer's user, in the trainer's environment.
/// The exit code is 14 if a check fails.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Directory that the trainer writes its steps to; by default those of the configured runs
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Expected size of the next step, such as "60 GiB"; by default estimated from the existing steps
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    step_size: Option<u64>,
    /// Expected number of files of the next step
    #[arg(long, value_name = "N")]
    step_files: Option<u64>,
    /// Interval between saves, such as "10m"; by default estimated from the existing steps
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    save_interval: Option<Duration>,
    /// Upload rate of a remote in bytes per second, such as "200 MiB", instead of the measured one
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    upload_rate: Option<u64>,
    /// Skip the remotes
    #[arg(long)]
    no_remotes: bool,
    /// Send a test notification to each target of 'notify'
    #[arg(long)]
    notify: bool,
    /// Notice period before the machine is taken away; by default that of this machine's provider
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    notice: Option<Duration>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: DoctorArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let settings = Settings::load(session)?;
    let runs = local::chosen_runs(&settings, arguments.directory.as_deref())?;
    let given = GivenForecast {
        bytes: arguments.step_size,
        files: arguments.step_files,
        interval_seconds: arguments.save_interval.map(|interval| interval.as_secs()),
    };
    let check = local::to_check(&settings, &runs, given)?;
    // Remotes and disks are checked concurrently.
    let commands = remotes::gc_commands(session, &settings, &runs)?;
    let looking = remotes::check(&settings, &runs, arguments.no_remotes, arguments.upload_rate, &commands);
    let (local, remote) = tokio::join!(check_local(&check), looking);
    let remote = remote?;
    let vault = check.vault.clone().filter(|_| !arguments.no_remotes);
    let devices = remotes::devices(&settings, &runs, vault).await?;
    let (notices, said) = counted(&settings, arguments.notice);
    let notified = if arguments.notify { notify(&settings).await? } else { Vec::new() };
    let mut feasible = Feasibility::default();
    for (run, look) in runs.iter().zip(&local.runs) {
        let answered = answer(&settings, run, look, &remote, &notices);
        feasible.findings.extend(answered.findings);
        feasible.suggested.extend(answered.suggested);
    }
    let findings: Vec<Finding> = local
        .findings
        .into_iter()
        .chain(said)
        .chain(devices)
        .chain(remote.findings)
        .chain(notified)
        .collect();
    let document = DoctorDocument::new(findings, feasible, began.elapsed(), session.global.verbose > 0);
    session.output.result(&document)?;
    Ok(match document.outcome {
        Outcome::Fail => ExitCode::Preflight,
        Outcome::Pass | Outcome::Warn => ExitCode::Done,
    })
}

/// Tries the targets of notifications.
async fn notify(settings: &Settings) -> Result<Vec<Finding>> {
    let (targets, node) = (&settings.config.notify, settings.writer()?.place.node().clone());
    if targets.is_empty() {
        let finding = Check::new("notify", "notifications").warn(
            "no target is configured",
            "set notify = [{ url = \"https://host/path\" }] in the configuration",
        );
        return Ok(vec![finding]);
    }
    let tried = targets.iter().map(async |target| {
        let check = Check::new("notify", target.sink.to_string());
        match send_test(target, node.clone()).await {
            Ok(()) => check.pass("accepted a test notification"),
            Err(error) => check
                .fail(error.to_string(), error.hint_text().unwrap_or("run it again, or remove the target")),
        }
    });
    Ok(join_all(tried).await)
}

/// Computes the feasibility for one run.
fn answer(
    settings: &Settings,
    run: &RunToCheck,
    look: &RunLook,
    remote: &RemoteLook,
    notices: &[Notice],
) -> Feasibility {
    let Some(forecast) = look.forecast.clone() else {
        return Feasibility {
            findings: vec![
                Check::new("forecast", look.facts.title.as_str())
                    .pass("no step exists yet: give --step-size and --save-interval for a forecast"),
            ],
            suggested: Vec::new(),
        };
    };
    feasibility(&Situation {
        local: look.facts.clone(),
        keep_table: local::keep_table(run),
        forecast,
        remotes: remote.rates_of(settings, run),
        notices: notices.to_vec(),
        keep_local: run.settings.keep_local.clone(),
        limits: settings.config.local.limits,
    })
}

/// Notice period of EC2.
const EC2_SECONDS: u64 = 120;
/// Notice period of Compute Engine.
const GCE_SECONDS: u64 = 30;
/// Shortest notice period of an eviction on Azure.
const AZURE_SECONDS: u64 = 30;

/// Returns the notices and a finding about them; no finding if the command line gives the notice period.
fn counted(settings: &Settings, given: Option<Duration>) -> (Vec<Notice>, Option<Finding>) {
    let notice = |name: String, seconds: u64| Notice { name, seconds };
    if let Some(given) = given {
        return (vec![notice("a notice of".to_owned(), given.as_secs())], None);
    }
    let agent = &settings.config.agent;
    // The same rules as the agent's; each query times out if nobody answers.
    let options = NoticeOptions::of(agent, &|name| std::env::var(name).ok());
    let ec2 = options.ec2_endpoint.map(|_| NoticeSource::Ec2);
    let gce = options.gce_endpoint.map(|_| NoticeSource::Gce);
    let azure = options.azure_endpoint.map(|_| NoticeSource::Azure);
    let asked: Vec<NoticeSource> = ec2.into_iter().chain(gce).chain(azure).collect();
    let named = agent.notices != Notices::Auto;
    let (sources, finding) = notices(&firmware(Path::new(DIRECTORY)), &asked, named);
    let of_source = |source| {
        let (kind, seconds) = match source {
            NoticeSource::Ec2 => ("spot", EC2_SECONDS),
            NoticeSource::Gce => ("preemption", GCE_SECONDS),
            NoticeSource::Azure => ("preemption", AZURE_SECONDS),
        };
        notice(format!("{}'s {kind} notice of", provider(source)), seconds)
    };
    let mut counted: Vec<Notice> = sources.into_iter().map(of_source).collect();
    let deadline = agent.drain_deadline.as_secs();
    counted.push(notice("SIGTERM and agent.drain-deadline of".to_owned(), deadline));
    (counted, Some(finding))
}

/// The result of `doctor`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct DoctorDocument {
    /// The worst outcome of all checks.
    outcome: Outcome,
    /// The results of the checks.
    findings: Vec<Finding>,
    /// Feasibility for each run, from the measurements, in entries like those of `findings`.
    feasibility: Vec<Finding>,
    /// Configuration lines that would make infeasible runs feasible; empty if all are feasible.
    suggested: Vec<String>,
    /// Duration in seconds.
    seconds: f64,
    /// Whether people also see the checks that passed.
    #[serde(skip)]
    shows_passed: bool,
}

impl DoctorDocument {
    fn new(findings: Vec<Finding>, feasible: Feasibility, took: Duration, shows_passed: bool) -> Self {
        let outcome = worst(&findings).max(worst(&feasible.findings));
        Self {
            outcome,
            findings,
            feasibility: feasible.findings,
            suggested: feasible.suggested,
            seconds: took.as_secs_f64(),
            shows_passed,
        }
    }

    /// Returns `1 failed, 2 warned, 12 checks passed (-v shows them), in 2.3s`.
    fn summary(&self) -> String {
        let all = || self.findings.iter().chain(&self.feasibility);
        let count = |outcome: Outcome| all().filter(|finding| finding.outcome == outcome).count();
        let (failed, warned) = (count(Outcome::Fail), count(Outcome::Warn));
        let passed = human::count(count(Outcome::Pass) as u64, "check");
        let more = if self.shows_passed { "" } else { " (-v shows them)" };
        format!(
            "{failed} failed, {warned} warned, {passed} passed{more}, in {}",
            human::seconds(self.seconds)
        )
    }

    /// Formats one line for each finding that is shown, the worst first, with the remedy below it; `None` without one.
    fn lines(&self, findings: &[Finding], title: &str, width: usize) -> Option<String> {
        let shown = findings.iter().filter(|finding| self.shows_passed || finding.outcome != Outcome::Pass);
        let shown = shown.sorted_by_key(|finding| Reverse(finding.outcome)).collect_vec();
        let row = |finding: &&Finding| {
            let outcome = match finding.outcome {
                Outcome::Pass => "PASS",
                Outcome::Warn => "WARN",
                Outcome::Fail => "FAIL",
            };
            let measured = match &finding.remedy {
                Some(remedy) => format!("{}\n-> {remedy}", finding.measured),
                None => finding.measured.clone(),
            };
            [outcome.to_owned(), finding.check.to_owned(), finding.subject.clone(), measured]
        };
        let rows = shown.iter().map(row);
        (!shown.is_empty()).then(|| table::fitted(&["", title, "subject", "measured"], &[], rows, width))
    }
}

impl Report for DoctorDocument {
    fn fitted(&self, width: usize) -> String {
        let tables = [(&self.findings, "check"), (&self.feasibility, "feasibility")];
        let tables = tables.into_iter().filter_map(|(findings, title)| self.lines(findings, title, width));
        let mut parts = tables.collect_vec();
        if !self.suggested.is_empty() {
            let title = "This configuration would be feasible:".to_owned();
            parts.push([&[title], self.suggested.as_slice()].concat().join("\n"));
        }
        parts.push(self.summary());
        parts.join("\n\n")
    }

    fn verdicts(&self) -> &'static [(&'static str, Color)] {
        &[("PASS", Color::Green), ("WARN", Color::Yellow), ("FAIL", Color::Red)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_to_do_below_what_was_measured() {
        let findings = vec![
            Check::new("directory", "vault /v").pass("works"),
            Check::new("free bytes", "vault on /v").fail("0 B of 1.0 GiB free", "delete something"),
        ];
        let feasible = Feasibility {
            findings: Vec::new(),
            suggested: vec!["[keep.local]".to_owned(), "last = 2".to_owned()],
        };
        let mut document = DoctorDocument::new(findings, feasible, Duration::from_millis(1500), true);
        assert_eq!(document.outcome, Outcome::Fail);
        assert_eq!(
            document.human(),
            "      CHECK       SUBJECT      MEASURED\n\
             FAIL  free bytes  vault on /v  0 B of 1.0 GiB free\n\
             \x20                              -> delete something\n\
             PASS  directory   vault /v     works\n\n\
             This configuration would be feasible:\n[keep.local]\nlast = 2\n\n\
             1 failed, 0 warned, 1 check passed, in 1.5s"
        );
        document.shows_passed = false;
        let text = document.human();
        assert!(text.contains("FAIL") && !text.contains("PASS"), "{text}");
        assert!(text.ends_with("1 failed, 0 warned, 1 check passed (-v shows them), in 1.5s"), "{text}");
    }
}
