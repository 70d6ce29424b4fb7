//! Resolves arguments, environment and configuration file into settings and open tiers.

mod other_runs;
mod remote_choice;
mod settings;
mod sources;
mod tiers;

pub(crate) use self::settings::attempt;
pub(crate) use other_runs::{all_runs, hint_for_unknown_run};
pub(crate) use remote_choice::choose_remotes;
pub(crate) use settings::Settings;
pub(crate) use sources::{FILE_NAME, absolute, check_presence, gather, given_remotes};
pub(crate) use tiers::{DefaultVault, Tiers, open_vault, vault_beside};
