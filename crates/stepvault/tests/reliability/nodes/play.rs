//! One schedule from its first write to the last restored byte.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stepvault_core::ids::StepId;
use stepvault_testkit::faults::{FaultAction, FaultRule};

use crate::nodes::agent::Agent;
use crate::nodes::cluster::{Cluster, RUN, read_tree};
use crate::nodes::schedule::{Fate, Fault, Harm, Held, INCOMPLETE_AFTER_SECONDS, NODES, Schedule};

/// The time after the last fault by which everything must be durable, or named. Pauses between retries grow to 75 s,
/// an incomplete step is checked once a minute, and the machine may be busy.
const SETTLED_WITHIN: Duration = Duration::from_mins(5);
/// An agent that was asked to end has 4 s for it; more than this time is a hang.
const ENDED_WITHIN: Duration = Duration::from_mins(2);
/// How long a trap makes the store hold a request.
const HELD: Duration = Duration::from_millis(300);
/// How long traps wait for their requests after the last planned fault.
const TRAPS_SET: Duration = Duration::from_secs(15);
const TICK: Duration = Duration::from_millis(10);

/// The results of a schedule.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) steps_durable: usize,
    /// The number of steps that lacked a node's part for good and were named by every other node.
    pub(crate) steps_named: usize,
    /// The number of steps that were reported as incomplete and became durable when the node came back.
    pub(crate) steps_completed_late: usize,
    pub(crate) harms: usize,
    /// The number of those at a chosen request.
    pub(crate) caught: usize,
    pub(crate) settled_after: Duration,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Write(usize, u64),
    Harm(Fault),
    Mend(usize),
    Thaw(usize, u32),
    Start(usize),
    Lose(usize),
}

/// Runs a schedule.
///
/// # Errors
/// What was wrong, with the ends of the agents' logs.
pub(crate) fn play(schedule: &Schedule) -> Result<Tally, String> {
    let mut cluster = Cluster::make(schedule)?;
    let mut play = Play {
        schedule,
        cluster: &mut cluster,
        tally: Tally::default(),
        queue: Vec::new(),
        asked_to_end: vec![None; NODES],
    };
    let played = play.through();
    let tally = play.tally;
    played.map(|()| tally).map_err(|fault| {
        let mut story = format!("{fault}\n{schedule:?}\n{}", cluster.story());
        if std::env::var_os("NODES_KEEP").is_some() {
            let kept = cluster.keep();
            story.push_str("kept: ");
            story.push_str(&kept.to_string_lossy());
        }
        story
    })
}

struct Play<'a> {
    schedule: &'a Schedule,
    cluster: &'a mut Cluster,
    tally: Tally,
    queue: Vec<(Instant, Event)>,
    /// Since when a node's agent has been asked to end.
    asked_to_end: Vec<Option<Instant>>,
}

