//! Tests on a remote, with its own small objects, everything that the service will do there.
//!
//! Its objects are below the run's probe keys, which `gc` knows to belong to no step, and are removed at the end, even
//! when the examination is cut off by its own deadline.

use std::sync::Arc;
use std::time::Duration;

use stepvault_core::clock::gap_seconds;
use stepvault_core::keys::RunKeys;
use stepvault_core::{
    Clock, DigestAlgorithm, Error, ErrorKind, RemoteSettings, Result, SilentObserver, Timestamp,
};
use stepvault_diagnose::doctor::remote::{self as judge, Guarantee, MeasuredRates};
use stepvault_diagnose::doctor::{Check, Finding};
use stepvault_remote::examine::{ExamineError, Examined};
use stepvault_remote::file::will_be_begun;
use stepvault_remote::open::{OpenOptions, open_to_examine};
use stepvault_remote::probe::Probe;
use tokio::time::{Instant, sleep, timeout};

use super::left_uploads::{GcCommand, left_uploads};
use super::remote_speed::Speed;
use crate::blocking::blocking;

/// Maximum duration of the examination of one remote, whatever the remote does.
pub const LONGEST: Duration = Duration::from_secs(70);
/// Time limit for all checks.
const LIMIT: Duration = LONGEST.saturating_sub(CREDENTIALS_LIMIT).saturating_sub(CLEAN_UP_LIMIT);
/// Time limit for removing the written objects afterwards.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for opening and for credentials: an absent metadata service is queried several times.
const CREDENTIALS_LIMIT: Duration = Duration::from_secs(15);
/// A store that is silent for this long is of no use for training.
const STALL_SECONDS: u64 = 5;
/// Temporary overload of a store passes within this time.
const RETRY_SECONDS: u64 = 3;
/// How many times a first request that fails quickly is repeated.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// The results for one remote.
#[derive(Debug, Default)]
pub struct RemoteReport {
    /// One finding for each check, in the order in which they were made.
    pub findings: Vec<Finding>,
    /// The measured rates.
    pub rates: MeasuredRates,
}

impl RemoteReport {
    pub(super) fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

/// What to examine.
#[derive(Debug, Clone, Copy)]
pub struct RemoteToCheck<'a> {
    /// The remote.
    pub settings: &'a RemoteSettings,
    /// The run below whose keys the remote is tested.
    pub keys: &'a RunKeys,
    /// The algorithm of the digests of what will be uploaded.
    pub digest: DigestAlgorithm,
    /// The runs whose abandoned uploads are searched.
    pub runs: &'a [GcCommand],
}

/// Examines a remote. Ends within [`LONGEST`], and within seconds if the remote does not answer.
pub async fn check_remote(check: RemoteToCheck<'_>, clock: &dyn Clock, options: OpenOptions) -> RemoteReport {
    check_within(check, clock, options, LIMIT).await
}

async fn check_within(
    check: RemoteToCheck<'_>,
    clock: &dyn Clock,
    options: OpenOptions,
    limit: Duration,
) -> RemoteReport {
    let remote = check.settings;
    let mut report = RemoteReport::default();
    let place = remote.clone();
    if blocking(move || Ok(will_be_begun(&place))).await.unwrap_or_default() {
        report.add(judge::not_begun(remote));
        return report;
    }
    let examined = match open_in_time(remote, options).await {
        Ok(examined) => examined,
        Err(hindered) => {
            report.add(judge::obstacle(remote, &hindered.obstacle, &hindered.error, 0));
            return report;
        }
    };
    let mut examination = Examination {
        probe: Probe::new(examined.store(), check.keys, check.digest),
        speed: Speed::new(examined.store(), check.keys),
        examined: &examined,
        check,
        remote,
        clock,
        report,
        takes_parts: true,
    };
    match timeout(limit, examination.run()).await {
        Ok(false) => return examination.report,
        Ok(true) => {}
        Err(_) => examination.report.add(judge::out_of_time(remote, limit.as_secs())),
    }
    if let Err(error) = examination.clean_up().await {
        let place = format!("{}/{}", examined.store().url(), check.keys.probe(""));
        examination.report.add(judge::left_behind(remote, &place, &error));
    }
    examination.report
}

