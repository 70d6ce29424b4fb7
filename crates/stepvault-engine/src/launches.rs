//! Which attempt a launch writes: agreed by all nodes through records that are created once.
//!
//! The run's first remote is where they agree, however many remotes there are: numbers that were given out in two places
//! would not be the same. A node keeps what it learned in its vault, so that the remote is asked once for a launch.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use stepvault_core::attempts::LaunchSpan;
use stepvault_core::codec::FORMAT;
use stepvault_core::ids::{Attempt, StepId};
use stepvault_core::keys::KeyKind;
use stepvault_core::launch::{LaunchName, LaunchRecord, attempt_of};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::vault::Vault;

use crate::blocking::blocking;
use crate::run_remote::RunRemote;

/// Of launches longer ago than so many nobody is left.
const RECORDS_READ: usize = 64;
const PARALLEL_READS: usize = 32;
/// How often a number may be taken by another launch between the look and the record.
const TRIES: usize = 32;
/// The spans that a vault remembers.
const SPANS_KEPT: usize = 256;
const NOTE: &str = "launches";

/// A launch that this node has been part of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Span {
    launch: LaunchName,
    attempt: Attempt,
    /// By this node's clock.
    since: Timestamp,
}

/// The attempts of a run's launches, as one node knows them.
#[derive(Debug)]
pub(crate) struct Launches<'a> {
    vault: Option<&'a Vault>,
    /// Where nodes agree.
    remote: &'a RunRemote,
    spans: Vec<Span>,
}

impl<'a> Launches<'a> {
    /// What is remembered here.
    pub(crate) async fn open(vault: Option<&'a Vault>, remote: &'a RunRemote) -> Result<Self> {
        let mut spans = Vec::new();
        if let Some(vault) = vault {
            let (vault, run) = (vault.clone(), remote.keys.run().clone());
            let note = blocking(move || vault.read_note(&run, NOTE)).await?;
            // A note that cannot be read is asked for again.
            spans = note
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .unwrap_or_default();
        }
        Ok(Self { vault, remote, spans })
    }

    /// The attempts this node has been part of, the latest last.
    pub(crate) fn spans(&self) -> Vec<LaunchSpan> {
        let span = |span: &Span| LaunchSpan {
            attempt: span.attempt,
            since: span.since,
        };
        self.spans.iter().map(span).collect()
    }

    /// The attempt of `launch`, which this node joins now if it has not before.
    ///
    /// # Errors
    /// When it is not known here and the remote cannot be asked.
    pub(crate) async fn join(&mut self, launch: &LaunchName, now: Timestamp) -> Result<Attempt> {
        if let Some(span) = self.spans.last().filter(|span| span.launch == *launch) {
            return Ok(span.attempt);
        }
        let attempt = self.agree(launch, None).await?;
        self.remember(launch, attempt, now).await?;
        Ok(attempt)
    }

    /// The attempt of `launch`, if it has one already.
    pub(crate) async fn known(&self, launch: &LaunchName) -> Result<Option<Attempt>> {
        if let Some(span) = self.spans.last().filter(|span| span.launch == *launch) {
            return Ok(Some(span.attempt));
        }
        let (records, _) = self.look().await?;
        Ok(attempt_of(&records, launch, None))
    }

    /// The attempt that `launch` goes on with after it went back and saved `over` again, at `written_at`.
    pub(crate) async fn go_back(
        &mut self,
        launch: &LaunchName,
        over: StepId,
        written_at: Timestamp,
    ) -> Result<Attempt> {
        let attempt = self.agree(launch, Some(over)).await?;
        self.remember(launch, attempt, written_at).await?;
        Ok(attempt)
    }

