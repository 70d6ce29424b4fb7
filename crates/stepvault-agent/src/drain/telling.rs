//! Writes the drain record while uploads are under way, so that a start on another node can wait for them.

use std::time::Duration;

use stepvault_core::clock::Clock as _;
use stepvault_core::drain::{DrainRecord, LeftStep};
use stepvault_core::ids::NodeName;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::clock::SystemClock;
use tokio::time::{Instant, sleep};

use super::DrainPlanner;
use super::record::write_to_remote;

/// How often the record is rewritten.
const INTERVAL: Duration = Duration::from_secs(10);
/// How soon it is looked again whether the first bytes were sent.
const SOON: Duration = Duration::from_millis(500);
/// With fewer bytes than these to upload, the first record is written only after [`INTERVAL`].
const SMALL_BYTES: u64 = 16 << 20;

/// Tells other nodes of the uploads of one run to one remote.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    /// When the record was written last; `None` if it says that no upload is under way.
    told_at: Option<Instant>,
}

impl Telling {
    /// Rewrites the record until dropped. Nothing is written before bytes were sent: the remote may be another one than it
    /// must be.
    pub(crate) async fn tell(&mut self, remote: &RunRemote, planner: &DrainPlanner) {
        let (began, throughput) = (Instant::now(), &planner.shared.throughput);
        loop {
            let wait = self.told_at.map_or(SOON, |told_at| INTERVAL.saturating_sub(told_at.elapsed()));
            sleep(wait.max(SOON)).await;
            if throughput.in_flight_bytes(remote.name()) == 0
                && throughput.bytes_per_second(remote.name()).is_none()
            {
                continue;
            }
            let Ok(plan) = planner.plan().await else { continue };
            let its = plan.steps.iter().filter(|planned| planned.step.run == *remote.keys.run());
            let mut left: Vec<LeftStep> = its
                .map(|planned| LeftStep {
                    id: planned.step.id,
                    remote: remote.name().clone(),
                    required: remote.settings.required,
                    missing_bytes: planned.step.missing_bytes,
                })
                .collect();
            // The first one is being sent.
            if let Some(first) = left.first_mut() {
                let in_flight_bytes = throughput.in_flight_bytes(remote.name());
                first.missing_bytes = first.missing_bytes.saturating_sub(in_flight_bytes);
            }
            let bytes = left.iter().fold(0_u64, |sum, step| sum.saturating_add(step.missing_bytes));
            if self.told_at.is_none() && bytes < SMALL_BYTES && began.elapsed() < INTERVAL {
                continue;
            }
            self.told_at = Some(Instant::now());
            let rate = plan.bytes_per_second.unwrap_or(0);
            write(remote, planner.shared.options.node(), left, Some(rate)).await;
        }
    }

    /// Says that no upload is under way any more, if it was said that one is.
    pub(crate) async fn end(&mut self, remote: &RunRemote, node: &NodeName) {
        if self.told_at.take().is_some() {
            write(remote, node, Vec::new(), None).await;
        }
    }
}

async fn write(remote: &RunRemote, node: &NodeName, left: Vec<LeftStep>, rate: Option<u64>) {
    let run = remote.keys.run().clone();
    let mut record = DrainRecord::new(run, node.clone(), "uploads".to_owned(), SystemClock.now(), left);
    record.bytes_per_second = rate;
    write_to_remote(remote, &record, Instant::now() + INTERVAL).await;
}
