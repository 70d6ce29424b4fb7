//! Resolves arguments, environment and configuration file into settings and open tiers.

mod remote_choice;
mod settings;
mod sources;
mod tiers;

pub(crate) use self::settings::attempt;
pub(crate) use remote_choice::choose_remotes;
pub(crate) use settings::Settings;
pub(crate) use sources::{FILE_NAME, absolute, gather, given_remotes};
pub(crate) use tiers::{DefaultVault, Tiers, open_vault, vault_beside};
