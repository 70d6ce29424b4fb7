//! The restore before the trainer's start.

use std::collections::BTreeMap;

use stepvault_agent::SystemClock;
use stepvault_core::clock::Clock as _;
use stepvault_core::ids::StepId;
use stepvault_core::starts::{Who, demoted, restart_loop};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::restore::{HandoverOptions, RestoreRequest, Target, restore};
use stepvault_local::staging::Existing;

use super::RunArguments;
use super::environment::RestoredStep;
use super::history::StartNote;
use super::place::Place;
use crate::commands::Session;
use crate::commands::restore::document::restored;
use crate::commands::restore::restore_context;
use crate::commands::starts::known_starts;
use crate::context::Tiers;
use crate::output::Report as _;

/// Puts the step in place that the trainer is to go on from; `None` when there is none yet.
///
/// # Errors
/// When there may be one that cannot be had: beginning anew would be worse than not to begin.
pub(super) async fn restore_step(
    session: &Session,
    arguments: &RunArguments,
    place: &Place,
    tiers: &Tiers,
    note: &StartNote,
) -> Result<Option<RestoredStep>> {
    let demoted = look_back(session, place, tiers, note).await;
    let request = RestoreRequest {
        run: tiers.run_name().clone(),
        target: Target::Into(place.directory.clone()),
        step: arguments.step,
        attempt: arguments.attempt,
        parts: arguments.nodes.parts(&tiers.writer),
        together: Some(arguments.nodes.together(&tiers.writer)),
        include: Vec::new(),
        existing: if arguments.replace {
            Existing::Replace
        } else {
            Existing::Refuse
        },
        handover: Some(HandoverOptions {
            profiles: place.settings.profiles()?,
            profile: arguments.profile.clone().or_else(|| tiers.run.profile.clone()),
            write: !arguments.no_pointer,
        }),
        demoted,
    };
    let asked_for_one = request.step.is_some() || request.attempt.is_some();
    let report = match restore(&restore_context(tiers), &request).await {
        Ok(report) => report,
        Err(error) if error.kind() == ErrorKind::NotFound && !asked_for_one => {
            // A vault that cannot be looked into may hold what no remote has.
            if let Some(fault) = &place.vault_fault {
                return Err(fault.duplicate());
            }
            tell(session, "no checkpoint exists yet: this is a first start");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let decision = &report.decision;
    let restored_step = RestoredStep {
        id: decision.id,
        path: decision.path.clone(),
        is_outrun: decision
            .handover
            .as_ref()
            .is_some_and(|handover| handover.kept.is_some()),
    };
    tell(session, &restored(tiers, report, &request.demoted).human());
    Ok(Some(restored_step))
}

/// What earlier starts have to say: a restart loop, and steps that the trainer does not survive.
async fn look_back(
    session: &Session,
    place: &Place,
    tiers: &Tiers,
    note: &StartNote,
) -> BTreeMap<StepId, String> {
    let rules = place.settings.config.restart;
    let known = known_starts(tiers, &session.output).await;
    note.adopt(&known).await;
    let now = SystemClock.now();
    if let Some(found) = restart_loop(
        &known,
        tiers.writer.place.node(),
        Who::Trainer,
        rules.restart_loop,
        now,
    ) {
        session.output.warn(&found.to_string());
    }
    demoted(&known, rules.demotion)
}

/// Says something on stderr: stdout is the trainer's.
pub(super) fn tell(session: &Session, text: &str) {
    if !session.output.is_quiet() {
        for line in text.lines() {
            session.output.line(&format!("stepvault: {line}"));
        }
    }
}

/// Says what to do when a start is refused although the trainer could begin anew.
pub(super) fn refused(error: Error) -> Error {
    let own = error
        .hint_text()
        .filter(|hint| !hint.is_empty())
        .map_or_else(String::new, |hint| format!("{hint}; "));
    error.hint(format!(
        "{own}the trainer was not started, since it might begin anew beside checkpoints that exist; --start-anyway \
         starts it all the same"
    ))
}
