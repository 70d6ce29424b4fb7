//! Whether something keeps the service from its work.

use std::sync::PoisonError;
use std::time::Duration;

use stepvault_core::ids::{RemoteName, RunName, StepId};
use tokio::time::Instant;

use super::Metrics;
use crate::board::RemotePulse;
use crate::control::Desk;

/// A required remote may be away for this long.
const AWAY_FOR: Duration = Duration::from_mins(5);
/// An upload may stand still for this long.
const STILL_FOR: Duration = Duration::from_mins(15);

/// What is known of one run on one remote.
struct Facts<'a> {
    run: &'a RunName,
    remote: &'a RemoteName,
    pulse: RemotePulse,
    uploading: Option<StepId>,
    last_error: Option<String>,
    /// When bytes last moved to the remote, of any run.
    moved_at: Option<Instant>,
}

impl Metrics {
    /// What keeps the service from its work, in words; empty when nothing does.
    pub(crate) fn complaints(&self, desk: &Desk) -> Vec<String> {
        let moved_at = self
            .moved_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let board = &desk.shared.board;
        let mut complaints = Vec::new();
        for served in &desk.runs {
            let some_required = served.remotes.iter().any(|remote| remote.settings.required);
            let counted = served
                .remotes
                .iter()
                .filter(|remote| remote.settings.required || !some_required);
            for remote in counted {
                let (uploading, last_error, _) = board.on_remote(&served.run, remote.name());
                let facts = Facts {
                    run: &served.run,
                    remote: remote.name(),
                    pulse: board.pulse(&served.run, remote.name()),
                    uploading,
                    last_error,
                    moved_at: moved_at.get(remote.name()).copied(),
                };
                complaints.extend(facts.complaint());
            }
        }
        complaints
    }
}

impl Facts<'_> {
    fn complaint(&self) -> Option<String> {
        let (run, remote) = (self.run, self.remote);
        if let Some(since) = self.pulse.failing_since
            && since.elapsed() >= AWAY_FOR
        {
            let seconds = since.elapsed().as_secs();
            let why = self.last_error.as_deref().unwrap_or("no reason was given");
            return Some(format!(
                "{run}: uploads to {remote} have failed for {seconds} s: {why}"
            ));
        }
        let id = self.uploading?;
        let moved_at = self.pulse.moved_at.into_iter().chain(self.moved_at).max()?;
        (moved_at.elapsed() >= STILL_FOR).then(|| {
            let seconds = moved_at.elapsed().as_secs();
            format!("{run}: the upload of {id} to {remote} has stood still for {seconds} s")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said after `later`, where it is `uploading`, or the remote fails, from now on.
    async fn said_after(
        later: Duration,
        fails: bool,
        uploading: bool,
        moves_after: Option<Duration>,
    ) -> Option<String> {
        let (run, remote) = ("demo/a".parse().unwrap(), "main".parse().unwrap());
        let begun = Instant::now();
        let facts = Facts {
            run: &run,
            remote: &remote,
            pulse: RemotePulse {
                failing_since: fails.then_some(begun),
                moved_at: Some(begun),
                ..RemotePulse::default()
            },
            uploading: uploading.then(|| StepId::from_label("000000000007.a1").unwrap()),
            last_error: Some("cannot reach it".to_owned()),
            moved_at: moves_after.map(|after| begun + after),
        };
        tokio::time::advance(later).await;
        facts.complaint()
    }

    #[tokio::test(start_paused = true)]
    async fn a_remote_may_be_away_for_a_while() {
        assert_eq!(said_after(AWAY_FOR / 2, true, false, None).await, None);
        assert_eq!(
            said_after(AWAY_FOR, true, false, None).await.unwrap(),
            "demo/a: uploads to main have failed for 300 s: cannot reach it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_moves_is_well_however_long_it_takes() {
        assert_eq!(said_after(STILL_FOR, false, false, None).await, None);
        assert_eq!(
            said_after(STILL_FOR, false, true, Some(STILL_FOR / 2)).await,
            None
        );
        assert_eq!(
            said_after(STILL_FOR, false, true, None).await.unwrap(),
            "demo/a: the upload of step 7 (attempt 1) to main has stood still for 900 s"
        );
    }
}
