//! Determines the attempt that a launch writes: agreed by all nodes through records that are created once.
//!
//! The nodes agree on the run's first remote, however many remotes there are: numbers that were given out in two places
//! would differ. A node stores the result in its vault; a restore from which the trainer resumes asks
//! the remote again.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stepvault_core::codec::FORMAT;
use stepvault_core::keys::{KeyKind, LAUNCHES};
use stepvault_core::launch::{LaunchName, LaunchRecord, attempt_of};
use stepvault_core::placement::LaunchSpan;
use stepvault_core::{Attempt, Error, ErrorKind, NodePlace, NodeSet, Result, RunName, StepId, Timestamp};
use stepvault_local::vault::Vault;

use crate::blocking::{in_order, sealed_steps};
use crate::notes::{read_list, sync_list, write_list};
use crate::tier::catalog::{PARALLEL_READS, claimed_ids, committed_ids, starting_nodes};
use crate::tier::removed::removed_steps;
use crate::tier::run_remote::RunRemote;

/// Number of launch records that are read: older launches have no running nodes.
const RECORDS_READ: usize = 64;
/// How many times another launch may take a number between the listing and the creation of the record.
const TRIES: usize = 32;
/// Number of launch spans that a vault stores.
const SPANS_KEPT: usize = 256;
const NOTE: &str = "launches";
/// Number of launches whose beginning a vault stores.
const BEGINNINGS_KEPT: usize = 16;
const BEGINNINGS_NOTE: &str = "launch-beginnings";

/// A launch that this node has been part of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Span {
    launch: LaunchName,
    attempt: Attempt,
    /// By this node's clock.
    since: Timestamp,
}

/// When this node first saw a launch, whether or not it has its attempt by now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beginning {
    launch: LaunchName,
    /// By this node's clock.
    since: Timestamp,
}

/// Returns the latest attempt that a vault has stored for a launch.
pub(crate) async fn remembered_attempt(
    vault: &Vault,
    run: &RunName,
    launch: &LaunchName,
) -> Result<Option<Attempt>> {
    let spans = read_spans(vault, run).await?;
    let own = spans.iter().rfind(|span| span.launch == *launch);
    Ok(own.map(|span| span.attempt))
}

/// Returns whether a vault has recorded any launch of a run. A vault that cannot be read counts as one that has.
pub async fn knows_launches(vault: &Vault, run: &RunName) -> bool {
    let beginnings: Result<Vec<Beginning>> = read_list(vault, run, BEGINNINGS_NOTE).await;
    let spans = read_spans(vault, run).await;
    !matches!((beginnings, spans), (Ok(beginnings), Ok(spans)) if beginnings.is_empty() && spans.is_empty())
}

/// Returns whether this node has been part of an attempt of the run, with other nodes.
///
/// # Errors
/// When the vault cannot be read.
pub(crate) async fn has_begun_before(vault: &Vault, run: &RunName) -> Result<bool> {
    Ok(!read_spans(vault, run).await?.is_empty())
}

/// Returns when this node began to take part in `launch`, as recorded by [`record_beginning`].
///
/// # Errors
/// When the vault cannot be read.
pub(crate) async fn recorded_beginning(
    vault: &Vault,
    run: &RunName,
    launch: &LaunchName,
) -> Result<Option<Timestamp>> {
    let beginnings: Vec<Beginning> = read_list(vault, run, BEGINNINGS_NOTE).await?;
    let own = beginnings.iter().find(|known| known.launch == *launch);
    Ok(own.map(|known| known.since))
}

/// Records when this node began to take part in `launch`, before its trainer starts: a single round of the agent later
/// tells by it which launch wrote a checkpoint.
///
/// # Errors
/// When the vault cannot be written to.
pub async fn record_beginning(
    vault: &Vault,
    run: &RunName,
    launch: &LaunchName,
    now: Timestamp,
) -> Result<Timestamp> {
    let mut beginnings: Vec<Beginning> = read_list(vault, run, BEGINNINGS_NOTE).await?;
    if let Some(known) = beginnings.iter().find(|known| known.launch == *launch) {
        sync_list(vault, run, BEGINNINGS_NOTE).await?;
        return Ok(known.since.min(now));
    }
    beginnings.push(Beginning { launch: launch.clone(), since: now });
    write_list(vault, run, BEGINNINGS_NOTE, &mut beginnings, BEGINNINGS_KEPT).await?;
    Ok(now)
}

async fn read_spans(vault: &Vault, run: &RunName) -> Result<Vec<Span>> {
    read_list(vault, run, NOTE).await
}

/// The attempts of a run's launches, as known to one node.
#[derive(Debug)]
pub(crate) struct Launches<'a> {
    vault: Option<&'a Vault>,
    /// The remote on which the nodes agree.
    remote: &'a RunRemote,
    spans: Vec<Span>,
}

