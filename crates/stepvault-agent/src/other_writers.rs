//! Detects another training job that writes the same run.
//!
//! A claim that appears while the service runs, and that neither this service nor another node of its job wrote,
//! belongs to another writer. It may come from an earlier launch, uploaded late by another node's vault, which is no
//! fault. Its job is alive if its launch began after this service did, or if its files were written since. The latter
//! compares the clocks of two nodes: a wrong clock makes the warning late or false, and has no other effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::manifest::PartManifest;
use stepvault_core::records::Claim;
use stepvault_core::{Attempt, Result, StepId, Timestamp, Writer};
use stepvault_engine::launches::launch_attempts;
use stepvault_engine::outage::is_outage;
use stepvault_engine::tier::catalog::{claimed_ids, present_parts};
use stepvault_engine::tier::run_remote::RunRemote;
use tokio::time::{Instant, sleep_until};

use crate::report::OtherWriter;
use crate::shared::Shared;
use stepvault_local::clock;

/// How often the claims are listed while the service is idle.
const INTERVAL: Duration = Duration::from_mins(1);
/// Minimum interval between listings after local progress on a step.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of others' claims that are kept until it is known whether their jobs are alive; the newest are kept.
const MAX_UNDECIDED: usize = 64;

/// One watched run on one remote.
#[derive(Debug)]
pub(crate) struct WatchedRun {
    /// The remote, wrapped in a timeout.
    pub(crate) remote: RunRemote,
    /// The claims that existed at the first listing.
    pub(crate) known: Option<Known>,
    pub(crate) undecided: BTreeMap<StepId, Claim>,
}

#[derive(Debug)]
pub(crate) struct Known {
    claims: BTreeSet<StepId>,
    launches: BTreeSet<Attempt>,
}

/// The task that detects other writers.
#[derive(Debug)]
pub(crate) struct OtherWriters {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<WatchedRun>,
    pub(crate) started_at: Timestamp,
}

impl OtherWriters {
    /// Lists claims periodically, and soon after progress on a step of this service. It stops once the service ends,
    /// because the next launch may have begun by then.
    pub(crate) async fn work(mut self) {
        let mut changes = self.shared.reporter.status.changes();
        loop {
            let began = Instant::now();
            changes.mark_unchanged();
            for index in 0..self.runs.len() {
                if let Err(error) = self.check(index).await {
                    // An outage has its own warnings.
                    tracing::debug!(%error, "cannot determine whether another job writes the run");
                }
            }
            let next_change = async {
                let _ = changes.changed().await;
                sleep_until(began + SHORTEST_INTERVAL).await;
            };
            tokio::select! {
                () = self.shared.drain.stop.wait() => return,
                () = next_change => {}
                () = sleep_until(began + INTERVAL) => {}
            }
        }
    }

    async fn check(&mut self, index: usize) -> Result<()> {
        let watched = &mut self.runs[index];
        let claims = claimed_ids(&watched.remote).await?.into_keys().collect::<BTreeSet<StepId>>();
        let Some(known) = &mut watched.known else {
            let launches = launch_attempts(&watched.remote).await?;
            watched.known = Some(Known { claims, launches });
            return Ok(());
        };
        let new: Vec<StepId> = claims.difference(&known.claims).copied().collect();
        known.claims = claims;
        let run = watched.remote.keys.run().clone();
        for id in new {
            let key = watched.remote.keys.claim(id);
            let claim = match watched.remote.read_record::<Claim>(&key).await {
                Ok(Some((claim, _))) => claim,
                Err(error) if is_outage(&error) => {
                    // Checked again.
                    if let Some(known) = &mut watched.known {
                        known.claims.remove(&id);
                    }
                    return Err(error);
                }
                Ok(None) | Err(_) => continue,
            };
            let begun_here = self.shared.reporter.status.has_begun(&run, id);
            if !is_of_same_job(&claim, &self.shared.options.writer, begun_here) {
                watched.undecided.insert(id, claim);
            }
        }
        while watched.undecided.len() > MAX_UNDECIDED {
            watched.undecided.pop_first();
        }
        self.decide(index).await
    }

