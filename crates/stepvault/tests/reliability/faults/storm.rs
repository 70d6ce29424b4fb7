//! A store that refuses everything for a while, with or without a Retry-After.
//!
//! A slow network leads to the store, so that there is a throughput to measure: a fixed rate over all connections,
//! and at most a quarter of it on each. Once an eighth of the step has arrived, every request is refused, and some
//! time later none is. The requests are compared with those of the same command undisturbed. Bytes to the store are
//! sampled, to measure how soon after the end the previous rate is reached.
//!
//! In the full tier the refusals last five minutes. A push with the default settings gives up before, with code 12
//! after `retry-deadline`; so this one gets ten minutes. The agent needs no setting.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use stepvault_testkit::faults::{FaultAction, FaultRule};
use stepvault_testkit::network::Network;
use stepvault_testkit::process::Outcome;
use stepvault_testkit::tree::fast_directory;

use crate::faults::agent::Agent;
use crate::faults::check::{Harm, look};
use crate::faults::settings::{Settings, of_environment};
use crate::faults::tally::Tally;
use crate::faults::world::{Store, World, acknowledged_steps};

const PART_BYTES: u64 = 8 << 20;
/// The maximum of requests, relative to an undisturbed command.
const MAX_REQUESTS: f64 = 1.5;
/// The minimum throughput afterwards, relative to an undisturbed run.
const LEAST_THROUGHPUT: f64 = 0.9;
/// The time within which it must be reached.
const SOON: Duration = Duration::from_secs(30);
const SAMPLE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy)]
struct Storm {
    store: fn() -> Store,
    status: u16,
    code: &'static str,
    retry_after_seconds: Option<u64>,
    by_agent: bool,
}

/// The size and the duration of a test.
#[derive(Clone, Copy)]
struct Scale {
    parts: u64,
    lasts: Duration,
    /// The rate over all connections; each has a quarter.
    bytes_per_second: u64,
    /// The window for measuring the throughput.
    window: Duration,
    options: &'static str,
}

const SMALL_SCALE: Scale = Scale {
    parts: 16,
    lasts: Duration::from_secs(3),
    bytes_per_second: 64 << 20,
    window: Duration::from_millis(400),
    options: "&max-concurrent-requests=4",
};
const FULL_SCALE: Scale = Scale {
    parts: 64,
    lasts: Duration::from_mins(5),
    bytes_per_second: 16 << 20,
    window: Duration::from_secs(5),
    options: "",
};

/// The state of the store at a moment.
#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    bytes: u64,
}

/// The result of a command.
struct Course {
    samples: Vec<Sample>,
    requests: usize,
    /// The time when the store served requests again.
    served_again: Option<Instant>,
}

/// Writes the step: a number at the head of each part, and nothing else. It has two files, so that one of them is
/// complete before the end.
fn write(outputs: &Path, parts: u64) {
    let step = outputs.join("step_1");
    fs::create_dir_all(&step).unwrap();
    for name in ["model.bin", "optimizer.bin"] {
        let file = fs::File::create(step.join(name)).unwrap();
        file.set_len(parts / 2 * PART_BYTES).unwrap();
        for part in 0..parts / 2 {
            file.write_all_at(&(part + 1).to_le_bytes(), part * PART_BYTES).unwrap();
        }
    }
}

/// The process that uploads the step.
enum Courier {
    Push(std::thread::JoinHandle<Outcome>),
    Agent(Agent),
}

impl Courier {
    fn start(world: &World, by_agent: bool) -> Self {
        if by_agent {
            return Self::Agent(Agent::start(world));
        }
        let order = world.push(1);
        Self::Push(std::thread::spawn(move || order.start().wait_within(Duration::from_mins(20))))
    }

    /// Returns whether the step is durable.
    fn is_done(&mut self) -> Result<bool, Harm> {
        match self {
            Self::Push(push) => Ok(push.is_finished()),
            Self::Agent(agent) => {
                agent.lives()?;
                Ok(agent.count(&["step 1 (attempt 1) is durable"]) > 0)
            }
        }
    }

    fn end(self) -> Result<(), Harm> {
        match self {
            Self::Push(push) => {
                let ran = push.join().unwrap();
                let well = ran.code == 0 && acknowledged_steps(&ran, "store") == [1];
                well.then_some(()).ok_or_else(|| Harm::Stuck(format!("{ran:?}")))
            }
            Self::Agent(mut agent) => {
                agent.end();
                Ok(())
            }
        }
    }
}

impl Storm {
    fn name(&self, store: &str) -> String {
        format!(
            "{} to {store}, {} {}, {}",
            if self.by_agent { "agent" } else { "push" },
            self.status,
            self.code,
            self.retry_after_seconds
                .map_or_else(|| "no Retry-After".to_owned(), |seconds| format!("Retry-After: {seconds}")),
        )
    }

