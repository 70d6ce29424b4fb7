//! Endpoint and credentials of the store, from one source for Google's client and the own requests.

use std::time::Duration;

use google_cloud_auth::credentials::{AccessTokenCredentials, Builder, Credentials, anonymous};
use google_cloud_auth::errors::CredentialsError;
use stepvault_core::store_facts::{CredentialSource, Credentials as FoundCredentials};
use stepvault_core::{Error, ErrorKind, RemoteSettings, Result};
use url::Url;

use crate::causes::distinct_texts;
use crate::http::endpoint::{check_endpoint, is_host_of, is_loopback, refuse_token};

/// Google's own endpoint.
const GOOGLE: &str = "https://storage.googleapis.com";
/// Google's own hosts are below this domain.
const GOOGLE_DOMAIN: &str = "googleapis.com";
/// The variable from which Google's SDKs take the address of an emulator.
const EMULATOR_VARIABLE: &str = "STORAGE_EMULATOR_HOST";
/// The variable that names a file of credentials.
const KEY_FILE_VARIABLE: &str = "GOOGLE_APPLICATION_CREDENTIALS";
const CREDENTIALS_HINT: &str = "set GOOGLE_APPLICATION_CREDENTIALS to a key or workload identity file, run 'gcloud auth \
    application-default login', or run on a machine with a service account";

/// The endpoint and the credentials of one remote.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// Without a trailing slash.
    pub(super) endpoint: String,
    /// Whether plain HTTP is intended.
    pub(super) plain_http: bool,
    /// Google's usual chain, refreshed in the background. `None` for an emulator, or a server on this machine: no
    /// credentials are used or searched for.
    token: Option<AccessTokenCredentials>,
    is_anonymous: bool,
    patience: Duration,
}

impl Access {
    /// Reads the settings and the environment. Makes no request, except for the domain of credentials that do not
    /// belong to Google's own cloud, where it is needed.
    ///
    /// The token is sent only to Google's own hosts, unless the endpoint is configured with `send-token`. An emulator
    /// gets none.
    pub(super) async fn new(settings: &RemoteSettings) -> Result<Self> {
        let (patience, is_anonymous) = (settings.stall_timeout(), settings.anonymous);
        let emulator = || std::env::var(EMULATOR_VARIABLE).ok().map(|host| with_scheme(&host));
        let is_emulator = settings.endpoint.is_none();
        let Some(given) = settings.endpoint.clone().or_else(emulator) else {
            return Ok(Self {
                endpoint: GOOGLE.to_owned(),
                plain_http: false,
                token: if is_anonymous { None } else { Some(google(settings)?) },
                is_anonymous,
                patience,
            });
        };
        let url = check_endpoint(&given, settings.allow_http)?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(Error::new(ErrorKind::Usage, "cannot use the endpoint")
                .on(url.origin().ascii_serialization())
                .because("it has a query or a fragment"));
        }
        Ok(Self {
            token: if is_anonymous { None } else { token_for(&url, is_emulator, settings, patience).await? },
            endpoint: url.as_str().trim_end_matches('/').to_owned(),
            plain_http: url.scheme() == "http",
            is_anonymous,
            patience,
        })
    }

    /// Returns the credentials for Google's SDK.
    pub(super) fn sdk_credentials(&self) -> Credentials {
        match &self.token {
            None => anonymous::Builder::new().build(),
            Some(credentials) => credentials.clone().into(),
        }
    }

    /// Returns the bearer token for a request; empty for none.
    pub(super) async fn bearer(&self) -> Result<String> {
        let Some(credentials) = &self.token else {
            return Ok(String::new());
        };
        let fault = |kind, why: String| {
            Error::new(kind, "cannot get credentials for Google Cloud Storage").because(why)
        };
        match tokio::time::timeout(self.patience, credentials.access_token()).await {
            Ok(Ok(token)) => Ok(token.token),
            Ok(Err(error)) => Err(fault(kind_of(&error), fault_text(&error)).hint(CREDENTIALS_HINT)),
            Err(_) => {
                let why = format!("no answer within {} seconds", self.patience.as_secs());
                Err(fault(ErrorKind::Unreachable, why).hint(CREDENTIALS_HINT))
            }
        }
    }

    /// Returns the source of the token, determined in Google's own order, after fetching one. The library does not
    /// report the expiry: it renews tokens by itself.
    pub(super) async fn credentials(&self) -> Result<FoundCredentials> {
        if self.is_anonymous {
            return Ok(FoundCredentials::anonymous());
        }
        self.bearer().await?;
        let source = match &self.token {
            None => CredentialSource::NotAsked,
            Some(_) => {
                source(std::env::var(KEY_FILE_VARIABLE).ok(), std::env::home_dir(), std::path::Path::is_file)
            }
        };
        Ok(FoundCredentials { source, expires: None, temporary: false })
    }
}

/// Returns the source that Google's library uses, in the same order: the file that a variable names, the file of
/// `gcloud`, the machine.
fn source(
    named: Option<String>,
    home: Option<std::path::PathBuf>,
    is_file: impl Fn(&std::path::Path) -> bool,
) -> CredentialSource {
    if let Some(path) = named {
        return CredentialSource::KeyFile(path);
    }
    let of_user = home.map(|home| home.join(".config/gcloud/application_default_credentials.json"));
    match of_user.filter(|path| is_file(path)) {
        Some(path) => CredentialSource::UserFile(path.display().to_string()),
        None => CredentialSource::Machine,
    }
}