impl<'a> Launches<'a> {
    /// Loads what the vault has stored.
    pub(crate) async fn open(vault: Option<&'a Vault>, remote: &'a RunRemote) -> Result<Self> {
        let spans = match vault {
            Some(vault) => read_spans(vault, remote.keys.run()).await?,
            None => Vec::new(),
        };
        Ok(Self { vault, remote, spans })
    }

    /// Returns the attempts this node has been part of, the latest last.
    pub(crate) fn spans(&self) -> Vec<LaunchSpan> {
        let span = |span: &Span| LaunchSpan { attempt: span.attempt, since: span.since };
        self.spans.iter().map(span).collect()
    }

    /// Returns the attempt of `launch`, which this node joins now if it has not before. Steps saved since it first
    /// tried to join belong to the launch as well.
    ///
    /// # Errors
    /// When the attempt is not known here and the remote is unreachable.
    pub(crate) async fn join(&mut self, launch: &LaunchName, now: Timestamp) -> Result<Attempt> {
        if let Some(span) = self.spans.last().filter(|span| span.launch == *launch) {
            return Ok(span.attempt);
        }
        let since = match self.vault {
            Some(vault) => record_beginning(vault, self.remote.keys.run(), launch, now).await?,
            None => now,
        };
        let attempt = self.agree(launch, None).await?;
        self.remember(launch, attempt, since).await?;
        Ok(attempt)
    }

    /// Begins an attempt together with the other nodes of `launch`, at each start of the trainer: joins the latest one if
    /// nodes are missing in it and this one has not been part of it, else the next one. Launchers count restarts
    /// differently on each node (torchrun counts none that follows a change of membership), and this needs no count.
    ///
    /// A node that a restart replaced while its nodes were still gathering may join the attempt that the others have
    /// just left; [`Self::has_begun_after`] tells it so. Attempts up to `after` are not joined.
    ///
    /// # Errors
    /// When the remote is unreachable.
    pub(crate) async fn begin(
        &mut self,
        launch: &LaunchName,
        place: &NodePlace,
        now: Timestamp,
        after: Option<Attempt>,
    ) -> Result<Attempt> {
        for _ in 0..TRIES {
            let local = self.highest_locally().await?;
            let (records, highest) = self.given_attempts().await?;
            // One that follows a step back is of nodes that are training already.
            let starts = records
                .iter()
                .filter(|record| record.launch == *launch && record.begun_by.is_some())
                .filter(|record| Some(record.attempt) > after);
            let joined = match starts.max_by_key(|record| record.attempt) {
                Some(start) if self.may_begin(start, place).await? => Some(start.attempt),
                _ => {
                    let begun_by = Some(place.nodes().clone());
                    self.create(launch, None, highest.max(local), begun_by).await?
                }
            };
            if let Some(attempt) = joined {
                self.remember(launch, attempt, now).await?;
                return Ok(attempt);
            }
        }
        Err(no_attempt(launch))
    }

    /// Whether nodes begin the attempt of `start` now, as far as this one can know: the same nodes began it, some of them
    /// are missing, and this one has neither started nor saved a step in it. A node that comes so late that the others
    /// went on without it follows their decision.
    async fn may_begin(&self, start: &LaunchRecord, place: &NodePlace) -> Result<bool> {
        let mut own_spans = self.spans.iter().filter(|span| span.launch == start.launch);
        let was_part = own_spans.any(|span| span.attempt >= start.attempt);
        if was_part || start.begun_by.as_ref() != Some(place.nodes()) {
            return Ok(false);
        }
        let started = starting_nodes(self.remote, start.attempt).await?;
        Ok(!started.contains(place.node()) && started.len() < place.nodes().count())
    }

    /// Returns whether this node has been part of an attempt of `launch`.
    pub(crate) fn was_part_of(&self, launch: &LaunchName) -> bool {
        self.spans.iter().any(|span| span.launch == *launch)
    }

    /// Returns whether nodes of `launch` have begun an attempt after this one.
    pub(crate) async fn has_begun_after(&self, launch: &LaunchName, attempt: Attempt) -> Result<bool> {
        let given = launch_attempts(self.remote).await?.into_iter().rev();
        let later = given.take_while(|given| *given > attempt).take(RECORDS_READ);
        let records = launch_records(self.remote, later).await?;
        // A launch that went back without a restart has a later attempt too.
        let has_begun = |record: &LaunchRecord| record.launch == *launch && record.begun_by.is_some();
        Ok(records.iter().any(has_begun))
    }

    /// Returns the attempt of `launch`, if it already has one.
    pub(crate) async fn known(&self, launch: &LaunchName) -> Result<Option<Attempt>> {
        if let Some(span) = self.spans.last().filter(|span| span.launch == *launch) {
            return Ok(Some(span.attempt));
        }
        let (records, _) = self.given_attempts().await?;
        Ok(attempt_of(&records, launch, None))
    }

    /// Returns the attempt with which `launch` continues after it went back and saved step `over` again, at
    /// `written_at`.
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

