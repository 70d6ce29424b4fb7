//! Measures each remote's recent upload throughput.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stepvault_core::{Event, RemoteName, Tier};
use tokio::time::Instant;

/// Length of the measured upload time. Long enough for slow remotes, whose parts complete in bursts.
const WINDOW: Duration = Duration::from_mins(1);
/// Transfers within this time are recorded together.
const GRAIN: Duration = Duration::from_millis(250);
/// Minimum time for a measurement: the first bytes may be sent in a burst.
const SHORTEST: Duration = Duration::from_secs(1);

/// The upload throughput of all remotes.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    meters: Mutex<BTreeMap<RemoteName, Meter>>,
}

/// The meter of one remote. Its clock runs only during uploads.
#[derive(Debug, Default)]
struct Meter {
    busy: usize,
    busy_since: Option<Instant>,
    busy_before: Duration,
    /// Bytes that were sent; negative where a repeated request started again.
    moved: VecDeque<(Duration, i64)>,
    in_flight_bytes: i64,
}

impl Meter {
    fn clock(&self, now: Instant) -> Duration {
        let running = self.busy_since.map(|since| now.saturating_duration_since(since));
        self.busy_before + running.unwrap_or_default()
    }

    fn begin(&mut self, now: Instant) {
        self.busy += 1;
        self.busy_since.get_or_insert(now);
    }

    fn end(&mut self, now: Instant) {
        self.busy = self.busy.saturating_sub(1);
        if self.busy == 0 {
            self.busy_before = self.clock(now);
            self.busy_since = None;
        }
    }

    fn moved(&mut self, now: Instant, bytes: i64) {
        let clock = self.clock(now);
        match self.moved.back_mut() {
            Some((time, sum)) if clock.saturating_sub(*time) < GRAIN => *sum = sum.saturating_add(bytes),
            _ => self.moved.push_back((clock, bytes)),
        }
        let oldest = clock.saturating_sub(WINDOW);
        while self.moved.front().is_some_and(|(time, _)| *time < oldest) {
            self.moved.pop_front();
        }
    }

    fn bytes_per_second(&self, now: Instant) -> Option<u64> {
        let clock = self.clock(now);
        let window = clock.min(WINDOW);
        let oldest = clock.saturating_sub(window);
        let recent = self.moved.iter().filter(|(time, _)| *time >= oldest);
        let moved = u64::try_from(recent.map(|(_, bytes)| *bytes).sum::<i64>()).unwrap_or(0);
        if moved == 0 || window < SHORTEST {
            return None;
        }
        let rate = u128::from(moved) * 1000 / window.as_millis();
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

/// Marks an upload to a remote as running until dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    throughput: Arc<Throughput>,
    remote: RemoteName,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.throughput.with(&self.remote, |meter| meter.end(Instant::now()));
    }
}

impl Throughput {
    fn with<T>(&self, remote: &RemoteName, work: impl FnOnce(&mut Meter) -> T) -> T {
        let mut meters = self.meters.lock();
        work(meters.entry(remote.clone()).or_default())
    }

    /// Marks an upload to this remote as running.
    pub(crate) fn busy(self: &Arc<Self>, remote: &RemoteName) -> Busy {
        self.with(remote, |meter| meter.begin(Instant::now()));
        Busy { throughput: Arc::clone(self), remote: remote.clone() }
    }

    /// Returns the bytes of parts that were sent and are not acknowledged yet.
    pub(crate) fn in_flight_bytes(&self, remote: &RemoteName) -> u64 {
        self.with(remote, |meter| u64::try_from(meter.in_flight_bytes).unwrap_or(0))
    }

    /// Returns the remote's recent bytes per second of upload time; `None` if nothing was sent.
    pub(crate) fn bytes_per_second(&self, remote: &RemoteName) -> Option<u64> {
        self.with(remote, |meter| meter.bytes_per_second(Instant::now()))
    }

    /// Counts the bytes of an event.
    pub(crate) fn count(&self, event: &Event<'_>) {
        match event {
            Event::BytesMoved { tier: Tier::Remote(remote), bytes } => {
                let bytes = i64::try_from(*bytes).unwrap_or(i64::MAX);
                self.with(remote, |meter| meter.moved(Instant::now(), bytes));
            }
            Event::BytesInFlight { tier: Tier::Remote(remote), change_bytes } => self.with(remote, |meter| {
                meter.in_flight_bytes += change_bytes;
                meter.moved(Instant::now(), *change_bytes);
            }),
            // They took the link's time all the same.
            Event::BytesGivenUp { tier: Tier::Remote(remote), bytes } => {
                self.with(remote, |meter| meter.in_flight_bytes -= bytes.cast_signed());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begun: Instant, seconds: u64) -> Instant {
        begun + Duration::from_secs(seconds)
    }

    #[test]
    fn only_time_spent_uploading_counts_and_only_the_latest_of_it() {
        let (mut meter, begun) = (Meter::default(), Instant::now());
        assert_eq!(meter.bytes_per_second(begun), None);
        meter.begin(begun);
        assert_eq!(meter.bytes_per_second(at(begun, 5)), None, "nothing moved");
        meter.moved(at(begun, 10), 1000);
        assert_eq!(meter.bytes_per_second(at(begun, 10)), Some(100));
        meter.end(at(begun, 10));
        // Idle for an hour.
        assert_eq!(meter.bytes_per_second(at(begun, 3610)), Some(100));
        meter.begin(at(begun, 3610));
        for second in 1..=60 {
            meter.moved(at(begun, 3610 + second), 10);
        }
        assert_eq!(meter.bytes_per_second(at(begun, 3670)), Some((1000 + 600) / 60));
        meter.moved(at(begun, 3671), 10);
        assert_eq!(meter.bytes_per_second(at(begun, 3671)), Some(10));
        assert_eq!(meter.bytes_per_second(at(begun, 4000)), None, "it has stalled");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut meter, begun) = (Meter::default(), Instant::now());
        meter.begin(begun);
        for millisecond in 0..200_000 {
            meter.moved(begun + Duration::from_millis(millisecond), 1);
        }
        assert!(meter.moved.len() <= 241, "{}", meter.moved.len());
    }

    #[test]
    fn each_remote_has_its_own() {
        let throughput = Arc::new(Throughput::default());
        let (main, other) = ("main".parse::<RemoteName>().unwrap(), "other".parse().unwrap());
        let busy = throughput.busy(&main);
        throughput.with(&main, |meter| {
            meter.busy_before = Duration::from_secs(9);
        });
        throughput.count(&Event::BytesMoved { tier: &Tier::Remote(main.clone()), bytes: 90_000 });
        drop(busy);
        let rate = throughput.bytes_per_second(&main).unwrap();
        assert!((1000..=10_000).contains(&rate), "{rate}");
        assert_eq!(throughput.bytes_per_second(&other), None);
    }
}
