//! `pin` and `unpin`.

use clap::Args;
use serde::Serialize;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::pins::{pin, unpin};

use super::Session;
use super::inventory::Inventory;
use crate::arguments::values::checked;
use crate::context::{DefaultVault, Settings, Tiers};
use crate::exit_code::ExitCode;
use crate::output::Report;

/// Keep a step on every tier, whatever the rules say
#[derive(Debug, Args)]
pub(crate) struct PinArguments {
    #[command(flatten)]
    which: WhichStep,
    /// Why; kept with the pin
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
}

/// Leave a pinned step to the rules again
#[derive(Debug, Args)]
pub(crate) struct UnpinArguments {
    #[command(flatten)]
    which: WhichStep,
}

#[derive(Debug, Args)]
struct WhichStep {
    /// The step
    #[arg(value_name = "STEP", value_parser = checked::<Step>)]
    step: Step,
    /// Of this attempt; the newest when not given
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
}

#[derive(Serialize)]
struct PinDocument {
    run: String,
    step: u64,
    attempt: u32,
    pinned: bool,
    /// Tiers whose state changed.
    changed: Vec<String>,
    /// Tiers that were so before.
    unchanged: Vec<String>,
}

/// Runs `pin`.
pub(crate) async fn run_pin(session: &Session, arguments: &PinArguments) -> Result<ExitCode> {
    change(session, &arguments.which, Some(&arguments.note)).await
}

/// Runs `unpin`.
pub(crate) async fn run_unpin(session: &Session, arguments: &UnpinArguments) -> Result<ExitCode> {
    change(session, &arguments.which, None).await
}

/// Pins with a note, or unpins without one. Every tier is tried before an error is reported.
async fn change(session: &Session, which: &WhichStep, note: Option<&str>) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let tiers = Tiers::open(&settings, DefaultVault::None, &session.output).await?;
    tiers.require_any()?;
    let Found {
        id,
        on_remotes,
        failed,
    } = find(&tiers, which).await?;
    let mut document = PinDocument {
        run: tiers.run_name().to_string(),
        step: id.step.number(),
        attempt: id.attempt.number(),
        pinned: note.is_some(),
        changed: Vec::new(),
        unchanged: Vec::new(),
    };
    let unasked: Vec<String> = failed.iter().map(|(tier, _)| tier.clone()).collect();
    let mut errors: Vec<Error> = failed.into_iter().map(|(_, error)| error).collect();
    let mut count = |tier: String, result: Result<bool>| match result {
        Ok(true) => document.changed.push(tier),
        Ok(false) => document.unchanged.push(tier),
        Err(error) => errors.push(error),
    };
    if let Some(vault) = tiers.vault.clone() {
        let (run, note) = (tiers.run_name().clone(), note.map(str::to_owned));
        let changed = blocking(move || match note {
            Some(note) => {
                let was_pinned = vault.pins(&run)?.iter().any(|pin| pin.id == id);
                vault.pin(&run, id, &note).map(|()| !was_pinned)
            }
            None => vault.unpin(&run, id),
        });
        count("local".to_owned(), changed.await);
    }
    for remote in &tiers.remotes {
        let name = remote.name().to_string();
        if unasked.contains(&name) {
            continue;
        }
        let result = match note {
            // A pin stands only beside a commit; a step that is on its way is pinned in the vault until then.
            Some(_) if !on_remotes.contains(&name) => continue,
            Some(note) => pin(remote, id, note).await,
            None => unpin(remote, id).await,
        };
        count(name, result);
    }
    tiers.progress.finish();
    let done = document.changed.len() + document.unchanged.len();
    let results = errors.iter().map(Err).chain((0..done).map(|_| Ok(())));
    let code = ExitCode::of_tiers(results);
    if done == 0
        && let Some(error) = errors.pop()
    {
        return Err(error);
    }
    for error in &errors {
        session.output.error_beside_report(error);
    }
    session.output.result(&document)?;
    Ok(code)
}

/// The step that is meant.
struct Found {
    id: StepId,
    /// The remotes that have it.
    on_remotes: Vec<String>,
    /// The tiers that could not be asked.
    failed: Vec<(String, Error)>,
}

/// The newest attempt of the step, unless one is named.
async fn find(tiers: &Tiers, which: &WhichStep) -> Result<Found> {
    let Inventory { steps, failed } = Inventory::gather(tiers).await?;
    let found = steps.into_iter().find(|step| {
        step.step == which.step.number()
            && which
                .attempt
                .is_none_or(|attempt| attempt.number() == step.attempt)
    });
    if let Some(step) = found {
        let id = StepId::new(Attempt::new(step.attempt)?, which.step);
        return Ok(Found {
            id,
            on_remotes: step.remotes,
            failed,
        });
    }
    // Where a tier could not be asked, nobody knows that there is no such step.
    if let Some((_, error)) = failed.into_iter().next() {
        return Err(error);
    }
    Err(Error::new(ErrorKind::NotFound, "no such checkpoint")
        .on(format!("step {} of run '{}'", which.step, tiers.run_name()))
        .because("no tier has it")
        .hint("'stepvault list' shows what there is"))
}

impl Report for PinDocument {
    fn human(&self) -> String {
        let what = format!("step {} (attempt {}) of '{}'", self.step, self.attempt, self.run);
        let (now, before) = if self.pinned {
            ("is pinned now on", "was pinned already on")
        } else {
            ("is no longer pinned on", "was not pinned on")
        };
        let changed = (now, &self.changed);
        let unchanged = (before, &self.unchanged);
        let parts = [changed, unchanged]
            .into_iter()
            .filter(|(_, tiers)| !tiers.is_empty());
        let parts: Vec<String> = parts
            .map(|(words, tiers)| format!("{words} {}", tiers.join(", ")))
            .collect();
        format!("{what} {}", parts.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_it_changed_and_where_not() {
        let mut document = PinDocument {
            run: "demo".to_owned(),
            step: 10,
            attempt: 1,
            pinned: true,
            changed: vec!["local".to_owned()],
            unchanged: vec!["main".to_owned()],
        };
        assert_eq!(
            document.human(),
            "step 10 (attempt 1) of 'demo' is pinned now on local and was pinned already on main"
        );
        document.changed.clear();
        document.pinned = false;
        assert_eq!(
            document.human(),
            "step 10 (attempt 1) of 'demo' was not pinned on main"
        );
    }
}
