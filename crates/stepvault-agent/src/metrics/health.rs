//! Health check: detects problems that keep the service from its work.

use std::sync::PoisonError;
use std::time::Duration;

use stepvault_core::ids::{RemoteName, RunName};
use stepvault_engine::tier::run_remote::RunRemote;
use tokio::time::Instant;

use super::Metrics;
use crate::agent_status::RemoteState;

/// How long a required remote may be unreachable.
const AWAY_FOR: Duration = Duration::from_mins(5);
/// How long an upload may make no progress.
const STILL_FOR: Duration = Duration::from_mins(15);

/// The state of one run on one remote.
struct Facts<'a> {
    run: &'a RunName,
    remote: &'a RemoteName,
    state: RemoteState,
    /// When bytes were last sent to the remote, for any run.
    moved_at: Option<Instant>,
}

impl Metrics {
    /// Returns the problems that keep the service from its work; empty when there are none.
    pub(crate) fn problems(&self) -> Vec<String> {
        let moved_at = self.moved_at.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut problems = Vec::new();
        for served in self.runs.iter() {
            let is_required = |remote: &&RunRemote| remote.settings.required;
            let some_required = served.remotes.iter().any(|remote| is_required(&remote));
            let counted = served.remotes.iter();
            for remote in counted.filter(|remote| is_required(remote) || !some_required) {
                let facts = Facts {
                    run: served.name(),
                    remote: remote.name(),
                    state: self.status.remote(served.name(), remote.name()),
                    moved_at: moved_at.get(remote.name()).copied(),
                };
                problems.extend(facts.problem());
            }
        }
        problems
    }
}

impl Facts<'_> {
    fn problem(&self) -> Option<String> {
        let (run, remote) = (self.run, self.remote);
        if let Some(since) = self.state.failing_since
            && since.elapsed() >= AWAY_FOR
        {
            let seconds = since.elapsed().as_secs();
            let fault = self.state.fault.as_ref();
            let why = fault.map_or("unknown cause", |fault| &fault.reason);
            return Some(format!("{run}: uploads to {remote} have failed for {seconds} s: {why}"));
        }
        let id = self.state.uploading?;
        let moved_at = self.state.moved_at.into_iter().chain(self.moved_at).max()?;
        (moved_at.elapsed() >= STILL_FOR).then(|| {
            let seconds = moved_at.elapsed().as_secs();
            format!("{run}: the upload of {id} to {remote} has not progressed for {seconds} s")
        })
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::ids::StepId;

    use super::*;
    use crate::agent_status::Trouble;

    /// Returns the problem reported after `later`, if from now on it is `uploading`, or the remote fails.
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
            state: RemoteState {
                uploading: uploading.then(|| StepId::from_label("000000000007.a1").unwrap()),
                fault: Some(Trouble::waiting("cannot reach it".to_owned())),
                failing_since: fails.then_some(begun),
                moved_at: Some(begun),
                ..RemoteState::default()
            },
            moved_at: moves_after.map(|after| begun + after),
        };
        tokio::time::advance(later).await;
        facts.problem()
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
        assert_eq!(said_after(STILL_FOR, false, true, Some(STILL_FOR / 2)).await, None);
        assert_eq!(
            said_after(STILL_FOR, false, true, None).await.unwrap(),
            "demo/a: the upload of step 7 (attempt 1) to main has not progressed for 900 s"
        );
    }
}
