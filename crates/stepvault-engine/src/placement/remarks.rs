//! What a user is told of a decision.

use std::path::Path;
use std::sync::Arc;

use stepvault_core::placement::{Concern, Decision, Evidence, LeftAlone, Placement};
use stepvault_core::{Error, ErrorKind, Observer, StepId};

/// Returns what a user should know of a decision: that an attempt begins, and where numbers and times contradict each
/// other.
pub(crate) fn remarks(decision: &Decision) -> Vec<String> {
    let Placement::New(id) = decision.placement else {
        return Vec::new();
    };
    let step = id.step;
    let began = decision.began.filter(|_| !decision.amends).map(|evidence| {
        format!("attempt {} begins with step {step}: {}", id.attempt, evidence_text(&evidence))
    });
    let concern = decision.concern.map(|concern| match concern {
        Concern::WrittenAfter(newest) => format!(
            "step {step} was written after {newest}, which has the higher number and stays the newest; to resume from step \
             {step}, use 'stepvault restore --step {step}'"
        ),
        Concern::Replaces(other) => format!(
            "step {step} is another save than {other}, which stays beside it; if the run went back, push it with --attempt, \
             or use 'stepvault restore --step {step}'"
        ),
    });
    began.into_iter().chain(concern).collect()
}

/// Returns the evidence with which an attempt begins, in words.
pub fn evidence_text(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Restored(id) => format!("{id} was restored, and later steps existed"),
        Evidence::SeenAfter(step) => {
            format!("the agent saw the trainer save step {step} and this one below the highest number")
        }
        Evidence::Overwrote => "it was written over a step with that number or a higher one".to_owned(),
        Evidence::Launch => "a new launch saved it at or below the highest number".to_owned(),
        Evidence::Given => "the attempt was given".to_owned(),
    }
}

/// Reports the remarks on a decision.
pub(crate) fn report(decision: &Decision, observer: &Arc<dyn Observer>) {
    for message in remarks(decision) {
        match decision.concern {
            Some(_) => observer.warn(message),
            None => observer.info(message),
        }
    }
}

/// Returns why a checkpoint is not sealed. What retention removed is no fault; everything else is lost with the node.
pub(crate) fn refused(source: &Path, id: StepId, why: LeftAlone) -> Error {
    let (kind, what, hint) = match why {
        LeftAlone::Removed => (
            ErrorKind::Refused,
            "refusing to seal an old checkpoint".to_owned(),
            "to keep it, push it as a new attempt with --attempt",
        ),
        LeftAlone::Taken => {
            (ErrorKind::Conflict, format!("{id} is taken"), "omit --attempt, or give a higher one")
        }
        LeftAlone::LostFiles | LeftAlone::OneOfSeveral => (
            ErrorKind::Usage,
            "cannot seal what was changed in the checkpoint".to_owned(),
            "the step stays as it was sealed; to keep this state too, push it as a new attempt with --attempt",
        ),
    };
    let error = Error::at(kind, what, source).because(left_alone(id, why)).hint(hint);
    if why == LeftAlone::Removed { error.pruned() } else { error }
}

/// Returns why a checkpoint is not stored beside a step, in words.
pub(crate) fn left_alone(id: StepId, why: LeftAlone) -> String {
    match why {
        LeftAlone::Removed => format!("{id} was removed by retention or belongs to another launch"),
        LeftAlone::LostFiles => {
            format!("files of it were added or changed since {id} was sealed, and others of {id} are gone")
        }
        LeftAlone::OneOfSeveral => {
            format!(
                "files of it were added or changed since {id} was sealed, which several nodes have written"
            )
        }
        LeftAlone::Taken => format!("{id} has, or had, different files"),
    }
}
