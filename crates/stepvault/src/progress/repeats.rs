//! Suppresses repeated messages about operations that keep failing in the same way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stepvault_core::ErrorKind;
use stepvault_core::ids::StepId;
use stepvault_core::observe::Tier;

const TOLD_AGAIN_AFTER: Duration = Duration::from_mins(5);
/// When this many failures are remembered, all are forgotten and reported anew.
const REMEMBERED: usize = 256;

/// The operations that failed recently, and when that was reported.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    failing: BTreeMap<(Tier, StepId), (ErrorKind, Instant)>,
}

impl Repeats {
    /// Returns whether to report the start of an operation: not if its failure was reported recently.
    pub(super) fn tells_of_start(&self, tier: &Tier, id: StepId, now: Instant) -> bool {
        let known = self.failing.get(&(tier.clone(), id));
        known.is_none_or(|(_, told)| now.saturating_duration_since(*told) >= TOLD_AGAIN_AFTER)
    }

    /// Records a failure; returns whether to report it.
    pub(super) fn tells_of_failure(
        &mut self,
        tier: &Tier,
        id: StepId,
        kind: ErrorKind,
        now: Instant,
    ) -> bool {
        let known = self.failing.get(&(tier.clone(), id));
        let is_news = known.is_none_or(|(before, told)| {
            *before != kind || now.saturating_duration_since(*told) >= TOLD_AGAIN_AFTER
        });
        if is_news {
            if self.failing.len() >= REMEMBERED {
                self.failing.clear();
            }
            self.failing.insert((tier.clone(), id), (kind, now));
        }
        is_news
    }

    /// Records a success.
    pub(super) fn succeeded(&mut self, tier: &Tier, id: StepId) {
        self.failing.remove(&(tier.clone(), id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_failure_is_told_once_and_after_a_while_again() {
        let (tier, id) = (Tier::Local, StepId::from_label("000000000100.a1").unwrap());
        let other = StepId::from_label("000000000200.a1").unwrap();
        let mut repeats = Repeats::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(repeats.tells_of_start(&tier, id, at(0)));
        assert!(repeats.tells_of_failure(&tier, id, ErrorKind::NoSpace, at(0)));
        assert!(!repeats.tells_of_start(&tier, id, at(5)));
        assert!(!repeats.tells_of_failure(&tier, id, ErrorKind::NoSpace, at(5)));
        assert!(repeats.tells_of_start(&tier, other, at(5)));
        assert!(repeats.tells_of_failure(&tier, id, ErrorKind::Denied, at(6)), "another reason");
        assert!(repeats.tells_of_start(&tier, id, at(400)));
        assert!(repeats.tells_of_failure(&tier, id, ErrorKind::Denied, at(400)));
        repeats.succeeded(&tier, id);
        assert!(repeats.tells_of_start(&tier, id, at(401)));
    }
}
