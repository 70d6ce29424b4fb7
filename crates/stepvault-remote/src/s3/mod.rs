//! Amazon S3 and what speaks its protocol, through AWS's own SDK.
//!
//! Every byte is sent with its SHA-256 for the store to check, writes are conditional on a free key, and what the
//! store says it keeps is compared with what was sent.

mod attributes;
mod client;
mod connector;
mod copy;
mod date;
mod errors;
mod examine;
mod multipart;
mod pending;
mod read;
mod skew;
mod store;
mod verdicts;
mod write;

use std::sync::Arc;

use stepvault_core::Result;
use stepvault_core::remote_settings::RemoteSettings;

pub use self::client::StaticKeys;
pub(crate) use self::store::S3Store;
use crate::store::RemoteStore;

/// Opens a store without decorators. With `keys` AWS's usual chain of credentials is left out.
pub async fn open(settings: &RemoteSettings, keys: Option<StaticKeys>) -> Result<Arc<dyn RemoteStore>> {
    Ok(Arc::new(S3Store::open(settings, keys).await?))
}
