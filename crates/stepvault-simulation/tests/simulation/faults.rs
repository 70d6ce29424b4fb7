//! The fate of a request on its way, determined by the seed, one request after another.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::actor::Role;

/// The course of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    Served,
    /// The store is overloaded, reports it and does nothing.
    Refused,
    /// The request never arrives.
    RequestLost,
    /// The request is executed, but its response is lost.
    AnswerLost,
    /// The request is executed twice; the second response counts.
    Twice,
}

/// The fate of one request.
// Independent faults of one request.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Copy)]
pub struct Fate {
    pub before: Duration,
    pub course: Course,
    pub after: Duration,
    /// Whether it is executed even when its sender dies meanwhile.
    pub outlives_its_sender: bool,
    /// Whether a body or a listing breaks off half-way.
    pub breaks_off: bool,
    /// Whether an object that is read seems not to be there, although it is.
    pub denies: bool,
    /// Whether a bit of the body flips on the way.
    pub damages: bool,
    /// How long the sender waits for a response that does not come, or that drips.
    pub stall: Duration,
}

/// The fault rates of the network.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// The number of requests per thousand that fail in any way.
    pub wrong: u32,
    /// The number of requests per thousand that are slow.
    pub slow: u32,
}

/// How long a sender waits for a response: one that does not come, and one that drips until it is below the floor of
/// rates.
const STALLS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(100)];
/// For so long after a damaged body, no other is damaged: two in a row would be no accident.
const UNDAMAGED: Duration = Duration::from_mins(10);
/// The maximum time that a request is under way.
pub const LONGEST_WAY_SECONDS: u64 = 8;

#[derive(Debug)]
pub struct Weather {
    state: Mutex<State>,
    /// The number of objects per page of a listing.
    pub page: usize,
}

#[derive(Debug)]
struct State {
    numbers: fastrand::Rng,
    rates: Rates,
    holds: Vec<Hold>,
    /// From when on a body may be damaged again.
    damages_from: Option<Instant>,
}

/// Delays the next object that such a process creates.
#[derive(Debug)]
pub struct Hold {
    pub role: Role,
    /// A part of the key.
    pub key: &'static str,
    pub time: Duration,
}

impl Weather {
    pub fn new(mut numbers: fastrand::Rng) -> Self {
        let rates =
            Rates { wrong: [0, 10, 60, 200][numbers.usize(0..4)], slow: [0, 20, 100][numbers.usize(0..3)] };
        let page = [3, 20, 1000][numbers.usize(0..3)];
        Self { state: Mutex::new(State { numbers, rates, holds: Vec::new(), damages_from: None }), page }
    }

    /// Returns a network in which every request arrives soon.
    pub fn calm(numbers: fastrand::Rng) -> Self {
        let weather = Self::new(numbers);
        weather.clear_up();
        weather
    }

    /// From now on every request arrives.
    pub fn clear_up(&self) {
        self.state.lock().unwrap().rates = Rates { wrong: 0, slow: 0 };
    }

    pub fn hold(&self, hold: Hold) {
        self.state.lock().unwrap().holds.push(hold);
    }

    /// A body was damaged: the next ones are not.
    pub fn damaged(&self) {
        self.state.lock().unwrap().damages_from = Some(Instant::now() + UNDAMAGED);
    }

    /// Returns the fate of a request; `key` is that of the object that it creates, if any.
    pub fn fate(&self, role: Role, key: &str) -> Fate {
        let mut state = self.state.lock().unwrap();
        let State { numbers, rates, holds, damages_from } = &mut *state;
        let way = |numbers: &mut fastrand::Rng| {
            if numbers.u32(0..1000) < rates.slow {
                Duration::from_millis(numbers.u64(500..LONGEST_WAY_SECONDS * 500))
            } else {
                Duration::from_millis(numbers.u64(2..40))
            }
        };
        let (mut before, after) = (way(numbers), way(numbers));
        let held = holds.iter().position(|hold| hold.role == role && key.contains(hold.key));
        if let Some(held) = held {
            before += holds.remove(held).time;
        }
        let wrong = numbers.u32(0..1000) < rates.wrong;
        let course = match numbers.u32(0..5) {
            0 if wrong => Course::Refused,
            1 if wrong => Course::RequestLost,
            2 | 3 if wrong => Course::AnswerLost,
            _ if wrong => Course::Twice,
            _ => Course::Served,
        };
        Fate {
            before,
            course,
            after,
            outlives_its_sender: numbers.bool(),
            breaks_off: numbers.u32(0..1000) < rates.wrong,
            denies: numbers.u32(0..1000) < rates.wrong,
            damages: numbers.u32(0..1000) < rates.wrong
                && damages_from.is_none_or(|from| Instant::now() >= from),
            stall: STALLS[usize::from(numbers.u32(0..10) == 0)],
        }
    }
}
