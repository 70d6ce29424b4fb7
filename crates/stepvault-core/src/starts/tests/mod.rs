//! What a start and its end are called, and starts for the tests of the modules beside it.

mod properties;

use super::*;
use crate::ids::{Attempt, Step};

pub(crate) fn step(number: u64) -> StepId {
    StepId::new(Attempt::FIRST, Step::new(number).unwrap())
}

/// Returns a trainer's start on `node` that resumed from `restored`.
pub(crate) fn start(id: &str, node: &str, at: i64, restored: Option<StepId>) -> Start {
    Start {
        id: id.to_owned(),
        who: StartedProgram::Trainer,
        node: NodeName::new(node).unwrap(),
        started_at: Timestamp::from_seconds(at),
        launch: None,
        restored,
        process: None,
        trainer: None,
        end: None,
    }
}

pub(crate) fn ended(start: Start, lasted_seconds: u64, how: Ending) -> Start {
    let end = Some(End { lasted_seconds, how });
    Start { end, ..start }
}

#[test]
fn endings_and_spans_are_words() {
    assert_eq!(Ending::Exited(1).to_string(), "exit 1");
    assert_eq!(Ending::Killed(11).to_string(), "signal 11");
    assert_eq!(Ending::stopped("a signal").to_string(), "stopped by a signal");
    assert_eq!(start("a", "n", 0, None).ending(), "unknown");
    for (seconds, text) in [(0, "0 s"), (90, "90 s"), (300, "5 min"), (7200, "2 h")] {
        assert_eq!(span(seconds), text);
    }
    let Ending::Failed(text) = Ending::failed("ü".repeat(400)) else { panic!("another ending") };
    assert_eq!(text.len(), MAXIMUM_REASON_BYTES);
}
