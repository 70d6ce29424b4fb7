//! `pin` and `unpin`: add and remove pins.

use std::fmt::Write as _;

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::StepIdMembers;
use stepvault_core::{Result, StepId};
use stepvault_engine::blocking::blocking;
use stepvault_engine::tier::catalog::{pin, unpin};

use super::inventory::{ChosenStep, Inventory};
use crate::context::Tiers;
use crate::exit_code::ExitCode;
use crate::output::Report;
use crate::session::Session;

/// Keep a step on every tier, regardless of the keep rules
#[derive(Debug, Args)]
pub(crate) struct PinArguments {
    #[command(flatten)]
    pub(super) step: ChosenStep,
    /// Reason, stored with the pin
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(super) note: String,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct PinDocument {
    /// The run.
    run: String,
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// Whether the step is pinned.
    pinned: bool,
    /// Tiers whose state changed.
    changed: Vec<String>,
    /// Tiers that already had this state.
    unchanged: Vec<String>,
    /// Tiers that could not be read or changed; their state is unchanged.
    failed: Vec<FailedTier>,
}

#[derive(Serialize, JsonSchema)]
struct FailedTier {
    /// `local` or the remote's name.
    tier: String,
    /// The failed operation, its subject and the cause.
    message: String,
}

/// Pins if a note is given, else unpins. Tries every tier before it reports an error.
pub(super) async fn change(session: &Session, chosen: &ChosenStep, note: Option<&str>) -> Result<ExitCode> {
    let tiers = Tiers::load(session).await?;
    let mut inventory = Inventory::gather(&tiers, Some(chosen.step)).await?;
    let listed = chosen.find(tiers.run_name(), &mut inventory)?;
    let id = listed.id;
    let mut document = PinDocument {
        run: tiers.run_name().to_string(),
        id,
        pinned: note.is_some(),
        changed: Vec::new(),
        unchanged: Vec::new(),
        failed: Vec::new(),
    };
    let mut errors = inventory.failed;
    let unasked: Vec<String> = errors.iter().map(|(tier, _)| tier.clone()).collect();
    let mut count = |tier: String, result: Result<bool>| match result {
        Ok(true) => document.changed.push(tier),
        Ok(false) => document.unchanged.push(tier),
        Err(error) => errors.push((tier, error)),
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
            // A remote holds a pin only beside a commit; until then only the vault holds it.
            Some(_) if !listed.remotes.contains(&name) => continue,
            Some(note) => pin(remote, id, note).await,
            None => unpin(remote, id).await,
        };
        count(name, result);
    }
    tiers.progress.finish();
    let done = document.changed.len() + document.unchanged.len();
    let failures = errors.iter().map(|(_, error)| Err(error));
    let code = ExitCode::of_tiers(failures.chain((0..done).map(|_| Ok(()))));
    if done == 0
        && let Some((_, error)) = errors.pop()
    {
        return Err(error);
    }
    for (tier, error) in &errors {
        session.output.error_beside_report(error);
        document.failed.push(FailedTier { tier: tier.clone(), message: error.to_string() });
    }
    session.output.result(&document)?;
    Ok(code)
}

impl Report for PinDocument {
    fn human(&self) -> String {
        let what = format!("{} of '{}'", self.id, self.run);
        let (now, before) = if self.pinned {
            ("is now pinned on", "was already pinned on")
        } else {
            ("is no longer pinned on", "was not pinned on")
        };
        let parts = [(now, &self.changed), (before, &self.unchanged)];
        let parts = parts.into_iter().filter(|(_, tiers)| !tiers.is_empty());
        let parts = parts.map(|(words, tiers)| format!("{words} {}", tiers.join(", ")));
        let mut text = format!("{what} {}", parts.format(" and "));
        if !self.failed.is_empty() {
            let tiers = self.failed.iter().map(|failed| &failed.tier);
            let _ = write!(text, "; {} could not be read or changed", tiers.format(", "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_it_changed_and_where_not() {
        let mut document = PinDocument {
            run: "demo".to_owned(),
            id: StepId::from_label("000000000010.a1").unwrap(),
            pinned: true,
            changed: vec!["local".to_owned()],
            unchanged: vec!["main".to_owned()],
            failed: Vec::new(),
        };
        assert_eq!(
            document.human(),
            "step 10 (attempt 1) of 'demo' is now pinned on local and was already pinned on main"
        );
        document.changed.clear();
        document.pinned = false;
        assert_eq!(document.human(), "step 10 (attempt 1) of 'demo' was not pinned on main");
    }
}
