//! The events of one schedule, determined by its seed before anything starts.

use std::time::Duration;

use stepvault_testkit::random::Random;

use crate::nodes::namespaces::Cut;

pub(crate) const NODES: usize = 3;
/// The time after which a step without all parts counts as incomplete, if a schedule loses a node. Longer than any
/// other harm lasts: once others were named, the next check is a minute away.
pub(crate) const INCOMPLETE_AFTER_SECONDS: u64 = 8;

/// All events, by time since the start.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    /// Whether the job's launch has a name.
    pub(crate) named_launch: bool,
    /// The steps' numbers, in order.
    pub(crate) steps: Vec<u64>,
    /// When each node's trainer has written its part of each step.
    pub(crate) writes: Vec<(Duration, usize, u64)>,
    pub(crate) faults: Vec<(Duration, Fault)>,
    pub(crate) traps: Vec<Trap>,
    pub(crate) lost: Option<Lost>,
}

/// An event at a node, and its duration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) node: usize,
    pub(crate) what: Harm,
    pub(crate) lasting: Duration,
}

/// The kind of the event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Harm {
    /// Its link breaks.
    Cut(Cut),
    /// Its agent gets SIGKILL, and is started again.
    Kill,
    /// Its agent gets SIGSTOP, and SIGCONT.
    Freeze,
    /// Its agent gets SIGTERM, and is started again when it has ended.
    Stop,
}

/// A fault that waits for a request: the node that sends it is harmed while the store holds the request, or the
/// response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trap {
    /// A part of the path of the PUT; no two traps of a schedule wait for the same.
    pub(crate) path_holds: &'static str,
    /// The index of the request among those, from 0.
    pub(crate) nth: usize,
    pub(crate) held: Held,
    pub(crate) what: Harm,
    pub(crate) lasting: Duration,
}

/// How the store holds the request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Held {
    /// It delays the start.
    Request,
    /// It does the work and delays the response.
    Answer,
    /// It does the work, and the connection breaks.
    AnswerLost,
}

/// A node that dies and does not come back with the others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost {
    pub(crate) node: usize,
    pub(crate) at: Duration,
    pub(crate) fate: Fate,
}

/// Its fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It comes back with its disk once the others have reported its steps as incomplete.
    Back,
    /// As `Back`, and the others' agents are restarted when it is back.
    BackAndAllAnew,
    /// A machine with an empty disk replaces it.
    Gone,
}

impl Schedule {
    /// Returns the schedule of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        // Mixed, so that the sequences of adjacent seeds do not overlap.
        let mut random = Random(Random(seed).number());
        let steps: Vec<u64> = (1..=3 + random.below(3)).map(|step| step * 10).collect();
        let mut writes = Vec::new();
        let mut at = 300 + random.below(700);
        for step in &steps {
            for node in 0..NODES {
                // Before the writes of the next step: the nodes' trainers proceed together.
                writes.push((milliseconds(at + random.below(500)), node, *step));
            }
            at += 550 + random.below(900);
        }
        let end = at + 500;
        let mut faults = Vec::new();
        for _ in 0..2 + random.below(5) {
            let at = milliseconds(random.below(end));
            let lasting = milliseconds(100 + random.below(3000));
            if random.below(8) == 0 {
                let what = Harm::Cut(cut(&mut random));
                faults.extend((0..NODES).map(|node| (at, Fault { node, what, lasting })));
                continue;
            }
            let node = random.index(NODES);
            let what = harm(&mut random);
            faults.push((at, Fault { node, what, lasting }));
        }
        let mut traps = Vec::new();
        let kinds = [("/commits/", 4), ("/parts/", 9), ("/attempts/", 9), ("/launches/", 2), ("/step_", 20)];
        for (path_holds, often) in kinds {
            let wanted = if path_holds == "/commits/" { 4 } else { 2 };
            if random.below(5) >= wanted {
                continue;
            }
            traps.push(Trap {
                path_holds,
                nth: random.index(often),
                held: match random.below(3) {
                    0 => Held::Request,
                    1 => Held::Answer,
                    _ => Held::AnswerLost,
                },
                what: harm(&mut random),
                lasting: milliseconds(100 + random.below(3000)),
            });
        }
        let lost = (random.below(3) == 0).then(|| Lost {
            node: random.index(NODES),
            at: milliseconds(random.below(end)),
            fate: match random.below(3) {
                0 => Fate::Back,
                1 => Fate::BackAndAllAnew,
                _ => Fate::Gone,
            },
        });
        Self { seed, named_launch: random.below(3) > 0, steps, writes, faults, traps, lost }
    }
}

fn harm(random: &mut Random) -> Harm {
    match random.below(10) {
        0..=2 => Harm::Kill,
        3..=5 => Harm::Freeze,
        6 => Harm::Stop,
        _ => Harm::Cut(cut(random)),
    }
}

fn cut(random: &mut Random) -> Cut {
    if random.below(3) == 0 { Cut::Down } else { Cut::Silent }
}

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedules_that_are_played_without_being_asked_lose_nodes_in_each_way_and_none() {
        let first = super::super::FIRST_SEED;
        let fates: Vec<_> = (first..first + super::super::SCHEDULES)
            .map(|seed| Schedule::of(seed).lost.map(|lost| lost.fate))
            .collect();
        for fate in [Some(Fate::Back), Some(Fate::BackAndAllAnew), Some(Fate::Gone), None] {
            assert!(fates.contains(&fate), "{fate:?} is not among {fates:?}");
        }
    }
}
