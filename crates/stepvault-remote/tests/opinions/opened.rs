//! Stores on the servers.

use std::sync::Arc;

use stepvault_core::ids::RunName;
use stepvault_core::keys::RunKeys;
use stepvault_core::observe::SilentObserver;
use stepvault_core::remote_settings::Transport;
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::RemoteStore;

use crate::support::settings;

pub(crate) const BUCKET: &str = "checkpoints";
pub(crate) const PREFIX: &str = "vault";

pub(crate) fn keys() -> RunKeys {
    RunKeys::new(RunName::new("run").unwrap())
}

/// With all decorators.
pub(crate) async fn s3(endpoint: &str, access_key: &str, secret_key: &str) -> Arc<dyn RemoteStore> {
    let mut settings = settings(&format!("s3://{BUCKET}/{PREFIX}"));
    settings.endpoint = Some(endpoint.to_owned());
    settings.region = Some("us-east-1".to_owned());
    let keys = StaticKeys { access_key: access_key.to_owned(), secret_key: secret_key.to_owned() };
    let options = OpenOptions { s3_keys: Some(keys), ..OpenOptions::default() };
    open_with(&settings, Arc::new(SilentObserver), options).await.unwrap()
}

/// With all decorators.
pub(crate) async fn gcs(endpoint: &str, transport: Transport) -> Arc<dyn RemoteStore> {
    let mut settings = settings(&format!("gs://{BUCKET}/{PREFIX}"));
    settings.endpoint = Some(endpoint.to_owned());
    settings.transport = transport;
    open_with(&settings, Arc::new(SilentObserver), OpenOptions::default()).await.unwrap()
}
