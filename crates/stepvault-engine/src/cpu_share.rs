//! A share of the processors that uploads leave to the trainer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The resolution of the timer.
const SHORTEST_NAP: Duration = Duration::from_millis(1);
/// The longest sleep of a waiting part, after which it is seen whether the share was lifted.
const LONGEST_NAP: Duration = Duration::from_millis(200);
/// For so long the whole share may be saved up, or be owed for what was used beside file parts.
const LONGEST_ACCOUNT: Duration = Duration::from_secs(2);
/// What reading, hashing and sending takes, as measured with SHA-256 (`docs/benchmarks.md`): a part is charged so much when
/// it begins, since its real cost is only seen later.
const EXPECTED_SECONDS_OF_A_GIB: f64 = 1.25;
/// In this time, half of what was charged for parts and not used is given back.
const HALF_LIFE: Duration = Duration::from_secs(2);

/// Lets file parts begin only while this process takes no more than its share of the processors' time. Cheap to clone;
/// all clones have one account.
///
/// The whole process counts, and only file parts wait: sealing must keep up with the trainer.
#[derive(Debug, Clone)]
pub struct CpuShare {
    /// Processors, as a fraction of which the last may be used.
    processors: f64,
    is_lifted: Arc<AtomicBool>,
    /// Held by the part that waits first.
    account: Arc<Mutex<Account>>,
    cpu_time: fn() -> Duration,
}

#[derive(Debug)]
struct Account {
    read_at: Instant,
    cpu_time: Duration,
    /// Seconds of a processor that may still be used.
    balance_seconds: f64,
    /// Seconds that parts were charged for and that were not used since.
    charged_seconds: f64,
}

impl CpuShare {
    /// Returns a share of the processors that this process may run on, in percent.
    pub fn new(percent: u8) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let processors = f64::from(u32::try_from(processors).unwrap_or(u32::MAX));
        Self::with_clock(f64::from(percent) / 100.0 * processors, process_cpu_time)
    }

    /// Returns the share without a limit.
    pub fn unlimited() -> Self {
        let share = Self::new(100);
        share.lift();
        share
    }

    fn with_clock(processors: f64, cpu_time: fn() -> Duration) -> Self {
        let account = Account {
            read_at: Instant::now(),
            cpu_time: cpu_time(),
            balance_seconds: 0.0,
            charged_seconds: 0.0,
        };
        Self { processors, is_lifted: Arc::default(), account: Arc::new(Mutex::new(account)), cpu_time }
    }

    /// Ends the limit: the trainer has ended, or the machine will be gone soon.
    pub fn lift(&self) {
        self.is_lifted.store(true, Ordering::Relaxed);
    }

    /// Waits until a part of `bytes` may begin. Parts begin in turn.
    pub async fn turn(&self, bytes: u64) {
        if self.is_lifted.load(Ordering::Relaxed) {
            return;
        }
        let mut account = self.account.lock().await;
        while !self.is_lifted.load(Ordering::Relaxed) {
            let missing_seconds = self.missing_seconds(&mut account);
            if missing_seconds <= 0.0 {
                // Parts are far smaller than 2^52 bytes.
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let expected_seconds = bytes as f64 / f64::from(1 << 30) * EXPECTED_SECONDS_OF_A_GIB;
                account.balance_seconds -= expected_seconds;
                account.charged_seconds += expected_seconds;
                return;
            }
            let wait = Duration::from_secs_f64(missing_seconds / self.processors);
            tokio::time::sleep(wait.clamp(SHORTEST_NAP, LONGEST_NAP)).await;
        }
    }

    /// Credits the time since the last call and debits what the process has used; returns what is missing.
    fn missing_seconds(&self, account: &mut Account) -> f64 {
        let (now, cpu_time) = (Instant::now(), (self.cpu_time)());
        let earned = (now - account.read_at).as_secs_f64() * self.processors;
        let used = cpu_time.saturating_sub(account.cpu_time).as_secs_f64();
        let used_for_parts = used.min(account.charged_seconds);
        let not_used = account.charged_seconds - used_for_parts;
        let half_lives = (now - account.read_at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        account.charged_seconds = not_used * 0.5_f64.powf(half_lives);
        let given_back = not_used - account.charged_seconds;
        let most = LONGEST_ACCOUNT.as_secs_f64() * self.processors;
        let balance_seconds = account.balance_seconds + earned + given_back;
        // What was used beside parts is owed for a bounded time; what parts were charged for is always paid.
        let beside = (used - used_for_parts).min(most);
        account.balance_seconds = (balance_seconds - beside).min(most);
        (account.read_at, account.cpu_time) = (now, cpu_time);
        -account.balance_seconds
    }
}

/// Returns the processor time of all threads of this process since it began.
fn process_cpu_time() -> Duration {
    // Both are never negative.
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn parts_begin_as_fast_as_their_processor_time_is_earned_until_the_share_is_lifted() {
        static USED_MILLISECONDS: AtomicU64 = AtomicU64::new(0);
        let share =
            CpuShare::with_clock(0.5, || Duration::from_millis(USED_MILLISECONDS.load(Ordering::Relaxed)));
        // Each takes 100 ms of a processor, which is seen only after all have begun.
        let bytes = 85_899_346;
        assert!((f64::from(85_899_346) / f64::from(1 << 30) * EXPECTED_SECONDS_OF_A_GIB - 0.1).abs() < 1e-6);
        let begun = Instant::now();
        for _ in 0..20 {
            share.turn(bytes).await;
        }
        USED_MILLISECONDS.fetch_add(2_000, Ordering::Relaxed);
        for _ in 0..80 {
            share.turn(bytes).await;
            USED_MILLISECONDS.fetch_add(100, Ordering::Relaxed);
        }
        // The last part's time is not paid for, and some is given back while parts are slow to use theirs.
        let seconds = begun.elapsed().as_secs_f64();
        assert!((17.0..20.0).contains(&seconds), "{seconds}");

        let waiting = share.turn(bytes);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        share.lift();
        let begun = Instant::now();
        waiting.await;
        share.turn(bytes).await;
        assert!(begun.elapsed() <= LONGEST_NAP);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_used_outside_of_parts_is_owed_for_a_bounded_time() {
        static USED_SECONDS: AtomicU64 = AtomicU64::new(0);
        let share = CpuShare::with_clock(1.0, || Duration::from_secs(USED_SECONDS.load(Ordering::Relaxed)));
        USED_SECONDS.store(1_000, Ordering::Relaxed);
        let begun = Instant::now();
        share.turn(1).await;
        assert_eq!(begun.elapsed().as_secs(), LONGEST_ACCOUNT.as_secs());
    }

    #[test]
    fn the_processes_own_time_grows_with_its_work() {
        let before = process_cpu_time();
        let mut sum = 0_u64;
        while process_cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
