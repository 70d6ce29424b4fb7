//! Azure's blob storage.

use object_store::azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};

use super::options::refuse_options;
use super::transport::{GuardedConnector, client_options, no_retries};
use crate::endpoint::check_endpoint;

/// A client from the settings and from Azure's own variables (`AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`,
/// `AZURE_CLIENT_ID`, …, `AZURE_STORAGE_USE_EMULATOR`).
pub(super) fn connect(settings: &RemoteSettings) -> Result<MicrosoftAzure> {
    refuse_options(
        settings,
        &[
            "storage_class",
            "server_side_encryption",
            "kms_key",
            "tags",
            "expected_bucket_owner",
        ],
    )?;
    let mut builder = MicrosoftAzureBuilder::from_env();
    let emulated = builder
        .get_config_value(&AzureConfigKey::UseEmulator)
        .is_some_and(|value| {
            matches!(
                value.to_ascii_lowercase().as_str(),
                "true" | "1" | "yes" | "on" | "t" | "y"
            )
        });
    let endpoint = settings
        .endpoint
        .clone()
        .or_else(|| builder.get_config_value(&AzureConfigKey::Endpoint));
    let mut allow_http = settings.allow_http;
    if let Some(endpoint) = endpoint {
        let url = check_endpoint(&endpoint, settings.allow_http)?;
        allow_http |= url.scheme() == "http";
        builder = builder.with_endpoint(endpoint);
    }
    if let (true, Ok(endpoint)) = (emulated, std::env::var("AZURITE_BLOB_STORAGE_URL")) {
        check_endpoint(&endpoint, settings.allow_http)?;
    }
    let stall_timeout = std::time::Duration::from_secs(settings.stall_timeout_seconds.max(1));
    builder
        .with_container_name(&settings.url.bucket)
        .with_client_options(client_options(allow_http))
        .with_retry(no_retries())
        .with_http_connector(GuardedConnector { stall_timeout })
        .build()
        .map_err(|error| {
            let kind = if error.to_string().contains("Account must be specified") { ErrorKind::Denied } else { ErrorKind::Usage };
            Error::new(kind, "cannot open the remote").on(&settings.url).caused_by(error).hint(
                "set AZURE_STORAGE_ACCOUNT_NAME and a credential: AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY, \
                 AZURE_CLIENT_ID with its secret or federated token, or a managed identity",
            )
        })
}