    /// Finds the launch's record, or creates it under the first unused number.
    async fn agree(&self, launch: &LaunchName, over: Option<StepId>) -> Result<Attempt> {
        for _ in 0..TRIES {
            // Read before the records: an agent beside this process may join the launch at any moment and seal.
            let local = self.highest_locally().await?;
            let (records, highest) = self.given_attempts().await?;
            if let Some(attempt) = attempt_of(&records, launch, over.map(|id| id.attempt)) {
                return Ok(attempt);
            }
            if let Some(attempt) = self.create(launch, over, highest.max(local), None).await? {
                return Ok(attempt);
            }
        }
        Err(no_attempt(launch))
    }

    /// Creates the launch's record under the number after `used`. Returns `None` if another launch was faster, or
    /// another node of this one.
    async fn create(
        &self,
        launch: &LaunchName,
        over: Option<StepId>,
        used: Option<Attempt>,
        begun_by: Option<NodeSet>,
    ) -> Result<Option<Attempt>> {
        let attempt = used.map_or(Ok(Attempt::FIRST), Attempt::next)?;
        let record = LaunchRecord {
            format: FORMAT,
            run: self.remote.keys.run().clone(),
            attempt,
            launch: launch.clone(),
            went_back_over: over,
            begun_by,
        };
        let key = self.remote.keys.launch(attempt);
        Ok(self.remote.create_unless_taken(&key, &record).await?.then_some(attempt))
    }

    /// Returns the latest launch records, and the highest attempt used by anything on the remote.
    ///
    /// # Invariants
    /// For every attempt found in use, the launch's record was read afterwards, and was written before: this launch's
    /// own attempt is never mistaken for another launch's.
    async fn given_attempts(&self) -> Result<(Vec<LaunchRecord>, Option<Attempt>)> {
        let remote = self.remote;
        let removed = removed_steps(remote).await?.last();
        let committed = committed_ids(remote).await?;
        let claimed = claimed_ids(remote).await?;
        let given = launch_attempts(remote).await?;
        let steps = removed.iter().chain(committed.keys()).chain(claimed.keys());
        let used = steps.map(|id| id.attempt).chain(given.last().copied()).max();
        let latest = given.into_iter().rev().take(RECORDS_READ);
        Ok((launch_records(remote, latest).await?, used))
    }

    async fn highest_locally(&self) -> Result<Option<Attempt>> {
        let Some(vault) = self.vault else {
            return Ok(None);
        };
        let scan = sealed_steps(vault, self.remote.keys.run()).await?;
        // A provisional attempt belongs to no launch yet.
        let settled = scan.steps.iter().filter(|step| !step.record().is_provisional());
        Ok(settled.map(|step| step.id().attempt).max())
    }

    /// Whether this is the launch that this node has taken part in last.
    pub(crate) fn is_latest(&self, launch: &LaunchName) -> bool {
        self.spans.last().is_some_and(|span| span.launch == *launch)
    }

    /// Stores in the vault that this node takes part in an attempt of a launch.
    pub(crate) async fn remember(
        &mut self,
        launch: &LaunchName,
        attempt: Attempt,
        since: Timestamp,
    ) -> Result<()> {
        self.spans.push(Span { launch: launch.clone(), attempt, since });
        let Some(vault) = self.vault else {
            return Ok(());
        };
        let run = self.remote.keys.run();
        write_list(vault, run, NOTE, &mut self.spans, SPANS_KEPT).await
    }
}

/// Returns the attempts that the launches of a run were given: one LIST.
pub async fn launch_attempts(remote: &RunRemote) -> Result<BTreeSet<Attempt>> {
    let select = |kind| match kind {
        KeyKind::Launch(attempt) => Some(attempt),
        _ => None,
    };
    let launches = remote.list_kind(&remote.keys.all(LAUNCHES), select).await?;
    Ok(launches.into_iter().map(|(attempt, _)| attempt).collect())
}

/// Reads the records of the launches that were given these attempts, without those that cannot be used.
pub(crate) async fn launch_records(
    remote: &RunRemote,
    attempts: impl IntoIterator<Item = Attempt>,
) -> Result<Vec<LaunchRecord>> {
    let records = in_order(PARALLEL_READS, attempts, |attempt| async move {
        // The number of a record that cannot be used is used up too.
        let record: Option<LaunchRecord> = remote.read_usable_record(&remote.keys.launch(attempt)).await?;
        Ok(record.filter(|record| record.attempt == attempt))
    });
    Ok(records.await?.into_iter().flatten().collect())
}

fn no_attempt(launch: &LaunchName) -> Error {
    Error::new(ErrorKind::Failed, "cannot get an attempt for the launch")
        .on(format!("launch '{launch}'"))
        .because(format!("other launches claimed {TRIES} attempt numbers in a row"))
        .hint("retry, or set the attempt with STEPVAULT_ATTEMPT")
}