    /// Uploads the step to an empty store, disturbed or not.
    fn course(&self, root: &Path, scale: Scale, disturbed: bool) -> Result<Course, Harm> {
        let mut world = World::of(root, (self.store)(), &[]);
        write(&world.root.join("outputs"), scale.parts);
        let network = Network::to(world.store.address());
        network.limit(Some(scale.bytes_per_second), Some(scale.bytes_per_second / 4));
        world.way = Some(network.address());
        scale.options.clone_into(&mut world.options);
        if !self.by_agent {
            world.options.push_str("&retry-deadline=10m");
        }
        let faults = world.store.faults();
        let begin_at = scale.parts * PART_BYTES / 8;
        let mut courier = Courier::start(&world, self.by_agent);
        let mut samples = Vec::new();
        let (mut refused_since, mut served_again) = (None, None);
        let begun = Instant::now();
        loop {
            let (at, bytes) = (Instant::now(), network.carried().to_server_bytes);
            samples.push(Sample { at, bytes });
            if courier.is_done()? {
                break;
            }
            if disturbed && refused_since.is_none() && bytes >= begin_at {
                faults.add(FaultRule {
                    method: None,
                    path_contains: String::new(),
                    skip: 0,
                    times: u64::MAX,
                    action: FaultAction::Refuse {
                        status: self.status,
                        retry_after_seconds: self.retry_after_seconds,
                        code: self.code.to_owned(),
                    },
                });
                refused_since = Some(Instant::now());
            }
            if served_again.is_none()
                && refused_since.is_some_and(|refused_since| refused_since.elapsed() >= scale.lasts)
            {
                faults.clear();
                served_again = Some(Instant::now());
            }
            if begun.elapsed() > Duration::from_mins(20) {
                return Err(Harm::Stuck("the step is not durable after 20 minutes".to_owned()));
            }
            std::thread::sleep(SAMPLE);
        }
        let requests = faults.requests().len();
        courier.end()?;
        world.way = None;
        let found = look(&world, "store").map_err(Harm::Lost)?;
        if found.sound() != [1].into() {
            return Err(Harm::Torn(found.said));
        }
        Ok(Course { samples, requests, served_again })
    }
}

#[allow(clippy::cast_precision_loss, reason = "rates for people")]
impl Course {
    /// Returns the number of bytes received until then.
    fn bytes_at(&self, at: Instant) -> f64 {
        let before = self.samples.iter().rfind(|sample| sample.at <= at);
        before.map_or(0.0, |sample| sample.bytes as f64)
    }

    /// Returns the bytes per second in the middle of the transfer.
    fn rate(&self) -> f64 {
        let all = self.samples.last().map_or(0, |last| last.bytes) as f64;
        let when = |share: f64| {
            let reached = self.samples.iter().find(|sample| sample.bytes as f64 >= share * all);
            reached.unwrap().at
        };
        let (from, to) = (when(0.2), when(0.8));
        (self.bytes_at(to) - self.bytes_at(from)) / (to - from).as_secs_f64()
    }

    /// Returns how long after the store served requests again a window with at least this rate began.
    fn recovered(&self, rate: f64, window: Duration) -> Option<Duration> {
        let from = self.served_again?;
        let last = self.samples.last()?.at;
        let mut starts = self.samples.iter().map(|sample| sample.at);
        starts
            .find(|at| {
                let until = *at + window;
                *at >= from
                    && until <= last
                    && self.bytes_at(until) - self.bytes_at(*at) >= rate * window.as_secs_f64()
            })
            .map(|at| at - from)
    }
}

fn weather(storm: Storm, settings: &Settings) -> Tally {
    let scale = if settings.full { FULL_SCALE } else { SMALL_SCALE };
    let place = fast_directory();
    let name = (storm.store)().name();
    let mut tally = Tally::new("Storms", &storm.name(name), 0);
    (tally.runs, tally.faults, tally.acknowledged) = (1, 1, 1);
    let calm = storm.course(&place.path().join("calm"), scale, false);
    let rough = calm.and_then(|calm| {
        let rough = storm.course(&place.path().join("rough"), scale, true)?;
        Ok((calm, rough))
    });
    let (calm, rough) = match rough {
        Ok(courses) => courses,
        Err(harm) => {
            tally.harmed(name, harm);
            return tally;
        }
    };
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    let requests = rough.requests as f64 / calm.requests as f64;
    let recovered = rough.recovered(LEAST_THROUGHPUT * calm.rate(), scale.window);
    tally.note = format!(
        "{} parts, {} s; {} requests, and {} undisturbed ({requests:.2}); 90 % of {:.1} parts a second {}",
        scale.parts,
        scale.lasts.as_secs(),
        rough.requests,
        calm.requests,
        calm.rate() / 8_388_608.0,
        recovered.map_or_else(
            || "not reached again".to_owned(),
            |after| format!("{:.1} s after the end", after.as_secs_f64())
        ),
    );
    // The delay proves nothing on a machine as loaded as that of the small tier.
    let late = settings.full && recovered.is_none_or(|after| after > SOON);
    if requests > MAX_REQUESTS || late {
        tally.harmed(name, Harm::Stuck(tally.note.clone()));
    }
    tally
}

fn passes(storm: Storm) {
    let tally = weather(storm, &of_environment());
    tally.report();
    tally.assert_no_harm();
}

#[test]
fn a_push_to_s3_outlasts_a_storm() {
    passes(Storm {
        store: Store::s3,
        status: 503,
        code: "SlowDown",
        retry_after_seconds: None,
        by_agent: false,
    });
}

#[test]
fn an_agent_outlasts_a_storm_of_s3_that_says_when_to_come_back() {
    passes(Storm {
        store: Store::s3,
        status: 503,
        code: "SlowDown",
        retry_after_seconds: Some(2),
        by_agent: true,
    });
}

#[test]
fn an_agent_outlasts_a_storm_of_gcs() {
    passes(Storm {
        store: Store::gcs,
        status: 429,
        code: "rateLimitExceeded",
        retry_after_seconds: None,
        by_agent: true,
    });
}

#[test]
fn a_push_to_gcs_outlasts_a_storm_that_says_when_to_come_back() {
    passes(Storm {
        store: Store::gcs,
        status: 503,
        code: "backendError",
        retry_after_seconds: Some(1),
        by_agent: false,
    });
}
