//! Numbers the checkpoints that a trainer saves one after another under the same name, where neither the name nor the content
//! tells their number.

use stepvault_core::{Error, ErrorKind, Result, Step};
use stepvault_formats::step_name;
use stepvault_local::sealed::SealedStep;

use super::seal::Sealing;
use crate::content::tree_matches_record;
use crate::placement::KnownSteps;
use crate::seen_checkpoints::{CheckpointIdentity, seen_content};

/// The number of a run's first step, if nothing tells it.
const FIRST: u64 = 1;
/// How often the tiers are asked again when they know of a newer step than before.
const MAX_ROUNDS: usize = 4;

/// The number of a checkpoint.
pub(super) struct StepNumber {
    pub(super) step: Step,
    /// As [`StepOrigin::unnumbered`](stepvault_core::step_origin::StepOrigin::unnumbered).
    pub(super) unnumbered: bool,
}

impl Sealing<'_> {
    /// Returns the number of the checkpoint if neither its name nor its content tells it: that of the step with its content,
    /// or one more than that of the newest step that any tier knows or knew. If that step has its number in its name, the
    /// next one will use this number too, and all contents until then are revisions under it.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if several nodes write the step: each could count differently.
    pub(super) async fn number(&self, identity: &CheckpointIdentity) -> Result<StepNumber> {
        let with = |step, unnumbered| Ok(StepNumber { step, unnumbered });
        let (request, sealed) = (&self.request, &self.sealed);
        if request.current.writer.place.nodes().is_several() {
            return Err(Error::at(
                ErrorKind::Usage,
                "cannot determine the step number",
                &request.checkpoint.source,
            )
            .because("neither its name nor its content tells it, and several nodes write the run")
            .hint("write the step's number into the name"));
        }
        let name = &request.checkpoint.name;
        let has_content =
            |step: &&SealedStep| step.name() == name && tree_matches_record(&self.tree, step.record());
        if let Some(step) = sealed.iter().rfind(has_content) {
            return with(step.id().step, step.record().origin.unnumbered);
        }
        let (seen, last_seen) = seen_content(self.vault, &request.run, identity).await?;
        if let Some(seen) = seen {
            return with(seen.step, false);
        }
        let mut known = KnownSteps::default();
        let mut newest = sealed.iter().map(SealedStep::id).max().max(last_seen);
        for _ in 0..MAX_ROUNDS {
            let step = newest.map_or(Step::new(FIRST)?, |id| id.step);
            // It was not seen before, under any number.
            known = self.query(&self.scanned(step, None)).known_steps(None).await?;
            if let Some(same) = known.with_content(step) {
                return with(same.id.step, same.unnumbered);
            }
            let found = known.steps.iter().map(|entry| entry.id).max().max(newest);
            if found == newest {
                break;
            }
            newest = found;
        }
        let Some(newest) = newest else {
            return with(Step::new(FIRST)?, false);
        };
        let mut newest_known = known.steps.iter().filter(|entry| entry.id == newest);
        if newest_known.any(|entry| entry.unnumbered) {
            return with(newest.step, true);
        }
        let name = self.name_of(newest).await;
        let has_number = |name: String| step_name::parse(&name) == Some(newest.step.number());
        with(Step::new(newest.step.number() + 1)?, name.is_some_and(has_number))
    }
}
