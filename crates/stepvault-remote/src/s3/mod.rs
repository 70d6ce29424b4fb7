//! Amazon S3 and compatible stores, through AWS's own SDK, except for the bytes of objects and parts.
//!
//! All bytes are sent with a SHA-256 for the store to check (or a CRC-64/NVME, where their digests are BLAKE3), writes are
//! conditional on an unused key, and the checksum that the store reports is compared with the sent one.

mod checksums;
mod client;
mod clock;
mod connector;
mod copy;
mod credentials;
mod direct;
mod errors;
mod examine;
mod read;
mod requests;
mod store;
mod thaw;
mod write;

use std::sync::Arc;

use stepvault_core::{RemoteSettings, Result};

use self::store::S3Store;
use crate::examine::Examined;
pub use crate::options::StaticKeys;
use crate::store::RemoteStore;

/// Opens a store without decorators. With `keys`, AWS's usual chain of credentials is not used.
pub async fn open(settings: &RemoteSettings, keys: Option<StaticKeys>) -> Result<Arc<dyn RemoteStore>> {
    Ok(connect(settings, keys).await?.store)
}

/// Like [`open`], with what examines the bucket.
pub(crate) async fn connect(settings: &RemoteSettings, keys: Option<StaticKeys>) -> Result<Examined> {
    Ok(Examined::of(S3Store::open(settings, keys).await?))
}
