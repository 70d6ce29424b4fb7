//! Opens a store from settings, with retries, limits and events.

use std::sync::Arc;
use std::time::Duration;

use stepvault_core::Result;
use stepvault_core::observe::Observer;
use stepvault_core::remote_settings::{RemoteSettings, Scheme};

use crate::examiner::BareStore;
use crate::generic::azure::AzureExaminer;
use crate::limit::{FlowStore, RequestLimitStore};
use crate::retry::{RetryPolicy, RetryStore};
use crate::s3::{S3Store, StaticKeys};
use crate::store::RemoteStore;

/// Options beside the settings.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Keys for S3 instead of AWS's usual chain; for tests.
    pub s3_keys: Option<StaticKeys>,
}

/// Opens the remote that `settings` describe. Sends no request; credentials are loaded when first needed.
pub async fn open(settings: &RemoteSettings, observer: Arc<dyn Observer>) -> Result<Arc<dyn RemoteStore>> {
    open_with(settings, observer, OpenOptions::default()).await
}

/// Opens the remote that `settings` describe, with options.
pub async fn open_with(
    settings: &RemoteSettings,
    observer: Arc<dyn Observer>,
    options: OpenOptions,
) -> Result<Arc<dyn RemoteStore>> {
    let bare = open_bare(settings, options).await?;
    Ok(decorate(bare.store, settings, observer))
}

/// Opens a store: the one place that decides by the scheme.
pub(crate) async fn open_bare(settings: &RemoteSettings, options: OpenOptions) -> Result<BareStore> {
    Ok(match settings.url.scheme {
        Scheme::S3 => BareStore::of(S3Store::open(settings, options.s3_keys).await?),
        Scheme::Gcs => crate::gcs::connect(settings).await?,
        Scheme::Azure => BareStore {
            store: crate::generic::open_azure(settings)?,
            examiner: Arc::new(AzureExaminer {
                settings: settings.clone(),
            }),
        },
        Scheme::Memory => BareStore::of_this_machine(crate::generic::open_memory(settings)?),
        Scheme::File => BareStore::of_this_machine(crate::file::open(settings)?),
    })
}

/// Wraps a store in decorators: the request limit outermost, then retries, then the byte limit, so that a request
/// waiting for its retry keeps its permit and retransmitted bytes count again.
pub fn decorate(
    store: Arc<dyn RemoteStore>,
    settings: &RemoteSettings,
    observer: Arc<dyn Observer>,
) -> Arc<dyn RemoteStore> {
    let stall_timeout = Duration::from_secs(settings.stall_timeout_seconds.max(1));
    let flow = FlowStore::new(store, settings.bandwidth_limit_bytes_per_second, stall_timeout);
    let retry = RetryStore::new(Arc::new(flow), RetryPolicy::of(settings), observer);
    Arc::new(RequestLimitStore::new(
        Arc::new(retry),
        settings.max_concurrent_requests,
    ))
}