    /// Warns of those whose job is alive, and forgets those left from before.
    async fn decide(&mut self, index: usize) -> Result<()> {
        let watched = &mut self.runs[index];
        let Some(known) = watched.known.as_ref().filter(|_| !watched.undecided.is_empty()) else {
            return Ok(());
        };
        let launches = launch_attempts(&watched.remote).await?;
        let began_since: BTreeSet<Attempt> = launches.difference(&known.launches).copied().collect();
        let mut decided = Vec::new();
        for (id, claim) in &watched.undecided {
            let alive = if claim.launch.is_some() && began_since.contains(&id.attempt) {
                Some(true)
            } else {
                written_at(&watched.remote, *id).await?.map(|written_at| written_at > self.started_at)
            };
            if let Some(alive) = alive {
                decided.push((*id, alive));
            }
        }
        for (id, alive) in decided {
            let Some(claim) = watched.undecided.remove(&id).filter(|_| alive) else {
                continue;
            };
            let run = watched.remote.keys.run().clone();
            let other = OtherWriter {
                remote: watched.remote.name().clone(),
                launch: claim.launch,
                nodes: claim.nodes.iter().cloned().collect(),
                id,
                seen_at: clock::now().to_rfc3339(),
            };
            let whose = format!("{:?} {:?}", other.launch, other.nodes);
            let text = format!(
                "{run}: {other}; the steps of both jobs would mix, and each would restore the other's: end one job, \
                 or give each its own run name (exclusive = true refuses the second)"
            );
            let subject = format!("other writer {run} {whose}");
            self.shared.reporter.warn_of_cause(&subject, "alive", &text);
            self.shared.reporter.status.other_writer(&run, other);
        }
        Ok(())
    }
}

/// Whether a claim belongs to the job of `writer`; `begun_here` if this service began to upload the step.
fn is_of_same_job(claim: &Claim, writer: &Writer, begun_here: bool) -> bool {
    match (&claim.launch, &writer.launch) {
        _ if begun_here => true,
        (Some(their), Some(own)) => their == own,
        // For a node that writes alone, only claims that it began itself are its own: another vault may use the same
        // node name.
        (None, None) => writer.place.nodes().is_several() && claim.nodes == *writer.place.nodes(),
        _ => false,
    }
}

/// Returns when a step's files were written, by the clock of a node whose part exists; `None` if there is none.
async fn written_at(remote: &RunRemote, id: StepId) -> Result<Option<Timestamp>> {
    for node in present_parts(remote, id).await? {
        let key = remote.keys.part(id, &node);
        match remote.read_record::<PartManifest>(&key).await {
            Ok(Some((manifest, _))) => return Ok(Some(manifest.written_at)),
            Err(error) if is_outage(&error) => return Err(error),
            Ok(None) | Err(_) => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use stepvault_core::codec::FORMAT;
    use stepvault_core::ids::NodeName;
    use stepvault_core::launch::LaunchName;
    use stepvault_core::nodes::{NodePlace, NodeSet};

    use super::*;

    fn claim(nodes: &str, launch: Option<&str>) -> Claim {
        Claim {
            format: FORMAT,
            run: "a".parse().unwrap(),
            id: StepId::from_label("000000000007.a1").unwrap(),
            name: "step_7".to_owned(),
            nodes: nodes.parse().unwrap(),
            launch: launch.map(|name| LaunchName::new(name).unwrap()),
        }
    }

    fn writer(node: &str, nodes: &str, launch: Option<&str>) -> Writer {
        let nodes: NodeSet = nodes.parse().unwrap();
        Writer {
            place: NodePlace::new(NodeName::new(node).unwrap(), nodes).unwrap(),
            launch: launch.map(|name| LaunchName::new(name).unwrap()),
            shared: false,
        }
    }

    #[test]
    fn nodes_of_one_job_are_no_strangers_and_a_second_vault_of_this_node_is() {
        for (claim, writer, begun_here, same) in [
            (claim("a,b", Some("j")), writer("a", "a,b", Some("j")), false, true),
            (claim("b", Some("k")), writer("a", "a", Some("j")), false, false),
            (claim("a,b", None), writer("b", "a,b", None), false, true),
            (claim("c,d", None), writer("b", "a,b", None), false, false),
            (claim("a", None), writer("a", "a", None), true, true),
            (claim("a", None), writer("a", "a", None), false, false),
            (claim("a", Some("j")), writer("a", "a", None), false, false),
            // A step sealed in the previous launch is uploaded in this one.
            (claim("a", Some("j:0")), writer("a", "a", Some("j:1")), true, true),
        ] {
            assert_eq!(is_of_same_job(&claim, &writer, begun_here), same, "{claim:?} {writer:?}");
        }
    }
}
