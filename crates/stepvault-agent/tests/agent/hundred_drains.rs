//! A hundred drains at random points with random deadlines: each ends before its deadline, and no word of any is false.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stepvault_agent::{AgentRemote, StopReason, read_drain};
use stepvault_core::bandwidth::BandwidthLimit;
use stepvault_core::ids::StepId;
use stepvault_core::observe::{Observer, SilentObserver};
use stepvault_engine::verify::{Depth, check_remote};
use stepvault_local::sealed::UploadState;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, run_name};
use crate::support::{committed, on_remote, sealed};

const DRAINS: u64 = 100;
const AT_ONCE: usize = 5;

/// Numbers that are the same each time and follow no pattern.
struct Dice(u64);

impl Dice {
    fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

#[test]
fn a_hundred_drains_end_in_time_and_say_nothing_false() {
    let (next, left_something) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= DRAINS {
                        return;
                    }
                    let left = runtime.block_on(drain(seed));
                    left_something.fetch_add(u64::from(left), Ordering::Relaxed);
                }
            });
        }
    });
    // A hundred drains that had time for everything, or for nothing, would show little.
    let left = left_something.load(Ordering::Relaxed);
    assert!((10..=95).contains(&left), "{left} of {DRAINS} left something");
}

/// Drains one service; whether it left something.
async fn drain(seed: u64) -> bool {
    let mut dice = Dice::of(seed + 1);
    let (node, server) = (Node::new(), StrictS3::start());
    let bytes_per_second = (1 << 20) * (1 + dice.below(12));
    let slow = node
        .s3_remote_with("s3", &server, 60, |settings| {
            settings.bandwidth_limit = BandwidthLimit::all_day(bytes_per_second);
            settings.max_concurrent_requests = 2;
        })
        .await;
    let plain = node.s3_remote("s3", &server, 20).await;
    let steps = 1 + dice.below(4);
    for step in 1..=steps {
        let large = 1000 + usize::try_from(dice.below(6 << 20)).unwrap();
        node.save(&format!("step_{step}"), &[("model.bin", large), ("state/rank_0.json", 300)], 20 - step);
    }
    let options = node.options(vec![slow]);
    let service = node.start(options);
    // Some point in its life, by what it has asked the store.
    let requests = usize::try_from(dice.below(14 * steps)).unwrap();
    node.until("a number of requests, or all durable", || {
        server.faults().requests().len() >= requests
            || node.recorder.lines_with("durable on s3").len() as u64 == steps
    })
    .await;
    let reason = match dice.below(3) {
        0 => StopReason::Notice("a notice of the test's".to_owned()),
        1 => StopReason::Control,
        _ => StopReason::Signal,
    };
    let deadline = Instant::now() + Duration::from_millis(1500 + dice.below(1500));
    service.ask_to_stop(reason, Some(deadline));
    let (report, ended_at) = service.ended_at();
    assert!(ended_at < deadline, "drain {seed} ended {:?} late", ended_at - deadline);
    let report = report.unwrap_or_else(|error| panic!("drain {seed}: {error}"));
    let missing: BTreeSet<StepId> = report.left.not_durable.iter().map(|left| left.id).collect();
    // A seal that outlasts the deadline may end after the report, which names the entry as not sealed.
    let unsealed = report.left.unsealed.iter();
    let unsealed: BTreeSet<String> =
        unsealed.filter_map(|entry| Some(entry.path.file_name()?.to_str()?.to_owned())).collect();
    check_words(seed, &node, &plain, &missing, &unsealed).await;
    assert_eq!(report.is_durable(), missing.is_empty() && unsealed.is_empty(), "drain {seed}");

    // What was left is what the next start goes on with, to the end.
    if seed.is_multiple_of(5) {
        let report = node.once(node.options(vec![plain.clone()]));
        assert!(report.is_durable(), "drain {seed}: {report:?}");
        assert_eq!(committed(&plain).await, sealed(&node), "drain {seed}");
    }
    !missing.is_empty()
}

/// Holds everything that was called durable against the store's bytes, and what was called left against the report.
async fn check_words(
    seed: u64,
    node: &Node,
    plain: &AgentRemote,
    missing: &BTreeSet<StepId>,
    unsealed: &BTreeSet<String>,
) {
    let remote = on_remote(plain);
    let vault = node.vault();
    let observer: std::sync::Arc<dyn Observer> = std::sync::Arc::new(SilentObserver);
    let mut called_durable = BTreeSet::new();
    for step in vault.steps(&run_name()).unwrap().steps {
        let state = step.remote_state(&plain.settings.name).unwrap();
        let noted = state.is_some_and(|state| state.state == UploadState::Durable);
        let heard = !node.recorder.lines_with(&format!("durable on s3: {}", step.id())).is_empty();
        assert!(noted || !heard, "drain {seed}: {} was said and not noted", step.id());
        // A note that was on its way when the report was made may have come after it, and is held against the store.
        let is_claimed = !missing.contains(&step.id()) && !unsealed.contains(&step.record().name);
        if noted || is_claimed {
            called_durable.insert(step.id());
        }
    }
    for id in called_durable {
        let health = check_remote(&remote, id, Depth::Deep, &observer).await.unwrap();
        assert!(health.is_sound(), "drain {seed}: {id} is not durable: {health:?}");
        assert!(health.proved_files == 2, "drain {seed}: {id}: {health:?}");
    }
    let left: BTreeSet<StepId> = read_drain(&vault, &run_name())
        .unwrap()
        .into_iter()
        .flat_map(|record| record.left)
        .map(|left| left.id)
        .collect();
    assert_eq!(left, *missing, "drain {seed}: the note says otherwise");
}