/// Opening may query this machine's metadata service for a region, which may not answer.
async fn open_in_time(
    settings: &RemoteSettings,
    options: OpenOptions,
) -> std::result::Result<Examined, ExamineError> {
    // A user waits for the result.
    let impatient = RemoteSettings {
        stall_timeout_seconds: settings.stall_timeout_seconds.min(STALL_SECONDS),
        retry_deadline_seconds: settings.retry_deadline_seconds.min(RETRY_SECONDS),
        ..settings.clone()
    };
    let opening = open_to_examine(&impatient, Arc::new(SilentObserver), options);
    timeout(CREDENTIALS_LIMIT, opening).await.unwrap_or_else(|_| {
        let seconds = CREDENTIALS_LIMIT.as_secs();
        Err(ExamineError {
            obstacle: stepvault_core::store_facts::Obstacle::Settings,
            error: Error::new(ErrorKind::Unreachable, "cannot open the remote")
                .on(&settings.url)
                .because(format!("its region was not found within {seconds} seconds"))
                .hint("set region for this remote"),
        })
    })
}

struct Examination<'a> {
    check: RemoteToCheck<'a>,
    remote: &'a RemoteSettings,
    examined: &'a Examined,
    probe: Probe<'a>,
    speed: Speed<'a>,
    clock: &'a dyn Clock,
    report: RemoteReport,
    /// False if the store reports that it does not support multipart uploads.
    takes_parts: bool,
}

