//! Opens a store from settings, with retries, limits and events.

use std::sync::Arc;

use stepvault_core::store_facts::Obstacle;
use stepvault_core::{Error, ErrorKind, Observer, RemoteSettings, Result, Scheme};

use crate::examine::{ExamineError, Examined, NothingToExamine};
use crate::limit::{FlowStore, RequestLimitStore};
use crate::retry::{RetryPolicy, RetryStore};
use crate::store::RemoteStore;

pub use crate::options::OpenOptions;

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
    let gives_up_soon = options.gives_up_soon;
    let bare = open_bare(settings, options).await?;
    Ok(decorate(bare.store, settings, RetryPolicy::of(settings, gives_up_soon), observer))
}

/// Opens the remote that `settings` describe, to examine it. Sends no request.
///
/// # Errors
/// When the settings are unusable, or the credentials cannot be read.
pub async fn open_to_examine(
    settings: &RemoteSettings,
    observer: Arc<dyn Observer>,
    options: OpenOptions,
) -> std::result::Result<Examined, ExamineError> {
    let opened = open_bare(settings, options).await;
    let bare = opened.map_err(|error| match error.kind() {
        ErrorKind::Denied => ExamineError::of(error),
        _ => ExamineError { obstacle: Obstacle::Settings, error },
    })?;
    let policy = RetryPolicy::of(settings, false);
    Ok(Examined { store: decorate(bare.store, settings, policy, observer), ..bare })
}

/// Opens a store: the one place that decides by the scheme.
///
/// # Errors
/// `Usage` for a kind of store that this program was built without, and for unusable settings.
#[cfg_attr(
    not(feature = "s3"),
    allow(unused_variables, clippy::unused_async, reason = "only S3 has options")
)]
pub(crate) async fn open_bare(settings: &RemoteSettings, options: OpenOptions) -> Result<Examined> {
    match settings.url.scheme {
        #[cfg(feature = "s3")]
        Scheme::S3 => crate::s3::connect(settings, options.s3_keys).await,
        #[cfg(feature = "gcs")]
        Scheme::Gcs => crate::gcs::connect(settings).await,
        #[cfg(feature = "azure")]
        Scheme::Azure => crate::generic::connect_azure(settings),
        Scheme::Memory => Ok(Examined::by(crate::generic::open_memory(settings)?, NothingToExamine)),
        Scheme::File => Ok(Examined::by(crate::file::open(settings)?, NothingToExamine)),
        #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
        _ => Err(not_built_in(settings)),
    }
}

/// Returns the error for a store whose feature was not enabled when this program was built.
#[allow(dead_code, reason = "used unless all are")]
fn not_built_in(settings: &RemoteSettings) -> Error {
    let scheme = settings.url.scheme.as_str();
    let feature = match settings.url.scheme {
        Scheme::Gcs => "gcs",
        Scheme::Azure => "azure",
        _ => scheme,
    };
    Error::new(ErrorKind::Usage, "cannot open the remote")
        .on(&settings.url)
        .because(format!("this program was built without {scheme}:// remotes"))
        .hint(format!("build it with `--features {feature}`, or without `--no-default-features`"))
}

/// Wraps a store in decorators: the request limit outermost, then retries, then the byte limit, so that a request
/// waiting for its retry keeps its permit and retransmitted bytes count again.
pub fn decorate(
    store: Arc<dyn RemoteStore>,
    settings: &RemoteSettings,
    policy: RetryPolicy,
    observer: Arc<dyn Observer>,
) -> Arc<dyn RemoteStore> {
    let stall_timeout = settings.stall_timeout();
    let flow = FlowStore::new(store, &settings.bandwidth_limit, stall_timeout);
    let retry = RetryStore::new(Arc::new(flow), policy, observer);
    Arc::new(RequestLimitStore::new(Arc::new(retry), settings.max_concurrent_requests))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepvault_core::ids::RemoteName;

    #[test]
    fn a_store_that_is_not_built_in_is_named_with_its_feature() {
        let name = RemoteName::new("r").unwrap();
        for (url, feature) in [("s3://b/p", "s3"), ("gs://b/p", "gcs"), ("az://b/p", "azure")] {
            let settings = RemoteSettings::new(name.clone(), url.parse().unwrap());
            let error = not_built_in(&settings);
            let scheme = url.split(':').next().unwrap();
            assert_eq!(
                error.to_string(),
                format!("cannot open the remote: {url}: this program was built without {scheme}:// remotes")
            );
            let hint = error.hint_text().unwrap();
            assert!(hint.contains(&format!("--features {feature}`")), "{hint}");
        }
    }
}
