//! Azure Blob Storage.

use async_trait::async_trait;
use object_store::Certificate;
use object_store::azure::{AzureConfigKey, AzureCredential, MicrosoftAzure, MicrosoftAzureBuilder};
use stepvault_core::store_facts::{CredentialSource, Credentials};
use stepvault_core::{Error, ErrorKind, RemoteSettings, Result, Timestamp};

use super::store_error;
use super::transport::{GuardedConnector, client_options, no_retries};
use crate::examine::Examiner;
use crate::http::client::HttpOptions;
use crate::http::endpoint::{check_endpoint, is_host_of, is_loopback, refuse_token};
use crate::http::tls::{Authorities, ClientIdentity};
use crate::options::refuse_options;

/// Azure's own hosts are below these domains, in its public cloud and its government clouds.
const DOMAINS: [&str; 6] = [
    "core.windows.net",
    "storage.azure.net",
    "fabric.microsoft.com",
    "core.usgovcloudapi.net",
    "core.chinacloudapi.cn",
    "core.cloudapi.de",
];

/// Asks for credentials as requests to `az://` do; no rule of a container is read.
#[derive(Debug)]
pub(crate) struct AzureExaminer {
    pub(crate) settings: RemoteSettings,
}

#[async_trait]
impl Examiner for AzureExaminer {
    async fn credentials(&self) -> Result<Option<Credentials>> {
        credentials(&self.settings).await.map(Some)
    }
}

async fn credentials(settings: &RemoteSettings) -> Result<Credentials> {
    let azure = connect(settings)?;
    if settings.anonymous {
        return Ok(Credentials::anonymous());
    }
    let got =
        azure.credentials().get_credential().await.map_err(|error| {
            store_error("cannot get credentials for Azure", &settings.url.to_string(), error)
        })?;
    Ok(described(&got))
}

fn described(credential: &AzureCredential) -> Credentials {
    let (source, expires) = match credential {
        AzureCredential::AccessKey(_) => (CredentialSource::AccountKey, None),
        AzureCredential::SASToken(pairs) => (CredentialSource::SharedSignature, expiry_of(pairs)),
        AzureCredential::BearerToken(_) => (CredentialSource::DirectoryToken, None),
    };
    Credentials { temporary: source == CredentialSource::SharedSignature, source, expires }
}

/// Returns the expiry time from a shared access signature, which contains it in plain text.
fn expiry_of(pairs: &[(String, String)]) -> Option<Timestamp> {
    let (_, text) = pairs.iter().find(|(name, _)| name == "se")?;
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_seconds(time.as_second()))
}

/// Creates a client from the settings and Azure's own variables (`AZURE_STORAGE_ACCOUNT_NAME`,
/// `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_CLIENT_ID`, …, `AZURE_STORAGE_USE_EMULATOR`).
pub(super) fn connect(settings: &RemoteSettings) -> Result<MicrosoftAzure> {
    refuse_options(settings)?;
    let mut builder = MicrosoftAzureBuilder::from_env();
    let emulated = builder.get_config_value(&AzureConfigKey::UseEmulator).is_some_and(|value| {
        matches!(value.to_ascii_lowercase().as_str(), "true" | "1" | "yes" | "on" | "t" | "y")
    });
    let endpoint = settings.endpoint.clone().or_else(|| builder.get_config_value(&AzureConfigKey::Endpoint));
    let mut allow_http = settings.allow_http;
    if let Some(endpoint) = endpoint {
        let url = check_endpoint(&endpoint, settings.allow_http)?;
        let may_connect = settings.anonymous || settings.send_token;
        if !is_loopback(&url) && !is_host_of(&url, &DOMAINS) && !may_connect {
            return Err(refuse_token(&url, "Azure"));
        }
        allow_http |= url.scheme() == "http";
        builder = builder.with_endpoint(endpoint);
    }
    if let (true, Ok(endpoint)) = (emulated, std::env::var("AZURITE_BLOB_STORAGE_URL")) {
        let url = check_endpoint(&endpoint, settings.allow_http)?;
        if !is_loopback(&url) && !settings.send_token {
            return Err(refuse_token(&url, "Azure"));
        }
    }
    let fault = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::new(ErrorKind::Usage, "cannot open the remote").on(&settings.url).caused_by(error)
    };
    let authorities = settings.ca_file.as_deref().map(Authorities::read).transpose()?;
    let certificates = authorities.as_ref().map_or(Ok(Vec::new()), |authorities| {
        Certificate::from_pem_bundle(&authorities.0).map_err(|error| fault(error.into()))
    })?;
    let identity = ClientIdentity::of(settings)?;
    let identified = identity.map(|identity| HttpOptions {
        authorities,
        identity: Some(identity),
        stall_timeout: settings.stall_timeout(),
        ..HttpOptions::default()
    });
    if settings.anonymous {
        builder = builder.with_skip_signature(true);
    }
    builder
        .with_container_name(&settings.url.bucket)
        .with_client_options(client_options(allow_http, &certificates))
        .with_retry(no_retries())
        .with_http_connector(GuardedConnector {
            stall_timeout: settings.stall_timeout(),
            identified,
        })
        .build()
        .map_err(|error| {
            let kind = if error.to_string().contains("Account must be specified") { ErrorKind::Denied } else { ErrorKind::Usage };
            Error::new(kind, "cannot open the remote").on(&settings.url).caused_by(error).hint(
                "set AZURE_STORAGE_ACCOUNT_NAME and a credential: AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY, \
                 AZURE_CLIENT_ID with its secret or federated token, or a managed identity",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn azures_credentials_go_to_azures_hosts_and_where_the_configuration_says_so() {
        let name = stepvault_core::ids::RemoteName::new("r").unwrap();
        let mut settings = RemoteSettings::new(name, "az://container/p".parse().unwrap());
        let is_refused = |settings: &RemoteSettings| {
            // Without an account nothing can be opened, whatever the endpoint.
            let refused = connect(settings).err();
            refused.is_some_and(|error| error.to_string().contains("it is not a host of Azure"))
        };
        for (endpoint, is_foreign) in [
            ("https://account.blob.core.windows.net", false),
            ("https://account.blob.core.usgovcloudapi.net", false),
            ("http://127.0.0.1:10000/account", false),
            ("https://account.blob.core.windows.net.evil.example", true),
            ("https://evil.example", true),
        ] {
            settings.endpoint = Some(endpoint.to_owned());
            settings.send_token = false;
            assert_eq!(is_refused(&settings), is_foreign, "{endpoint}");
            settings.send_token = true;
            assert!(!is_refused(&settings), "{endpoint}");
        }
    }

    #[test]
    fn a_shared_signature_tells_its_end_and_a_token_does_not() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let signature =
            |end: &str| described(&AzureCredential::SASToken(vec![pair("sv", "2024"), pair("se", end)]));
        let found = signature("2027-01-15T08:00:00Z");
        assert_eq!(found.source, CredentialSource::SharedSignature);
        assert_eq!(found.expires, Some(Timestamp::from_seconds(1_800_000_000)));
        assert_eq!(signature("tomorrow").expires, None);
        assert!(signature("tomorrow").temporary);
        let token = described(&AzureCredential::BearerToken("secret".to_owned()));
        assert_eq!((token.source, token.temporary), (CredentialSource::DirectoryToken, false));
    }
}