impl Play<'_> {
    fn through(&mut self) -> Result<(), String> {
        self.faults()?;
        self.make_whole();
        let begun = Instant::now();
        let lost = self.schedule.lost;
        if let Some(lost) = lost {
            self.everything_is_durable_or_named(lost.node)?;
            if lost.fate != Fate::Gone {
                self.tally.steps_completed_late = self.missing().len();
                self.bring_back(lost.node, lost.fate == Fate::BackAndAllAnew);
            }
        }
        if self.gone().is_none() {
            self.everything_is_durable()?;
        }
        self.tally.settled_after = begun.elapsed();
        self.tally.steps_named = self.missing().len();
        self.tally.steps_durable = self.schedule.steps.len() - self.tally.steps_named;
        self.agents_end_and_say_so()?;
        self.all_restore_one_step()?;
        self.nothing_was_wrong()
    }

    /// Runs the phase of writes and faults.
    fn faults(&mut self) -> Result<(), String> {
        for trap in &self.schedule.traps {
            self.cluster.store.faults().add(FaultRule {
                method: Some("PUT".to_owned()),
                path_contains: trap.path_holds.to_owned(),
                skip: trap.nth as u64,
                times: 1,
                action: match trap.held {
                    Held::Request => FaultAction::Delay(HELD),
                    Held::Answer => FaultAction::ApplyThenDelay(HELD),
                    Held::AnswerLost => FaultAction::ApplyThenReset,
                },
            });
        }
        for node in 0..NODES {
            self.cluster.start(node);
        }
        self.until("every agent up", |play| {
            Ok((0..NODES).all(|node| play.cluster.disk(node).join("vault/lock").exists()))
        })?;
        let begun = Instant::now();
        let schedule = self.schedule;
        let writes = schedule.writes.iter().map(|(at, node, step)| (begun + *at, Event::Write(*node, *step)));
        let faults = schedule.faults.iter().map(|(at, fault)| (begun + *at, Event::Harm(*fault)));
        let lost = schedule.lost.map(|lost| (begun + lost.at, Event::Lose(lost.node)));
        self.queue = writes.chain(faults).chain(lost).collect();
        let mut requests = 0;
        let mut seen = vec![0; schedule.traps.len()];
        let planned_end = self.queue.iter().map(|(at, _)| *at).max().unwrap_or(begun);
        let is_set = |play: &Self| {
            let more = play.tally.caught < schedule.traps.len() && !play.missing().is_empty();
            more && planned_end.elapsed() < TRAPS_SET
        };
        while !self.queue.is_empty() || is_set(self) {
            self.traps(&mut requests, &mut seen);
            let now = Instant::now();
            let (due, later) = std::mem::take(&mut self.queue).into_iter().partition(|(at, _)| *at <= now);
            self.queue = later;
            for (_, event) in due {
                self.happen(event)?;
            }
            self.nothing_was_wrong()?;
            sleep(TICK);
        }
        self.cluster.store.faults().clear();
        Ok(())
    }

    /// Applies the harm of a trap to the node that sent the awaited request.
    fn traps(&mut self, requests: &mut usize, seen: &mut [usize]) {
        let new = self.cluster.store.faults().requests_after(*requests);
        *requests += new.len();
        for request in new.iter().filter(|request| request.method == "PUT") {
            for (trap, seen) in self.schedule.traps.iter().zip(&mut *seen) {
                if !request.path.contains(trap.path_holds) {
                    continue;
                }
                *seen += 1;
                let sender = request.from.and_then(|from| self.cluster.network.node_at(from));
                if let Some(node) = sender.filter(|_| *seen == trap.nth + 1) {
                    self.tally.caught += 1;
                    self.harm(Fault { node, what: trap.what, lasting: trap.lasting });
                }
            }
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Write(node, step) => self.cluster.write(node, step),
            Event::Harm(fault) => self.harm(fault),
            Event::Mend(node) => {
                self.cluster.network.mend(node);
                self.cluster.nodes[node].cut = false;
            }
            Event::Thaw(node, life) => {
                if self.cluster.nodes[node].lives == life {
                    self.cluster.freeze(node, false);
                }
            }
            Event::Start(node) => self.start_again(node)?,
            Event::Lose(node) => {
                self.cluster.kill(node);
                self.asked_to_end[node] = None;
                self.cluster.nodes[node].lost = true;
            }
        }
        Ok(())
    }

    fn harm(&mut self, fault: Fault) {
        let Fault { node, what, lasting } = fault;
        let state = &mut self.cluster.nodes[node];
        let awake = state.agent.is_some() && !state.frozen;
        let undo = match what {
            Harm::Cut(how) if !state.cut => {
                state.cut = true;
                self.cluster.network.cut(node, how);
                Event::Mend(node)
            }
            Harm::Kill if state.agent.is_some() => {
                self.cluster.kill(node);
                self.asked_to_end[node] = None;
                Event::Start(node)
            }
            Harm::Freeze if awake => {
                let life = state.lives;
                self.cluster.freeze(node, true);
                Event::Thaw(node, life)
            }
            Harm::Stop if awake && self.asked_to_end[node].is_none() => {
                self.asked_to_end[node] = Some(Instant::now());
                state.agent.iter().for_each(|agent| agent.signal(Signal::TERM));
                Event::Start(node)
            }
            // It is harmed already.
            _ => return,
        };
        self.tally.harms += 1;
        self.queue.push((Instant::now() + lasting, undo));
    }

    /// Starts an agent if none runs; one that was asked to end must have ended first.
    fn start_again(&mut self, node: usize) -> Result<(), String> {
        if self.cluster.nodes[node].lost {
            return Ok(());
        }
        if let Some(since) = self.asked_to_end[node] {
            if !self.has_ended(node)? {
                if since.elapsed() > ENDED_WITHIN {
                    return Err(format!("node-{node}'s agent does not end"));
                }
                self.queue.push((Instant::now() + Duration::from_millis(100), Event::Start(node)));
                return Ok(());
            }
            self.asked_to_end[node] = None;
            self.cluster.kill(node);
        }
        if self.cluster.nodes[node].agent.is_none() {
            self.cluster.start(node);
        }
        Ok(())
    }

    /// Returns whether an agent that was asked to end has ended, and ended correctly.
    fn has_ended(&mut self, node: usize) -> Result<bool, String> {
        let Some(agent) = self.cluster.nodes[node].agent.as_mut() else {
            return Ok(true);
        };
        let Some(status) = agent.ended() else {
            return Ok(false);
        };
        // An agent that had only just been started does not handle signals yet.
        let as_it_should =
            matches!(status.code(), Some(0 | 3)) || status.signal() == Some(Signal::TERM.as_raw());
        if as_it_should {
            return Ok(true);
        }
        Err(format!("node-{node}'s agent, asked to end, ended with {status}"))
    }

    /// Ends all faults except the lost node.
    fn make_whole(&mut self) {
        for node in 0..NODES {
            self.cluster.network.mend(node);
            self.cluster.freeze(node, false);
            if self.cluster.nodes[node].agent.is_none() && !self.cluster.nodes[node].lost {
                self.cluster.start(node);
            }
        }
    }

    /// Returns the steps that the store does not show as committed.
    fn missing(&self) -> BTreeSet<u64> {
        let committed: BTreeSet<u64> =
            self.cluster.ledger.committed().into_iter().map(|id| id.step.number()).collect();
        let steps = self.schedule.steps.iter();
        steps.copied().filter(|step| !committed.contains(step)).collect()
    }

    fn until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        while !done(self)? {
            self.nothing_was_wrong()?;
            if begun.elapsed() > SETTLED_WITHIN {
                return Err(format!("not within {SETTLED_WITHIN:?}: {what}"));
            }
            sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Checks that every node's own record reports every step as durable, and that the list does.
    fn everything_is_durable(&mut self) -> Result<(), String> {
        self.until("every step committed", |play| Ok(play.missing().is_empty()))?;
        let steps = self.schedule.steps.len() as u64;
        for node in 0..NODES {
            self.until(&format!("every step durable by node-{node}'s record"), |play| {
                let status = play.cluster.run(node, &["status", "--json"])?.try_json()?;
                let main = &status["remotes"][0];
                Ok(main["durable_steps"] == steps && main["staged_steps"] == 0 && main["uploaded_steps"] == 0)
            })?;
            let document = self.cluster.run(node, &["list", "--json"])?.try_json()?;
            for step in document["steps"].as_array().into_iter().flatten() {
                let fine = step["local"] == "durable"
                    && step["remotes"] == serde_json::json!(["main"])
                    && step["incomplete"] == serde_json::json!([])
                    && step["attempt"] == 1;
                if !fine {
                    return Err(format!("node-{node} lists {step}"));
                }
            }
        }
        let ids = self.cluster.ledger.committed();
        if ids.len() != self.schedule.steps.len() {
            return Err(format!("{} commits of {steps} steps: {ids:?}", ids.len()));
        }
        Ok(())
    }

    /// Checks that every step is durable, or that every remaining node names the one that is not.
    fn everything_is_durable_or_named(&mut self, lost: usize) -> Result<(), String> {
        let others = move || (0..NODES).filter(move |node| *node != lost);
        self.until(&format!("every step durable or node-{lost} named"), |play| {
            let logs: Vec<String> = others().map(|node| play.cluster.log(node)).collect();
            Ok(play.missing().iter().all(|step| {
                let named = format!(
                    "step {step} (attempt 1) of {RUN} is not durable on main: it is incomplete: node-{lost} has not \
                     uploaded its part within {INCOMPLETE_AFTER_SECONDS} s"
                );
                logs.iter().all(|log| log.contains(&named))
            }))
        })?;
        let missing = self.missing();
        for node in others() {
            let document = self.cluster.run(node, &["list", "--json"])?.try_json()?;
            let listed = document["steps"].as_array().cloned().unwrap_or_default();
            let named: BTreeSet<u64> = listed
                .iter()
                .filter(|step| {
                    step["incomplete"][0]["missing_nodes"] == serde_json::json!([format!("node-{lost}")])
                })
                .filter_map(|step| step["step"].as_u64())
                .collect();
            if named != missing || listed.len() != self.schedule.steps.len() {
                return Err(format!("{missing:?} are not committed, and node-{node} lists {document}"));
            }
        }
        Ok(())
    }

    fn bring_back(&mut self, node: usize, all_anew: bool) {
        self.cluster.nodes[node].lost = false;
        self.cluster.start(node);
        for other in (0..NODES).filter(|other| all_anew && *other != node) {
            self.cluster.kill(other);
            self.cluster.start(other);
        }
    }

    /// Returns the node that does not come back.
    fn gone(&self) -> Option<usize> {
        let lost = self.schedule.lost?;
        (lost.fate == Fate::Gone).then_some(lost.node)
    }

    /// Checks that all agents end when they are asked to, with a correct report.
    fn agents_end_and_say_so(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        for (state, asked_to_end) in self.cluster.nodes.iter().zip(&mut self.asked_to_end) {
            if let Some(agent) = &state.agent {
                agent.signal(Signal::TERM);
                *asked_to_end = Some(begun);
            }
        }
        let gone = self.gone();
        for node in (0..NODES).filter(|node| Some(*node) != gone) {
            while !self.has_ended(node)? {
                if begun.elapsed() > ENDED_WITHIN {
                    return Err(format!("node-{node}'s agent does not end"));
                }
                sleep(TICK);
            }
            let report = std::fs::read_to_string(self.cluster.disk(node).join("report.json")).unwrap();
            let report: serde_json::Value =
                serde_json::from_str(&report).map_err(|error| format!("{error}: {report}"))?;
            let not_durable = report["not_durable"].as_array().map_or(0, Vec::len);
            let missing = self.missing().len();
            if not_durable != missing || report["durable"] != (missing == 0) {
                return Err(format!("{missing} steps are not durable, and node-{node} reports {report}"));
            }
        }
        Ok(())
    }

    /// Runs the job's next launch: every node gets the same step, the newest durable one, to the byte.
    fn all_restore_one_step(&mut self) -> Result<(), String> {
        let newest = self.cluster.ledger.committed().last().map(|id: &StepId| id.step.number());
        let gone = self.gone();
        let cluster = &*self.cluster;
        let restored: Vec<Result<Option<u64>, String>> = thread::scope(|scope| {
            let nodes: Vec<_> = (0..NODES)
                .map(|node| {
                    scope.spawn(move || {
                        let disk =
                            if gone == Some(node) { cluster.empty_disk(node) } else { cluster.disk(node) };
                        let arguments = ["restore", "--into", "restored", "--json"];
                        let outcome = cluster.run_in_next_launch(node, &disk, &arguments)?;
                        if outcome.code == 10 {
                            return Ok(None);
                        }
                        if outcome.code != 0 {
                            return Err(format!(
                                "node-{node}'s restore ends with {}: {}",
                                outcome.code, outcome.stderr
                            ));
                        }
                        let step = outcome.try_json()?["step"].as_u64();
                        let step = step.ok_or(format!("node-{node} restores no step: {outcome:?}"))?;
                        let tree = read_tree(&disk.join("restored").join(format!("step_{step}")));
                        if tree != cluster.whole(step) {
                            return Err(format!(
                                "node-{node} has other bytes in step {step} than were written"
                            ));
                        }
                        Ok(Some(step))
                    })
                })
                .collect();
            nodes.into_iter().map(|node| node.join().unwrap()).collect()
        });
        for (node, step) in restored.into_iter().enumerate() {
            let step = step?;
            if step != newest {
                return Err(format!("node-{node} restored {step:?}, and the newest durable is {newest:?}"));
            }
        }
        Ok(())
    }

    /// Checks that no commit was wrong at any moment, and that no agent failed.
    fn nothing_was_wrong(&mut self) -> Result<(), String> {
        let faults = self.cluster.ledger.faults();
        if !faults.is_empty() {
            return Err(format!("the store showed: {}", faults.join("; ")));
        }
        for node in 0..NODES {
            if self.asked_to_end[node].is_some() {
                continue;
            }
            let ended = self.cluster.nodes[node].agent.as_mut().and_then(Agent::ended);
            if let Some(status) = ended {
                return Err(format!("node-{node}'s agent ended by itself with {status}"));
            }
        }
        Ok(())
    }
}
