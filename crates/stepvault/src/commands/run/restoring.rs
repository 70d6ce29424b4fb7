//! Restores a step before the trainer starts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stepvault_core::clock::Clock as _;
use stepvault_core::ids::StepId;
use stepvault_core::starts::{StartedProgram, demoted, restart_loop};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::restore::{RestoreRequest, Target, WantedSteps, restore};
use stepvault_local::clock::SystemClock;

use super::RunArguments;
use super::history::StartNote;
use super::place::Place;
use super::uploads::wait_for_uploads;
use crate::commands::restore::document::restored;
use crate::commands::restore::{existing, handoff_options, restore_context};
use crate::commands::starts::known_starts;
use crate::context::Tiers;
use crate::output::Report as _;
use crate::session::Session;

/// The step that a trainer resumes from.
#[derive(Debug, Clone)]
pub(super) struct RestoredStep {
    /// The step.
    pub(super) id: StepId,
    /// The step's path.
    pub(super) path: PathBuf,
    /// Whether the trainer's directory holds a newer step that no tier has, from which the trainer resumes instead.
    pub(super) is_outrun: bool,
}

/// Restores the step that the trainer resumes from; returns `None` if no step exists yet.
///
/// # Errors
/// If a step may exist but cannot be restored: starting from scratch would be worse than not starting.
pub(super) async fn restore_step(
    session: &Session,
    arguments: &RunArguments,
    place: &Place,
    tiers: &Tiers,
    note: &StartNote,
) -> Result<Option<RestoredStep>> {
    let demoted = look_back(tiers, note).await;
    if arguments.step.is_none() && arguments.attempt.is_none() {
        wait_for_uploads(session, tiers, place.settings.config.restart.wait_for_uploads).await;
    }
    let request = RestoreRequest {
        wanted: WantedSteps { step: arguments.step, attempt: arguments.attempt, revision: None },
        resumes: true,
        existing: existing(arguments.replace),
        handoff: Some(handoff_options(tiers, arguments.profile.clone(), arguments.no_pointer)?),
        demoted,
        allow_older: arguments.allow_older,
        ..arguments.nodes.request(tiers, Target::Into(place.directory.clone()))
    };
    let report = match restore(&restore_context(tiers), &request).await {
        Ok(report) => report,
        Err(error) if error.kind() == ErrorKind::NotFound && request.wanted.are_newest() => {
            // A vault that cannot be read may hold steps that no remote has.
            if let Some(fault) = &place.vault_fault {
                return Err(fault.clone());
            }
            tell(session, "no checkpoint exists yet: this is the first start");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let handoff = report.plan.handoff.as_ref();
    let restored_step = RestoredStep {
        id: report.plan.id,
        path: report.plan.path.clone(),
        is_outrun: handoff.is_some_and(|handoff| handoff.kept.is_some()),
    };
    let mut document = restored(tiers.run_name(), report);
    document.ask_given_up(tiers).await;
    tell(session, &document.human());
    Ok(Some(restored_step))
}

/// Checks earlier starts: warns of a restart loop, and returns the steps from which the trainer crashes.
async fn look_back(tiers: &Tiers, note: &StartNote) -> BTreeMap<StepId, String> {
    let rules = tiers.settings.config.restart;
    let known = known_starts(tiers).await;
    note.adopt(&known).await;
    let now = SystemClock.now();
    if let Some(found) = restart_loop(
        &known,
        tiers.run_name(),
        tiers.writer.place.node(),
        StartedProgram::Trainer,
        rules.restart_loop,
        now,
    ) {
        tiers.output.warn(&found.to_string());
    }
    demoted(&known, rules.demotion)
}

/// Prints text on stderr, because stdout belongs to the trainer.
pub(super) fn tell(session: &Session, text: &str) {
    if !session.output.is_quiet() {
        for line in text.lines() {
            session.output.line(line);
        }
    }
}

/// Adds the hint for a start that is refused because checkpoints may exist.
pub(super) fn refused(error: Error) -> Error {
    let own = error.hint_text().map_or_else(String::new, |hint| format!("{hint}; "));
    error.hint(format!(
        "{own}the trainer was not started, because it might start from scratch although checkpoints exist; give \
         --start-anyway to start it anyway"
    ))
}
