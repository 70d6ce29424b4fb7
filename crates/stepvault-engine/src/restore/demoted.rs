//! The order in which candidates are tried: the newest first, and demoted ones only when no other is left.

use std::collections::VecDeque;

use stepvault_core::observe::Event;

use super::candidates::{Candidate, Candidates};
use super::{RestoreContext, RestoreRequest, SkippedStep, passed_over};

/// Demoted candidates that were skipped, the newest first.
#[derive(Debug, Default)]
pub(super) struct LastResort {
    held_back: VecDeque<Candidate>,
}

impl LastResort {
    /// Returns the candidate to try next. An explicitly requested step is never held back.
    pub(super) fn next(
        &mut self,
        context: &RestoreContext,
        request: &RestoreRequest,
        candidates: &mut Candidates,
        skipped: &mut Vec<SkippedStep>,
    ) -> Option<Candidate> {
        while let Some(candidate) = candidates.next_newest() {
            match request.demoted.get(&candidate.id) {
                Some(reason) if request.step.is_none() => {
                    skipped.push(passed_over(context, &candidate, vec![reason.clone()]));
                    self.held_back.push_back(candidate);
                }
                _ => return Some(candidate),
            }
        }
        let candidate = self.held_back.pop_front()?;
        let message = format!("{} is restored despite this: no other step is left", candidate.id);
        context.observer.on_event(&Event::Warning { message: &message });
        let (step, attempt) = (candidate.id.step.number(), candidate.id.attempt.number());
        skipped.retain(|other| (other.step, other.attempt) != (step, attempt));
        Some(candidate)
    }
}