impl Examination<'_> {
    /// Returns whether there are objects to remove.
    async fn run(&mut self) -> bool {
        if !self.credentials().await {
            return false;
        }
        let Some(now) = self.reach().await else {
            return false;
        };
        // Before the examination creates uploads of its own.
        let left = left_uploads(self.examined, self.remote, self.check.runs, now).await;
        self.report.findings.extend(left);
        let writes = self.put().await;
        if writes {
            self.objects().await;
        }
        self.uploads().await;
        if writes {
            self.keep(Guarantee::Delete, &self.probe.deletes().await);
            if let Some(together) = self.probe.deletes_together().await.transpose() {
                self.keep(Guarantee::DeleteTogether, &together);
            }
        }
        let facts = self.examined.bucket().await;
        self.report.findings.extend(judge::bucket(self.remote, facts.as_ref()));
        if writes {
            self.speed.measure(self.remote, &mut self.report).await;
        }
        true
    }

    fn keep(&mut self, guarantee: Guarantee, outcome: &Result<bool>) {
        self.report.add(judge::guarantee(self.remote, guarantee, outcome));
    }

    /// Returns false if there are none: every other check would fail for that reason.
    async fn credentials(&mut self) -> bool {
        let found = timeout(CREDENTIALS_LIMIT, self.examined.credentials()).await;
        let found = found.unwrap_or_else(|_| {
            let seconds = CREDENTIALS_LIMIT.as_secs();
            Err(Error::new(ErrorKind::Unreachable, "cannot get credentials")
                .because(format!("their provider did not answer within {seconds} seconds"))
                .hint("check the profile, the credential process or this machine's metadata service"))
        });
        match &found {
            Ok(None) => {}
            Ok(Some(credentials)) => {
                self.report.add(judge::credentials(self.remote, credentials, self.clock.now()));
            }
            Err(error) => self.report.add(judge::unchecked_credentials(self.remote, error)),
        }
        found.is_ok()
    }

    /// Returns the time, by the store's clock if it is known; `None` if no other check is possible.
    async fn reach(&mut self) -> Option<Timestamp> {
        let began = Instant::now();
        let prefix = self.check.keys.prefix();
        let mut before = self.clock.now();
        let mut look = self.examined.list_one(&prefix).await;
        for _ in 1..LOOKS {
            let passing = matches!(&look.outcome, Err(hindered) if hindered.error.is_transient());
            // A silent store was waited for long enough; a refused connection or an overloaded store may recover in a
            // moment.
            if !passing || began.elapsed() >= Duration::from_secs(1) {
                break;
            }
            sleep(BETWEEN_LOOKS).await;
            before = self.clock.now();
            look = self.examined.list_one(&prefix).await;
        }
        let after = self.clock.now();
        let product = judge::product(self.remote, look.server.as_deref());
        self.report.findings.extend(product);
        let store_time = look.store_time.map(Timestamp::from);
        if let Some(store_time) = store_time {
            self.compare_clocks(store_time, before, after);
        }
        let Err(hindered) = look.outcome else {
            let url = self.examined.store().url();
            let bucket = Check::new("bucket", self.remote.name.as_str());
            self.report.add(bucket.pass(format!("{url} was listed")));
            return Some(store_time.unwrap_or(after));
        };
        let seconds = began.elapsed().as_secs();
        let mut finding = judge::obstacle(self.remote, &hindered.obstacle, &hindered.error, seconds);
        // One line for each check: the source of the credentials, or the difference of the clocks, and the refusal.
        let same = |one: &mut Finding| one.check == finding.check;
        let earlier = self.report.findings.extract_if(.., same).map(|earlier| earlier.measured);
        let said: Vec<String> = earlier.chain([finding.measured.clone()]).collect();
        finding.measured = said.join("; ");
        self.report.add(finding);
        None
    }

    fn compare_clocks(&mut self, store: Timestamp, before: Timestamp, after: Timestamp) {
        let gap_seconds = gap_seconds(store, before, after);
        self.report.add(judge::clock(self.remote, gap_seconds));
    }

    /// Writes the object that the other checks use; its time shows the store's clock if nothing else did.
    async fn put(&mut self) -> bool {
        let before = self.clock.now();
        let created = self.probe.creates().await;
        let after = self.clock.now();
        let compared = self.report.findings.iter().any(|finding| finding.check == "clock");
        if let (Ok(Some(time)), false) = (&created, compared) {
            self.compare_clocks((*time).into(), before, after);
        }
        let outcome = match created {
            Ok(_) => self.probe.finds().await,
            Err(error) => Err(error),
        };
        self.keep(Guarantee::Put, &outcome);
        matches!(outcome, Ok(true))
    }

    async fn objects(&mut self) {
        let once = self.probe.refuses_second_create().await;
        // A store without multipart uploads is reported in their own finding.
        if matches!(once, Ok(true)) && !self.probe.completion_is_exclusive().await.unwrap_or(true) {
            self.keep(Guarantee::CompleteOnce, &Ok(false));
        } else {
            self.keep(Guarantee::CreateOnce, &once);
        }
        self.keep(Guarantee::Get, &self.probe.reads_back().await);
        self.keep(Guarantee::List, &self.probe.lists().await);
        self.keep(Guarantee::KeepNames, &self.probe.keeps_names().await);
    }

    async fn uploads(&mut self) {
        let wrong_object = self.probe.refuses_wrong_object().await;
        let parts = self.probe.keeps_parts().await;
        if self.examined.store().capabilities().checks_checksums {
            let wrong_part = parts.as_ref().map_or(true, |(refused, _)| *refused);
            let refused = wrong_object.map(|refused| refused && wrong_part);
            self.keep(Guarantee::RefuseWrongBytes, &refused);
        } else {
            self.report.add(judge::takes_no_checksums(self.remote));
        }
        let possible = parts.is_ok();
        self.takes_parts = !matches!(&parts, Err(error) if error.kind() == ErrorKind::Failed);
        self.keep(Guarantee::Multipart, &parts.map(|_| true));
        if !possible {
            return;
        }
        let ignored = self.probe.ignored_attributes().await;
        let ignored = ignored.map(|ignored| ignored.iter().map(ToString::to_string).collect());
        let attributes = judge::attributes(self.remote, &ignored);
        self.report.findings.extend(attributes);
        match self.probe.lists_and_aborts().await {
            Ok((listed, aborted)) => {
                if self.examined.store().capabilities().lists_pending_uploads {
                    self.keep(Guarantee::ListUploads, &Ok(listed));
                }
                self.keep(Guarantee::Abort, &Ok(aborted));
            }
            Err(error) => self.keep(Guarantee::Abort, &Err(error)),
        }
    }

    async fn clean_up(&self) -> Result<()> {
        let work = async {
            let dropped = if self.takes_parts { self.probe.drop_uploads().await } else { Ok(()) };
            let probed = self.probe.clean_up().await;
            let measured = self.speed.clean_up().await;
            dropped.and(probed).and(measured)
        };
        timeout(CLEAN_UP_LIMIT, work).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unreachable, "cannot delete the objects")
                .because(format!("not done within {} seconds", CLEAN_UP_LIMIT.as_secs())))
        })
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::ids::RunName;
    use stepvault_diagnose::doctor::Outcome;
    use stepvault_local::clock::SystemClock;
    use stepvault_testkit::faults::FaultAction;
    use stepvault_testkit::s3::StrictS3;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn an_examination_that_is_cut_off_says_so_and_leaves_nothing() {
        let server = StrictS3::start();
        let (settings, options) = crate::test_remote::on(&server);
        // A multipart upload is begun, and its part is never answered.
        server.faults().inject("PUT", "partNumber", u64::MAX, FaultAction::Hang);
        let keys = RunKeys::new(RunName::new("run").unwrap());
        // Before the timeout of a single request.
        let limit = Duration::from_secs(STALL_SECONDS - 2);
        let check =
            RemoteToCheck { settings: &settings, keys: &keys, digest: DigestAlgorithm::Sha256, runs: &[] };
        let report = check_within(check, &SystemClock, options, limit).await;
        let last = report.findings.last().unwrap();
        assert_eq!((last.check, last.outcome), ("network", Outcome::Fail), "{report:#?}");
        assert!(last.measured.contains("did not finish within 3 seconds"), "{last:?}");
        assert_eq!(server.objects().keys(), Vec::<String>::new());
        assert_eq!(server.pending_uploads(), vec![]);
    }
}