/// Returns why no token could be had, and which file was to give it.
fn fault_text(error: &(dyn std::error::Error + 'static)) -> String {
    let why = distinct_texts(error).join(": ");
    match std::env::var(KEY_FILE_VARIABLE) {
        Ok(path) => format!("{KEY_FILE_VARIABLE} names {path}: {why}"),
        Err(_) => why,
    }
}

/// Returns whether a failure to get a token is transient or means wrong credentials.
pub(super) fn kind_of(error: &CredentialsError) -> ErrorKind {
    if error.is_transient() { ErrorKind::Unreachable } else { ErrorKind::Denied }
}

fn google(settings: &RemoteSettings) -> Result<AccessTokenCredentials> {
    Builder::default().build_access_token_credentials().map_err(|error| {
        Error::new(ErrorKind::Denied, "cannot get credentials for Google Cloud Storage")
            .on(&settings.url)
            .because(fault_text(&error))
            .hint(CREDENTIALS_HINT)
    })
}

/// Returns the token for a configured endpoint: it is sent to Google's own hosts, to those of the domain that the
/// credentials themselves name (a cloud that others run for Google), and where `send-token` allows it.
async fn token_for(
    url: &Url,
    is_emulator: bool,
    settings: &RemoteSettings,
    patience: Duration,
) -> Result<Option<AccessTokenCredentials>> {
    if is_loopback(url) {
        return Ok(None);
    }
    if is_host_of(url, &[GOOGLE_DOMAIN]) || settings.send_token {
        return google(settings).map(Some);
    }
    if is_emulator {
        return Ok(None);
    }
    let token = google(settings)?;
    let credentials = Credentials::from(token.clone());
    match tokio::time::timeout(patience, credentials.universe_domain()).await {
        Ok(Some(domain)) if is_host_of(url, &[domain.as_str()]) => Ok(Some(token)),
        _ => Err(refuse_token(url, "Google")),
    }
}

/// The variable often holds only `host:port`.
fn with_scheme(host: &str) -> String {
    if host.contains("://") { host.to_owned() } else { format!("http://{host}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepvault_core::ids::RemoteName;

    fn settings(endpoint: &str) -> RemoteSettings {
        let mut settings = RemoteSettings::new(RemoteName::new("r").unwrap(), "gs://b/p".parse().unwrap());
        settings.endpoint = Some(endpoint.to_owned());
        settings
    }

    #[tokio::test]
    async fn an_endpoint_on_this_machine_gets_no_credentials() {
        let access = Access::new(&settings("http://127.0.0.1:4443/")).await.unwrap();
        assert_eq!(access.endpoint, "http://127.0.0.1:4443");
        assert_eq!(access.bearer().await.unwrap(), "");
        assert!(access.plain_http);
    }

    #[tokio::test]
    async fn a_public_bucket_is_read_without_credentials() {
        let mut settings = settings("https://gateway.example");
        settings.anonymous = true;
        for endpoint in [None, settings.endpoint.clone()] {
            let access = Access::new(&RemoteSettings { endpoint, ..settings.clone() }).await.unwrap();
            assert_eq!(access.bearer().await.unwrap(), "");
            assert_eq!(access.credentials().await.unwrap(), FoundCredentials::anonymous());
        }
    }

    #[tokio::test]
    async fn plain_http_over_the_network_and_odd_endpoints_are_refused() {
        let refused = Access::new(&settings("http://10.1.2.3:4443")).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Usage);
    }

    #[tokio::test]
    async fn the_token_goes_to_googles_hosts_and_where_the_configuration_says_so() {
        let mut settings = settings("https://gateway.example");
        settings.stall_timeout_seconds = 1;
        let patience = Duration::from_secs(1);
        let gets_token = async |text: &str, is_emulator, settings: &RemoteSettings| {
            let url = Url::parse(text).unwrap();
            let token = token_for(&url, is_emulator, settings, patience).await?;
            Ok::<_, Error>(token.is_some())
        };
        for google in ["https://storage.googleapis.com", "https://storage-x.p.googleapis.com"] {
            assert!(gets_token(google, false, &settings).await.unwrap());
            assert!(gets_token(google, true, &settings).await.unwrap());
        }
        assert!(!gets_token("http://127.0.0.1:1", false, &settings).await.unwrap());
        assert!(!gets_token("https://emulator.example", true, &settings).await.unwrap());
        let foreign = "https://storage.googleapis.com.evil.example";
        let refused = gets_token(foreign, false, &settings).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Usage);
        assert!(refused.to_string().contains("it is not a host of Google"), "{refused}");
        assert!(refused.hint_text().unwrap().contains("send-token = true"));
        settings.send_token = true;
        assert!(gets_token(foreign, false, &settings).await.unwrap());
    }

    #[test]
    fn the_variable_goes_before_the_users_file_and_that_before_the_machine() {
        let home = || Some(std::path::PathBuf::from("/home/user"));
        let file = "/home/user/.config/gcloud/application_default_credentials.json";
        assert_eq!(
            source(Some("/key.json".to_owned()), home(), |_| true),
            CredentialSource::KeyFile("/key.json".to_owned())
        );
        assert_eq!(
            source(None, home(), |path| path == std::path::Path::new(file)),
            CredentialSource::UserFile(file.to_owned())
        );
        assert_eq!(source(None, home(), |_| false), CredentialSource::Machine);
        assert_eq!(source(None, None, |_| true), CredentialSource::Machine);
    }

    #[test]
    fn the_emulators_variable_may_lack_a_scheme() {
        assert_eq!(with_scheme("localhost:4443"), "http://localhost:4443");
        assert_eq!(with_scheme("https://h"), "https://h");
    }
}