    /// Finds the launch's record, or creates it under the first number that nothing has used.
    async fn agree(&self, launch: &LaunchName, over: Option<StepId>) -> Result<Attempt> {
        for _ in 0..TRIES {
            // Before the records are looked at: an agent beside this process may join the launch at any moment, and seal.
            let local = self.highest_locally().await?;
            let (records, highest) = self.look().await?;
            if let Some(attempt) = attempt_of(&records, launch, over.map(|id| id.attempt)) {
                return Ok(attempt);
            }
            let attempt = match highest.max(local) {
                Some(used) => used.next()?,
                None => Attempt::FIRST,
            };
            let record = LaunchRecord {
                format: FORMAT,
                run: self.remote.keys.run().clone(),
                attempt,
                launch: launch.clone(),
                went_back_over: over,
            };
            let key = self.remote.keys.launch(attempt);
            match self.remote.create_record(&key, &record).await {
                Ok(_) => return Ok(attempt),
                // Another launch was faster; or another node of this one, which went back over another step.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
        }
        Err(
            Error::new(ErrorKind::Failed, "cannot get an attempt for the launch")
                .on(format!("launch '{launch}'"))
                .because(format!("other launches took {TRIES} numbers in a row"))
                .hint("try again; or give the attempt with STEPVAULT_ATTEMPT"),
        )
    }

    /// The latest launch records, and the highest attempt that anything on the remote has.
    ///
    /// # Invariants
    /// Of every attempt found in use the launch's record has been looked for after that, and was written before it:
    /// this launch's own attempt is never taken for another launch's.
    async fn look(&self) -> Result<(Vec<LaunchRecord>, Option<Attempt>)> {
        let remote = self.remote;
        let mut used = BTreeSet::new();
        let mut given = BTreeSet::new();
        for prefix in [
            remote.keys.commits_prefix(),
            remote.keys.claims_prefix(),
            remote.keys.tombstones_prefix(),
            remote.keys.launches_prefix(),
        ] {
            for object in remote.list(&prefix).await? {
                match remote.keys.classify(&object.key) {
                    Some(KeyKind::Launch(attempt)) => {
                        given.insert(attempt);
                        used.insert(attempt);
                    }
                    Some(KeyKind::Commit(id) | KeyKind::Claim(id) | KeyKind::Tombstone(id)) => {
                        used.insert(id.attempt);
                    }
                    _ => {}
                }
            }
        }
        let latest = given.into_iter().rev().take(RECORDS_READ);
        let records: Vec<Option<LaunchRecord>> = stream::iter(latest)
            .map(|attempt| async move {
                let key = remote.keys.launch(attempt);
                match remote.read_record::<LaunchRecord>(&key).await {
                    Ok(found) => Ok(found
                        .map(|(record, _)| record)
                        .filter(|record| record.attempt == attempt)),
                    Err(error) if crate::catalog::is_outage(&error) => Err(error),
                    // Its number is spent all the same.
                    Err(_) => Ok(None),
                }
            })
            .buffered(PARALLEL_READS)
            .try_collect()
            .await?;
        Ok((records.into_iter().flatten().collect(), used.pop_last()))
    }

    async fn highest_locally(&self) -> Result<Option<Attempt>> {
        let Some(vault) = self.vault.cloned() else {
            return Ok(None);
        };
        let run = self.remote.keys.run().clone();
        let scan = blocking(move || vault.steps(&run)).await?;
        Ok(scan.steps.iter().map(|step| step.id().attempt).max())
    }

    async fn remember(&mut self, launch: &LaunchName, attempt: Attempt, since: Timestamp) -> Result<()> {
        self.spans.push(Span {
            launch: launch.clone(),
            attempt,
            since,
        });
        let surplus = self.spans.len().saturating_sub(SPANS_KEPT);
        self.spans.drain(..surplus);
        let Some(vault) = self.vault.cloned() else {
            return Ok(());
        };
        let bytes = serde_json::to_vec(&self.spans)
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot encode a note").caused_by(error))?;
        let run = self.remote.keys.run().clone();
        blocking(move || vault.write_note(&run, NOTE, &bytes)).await
    }
}
