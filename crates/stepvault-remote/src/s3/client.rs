//! Creates clients from settings and AWS's usual chain: region, endpoint, credentials.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_config::environment::region::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{AppName, BehaviorVersion, SdkConfig};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::interceptors::BeforeTransmitInterceptorContextMut;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    Builder, ConfigBag, Credentials, Intercept, Region, RequestChecksumCalculation,
    ResponseChecksumValidation, RuntimeComponents, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::BoxError;
use aws_smithy_runtime_api::http::Headers;
use aws_types::service_config::ServiceConfigKey;
use stepvault_core::{Error, ErrorKind, RemoteSettings, Result};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

use super::clock::{StoreClock, only_skew};
use super::connector;
use super::credentials::Chain;
use super::direct::Direct;
use super::errors::Fault;
use crate::http::client::{HttpOptions, Scheme};
use crate::http::endpoint::{check_endpoint, is_loopback};
use crate::http::tls::{Authorities, ClientIdentity, has_roots};
use crate::options::StaticKeys;

/// Regions mean nothing to most self-hosted servers, but signatures need one.
const REGION_OF_CUSTOM_ENDPOINTS: &str = "us-east-1";
/// Variables that name an endpoint.
const ENDPOINT_VARIABLES: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
/// Minimum time between two reloads of expired credentials.
const LEAST_TIME_BETWEEN_RENEWALS: Duration = Duration::from_secs(2);

/// How long a request may be under way whose answer says that it should not have had checksums.
const LONGEST_UNDER_WAY: Duration = Duration::from_mins(1);

/// The client in use, recreated when the store reports that its credentials have expired.
///
/// The SDK renews credentials that have an expiry time. Credentials that a cron job writes to a file have none, and the
/// SDK caches them; only a new client reads the file again.
#[derive(Debug)]
pub(crate) struct Clients {
    pub(super) settings: RemoteSettings,
    /// Keys that were given directly.
    pub(super) keys: Option<StaticKeys>,
    /// When the store first refused a request because it knows no checksums.
    unchecked: Arc<OnceLock<Instant>>,
    current: Mutex<(Arc<Connection>, Instant)>,
    expired: AtomicBool,
}

/// A client, and what requests without it need.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sdk: Client,
    pub(super) common: CommonHeaders,
    pub(super) clock: StoreClock,
    direct: OnceCell<Option<Arc<Direct>>>,
}

impl Connection {
    /// Returns the way for requests without the SDK; `None` for a bucket that needs it for each. The first call fetches the
    /// credentials.
    pub(super) async fn direct(&self, bucket: &str) -> std::result::Result<Option<&Direct>, Fault> {
        let direct = self.direct.get_or_try_init(|| Direct::find(&self.sdk, bucket)).await?;
        Ok(direct.as_deref())
    }
}

impl Clients {
    /// Loads the configuration and creates the first client. Credentials are fetched with the first request.
    pub(crate) async fn load(settings: &RemoteSettings, keys: Option<StaticKeys>) -> Result<Self> {
        let unchecked = Arc::default();
        let connection = load(settings, keys.as_ref(), Arc::clone(&unchecked)).await?;
        Ok(Self {
            unchecked,
            settings: settings.clone(),
            keys,
            current: Mutex::new((Arc::new(connection), Instant::now())),
            expired: AtomicBool::new(false),
        })
    }

    /// Returns the client for the next request.
    pub(super) async fn get(&self) -> Result<Arc<Connection>> {
        let mut current = self.current.lock().await;
        if self.expired.load(Ordering::Relaxed) && current.1.elapsed() >= LEAST_TIME_BETWEEN_RENEWALS {
            let unchecked = Arc::clone(&self.unchecked);
            let connection = load(&self.settings, self.keys.as_ref(), unchecked).await?;
            *current = (Arc::new(connection), Instant::now());
            self.expired.store(false, Ordering::Relaxed);
        }
        Ok(Arc::clone(&current.0))
    }

    /// Reads AWS's configuration again, as these clients use it.
    pub(super) async fn chain(&self) -> Result<SdkConfig> {
        let (base, _) = trusting_chain(&self.settings, self.keys.as_ref()).await?;
        Ok(base)
    }

    /// Returns the profile in use, by AWS's rules.
    pub(super) fn profile(&self) -> String {
        let configured = self.settings.profile.clone();
        let named = configured.or_else(|| std::env::var("AWS_PROFILE").ok());
        named.unwrap_or_else(|| "default".to_owned())
    }

    /// Returns whether requests carry checksums.
    pub(super) fn sends_checksums(&self) -> bool {
        self.unchecked.get().is_none()
    }

    /// Sends no checksums from now on. Returns whether a request that is refused now may still have had some.
    pub(super) fn stop_checksums(&self) -> bool {
        self.unchecked.get_or_init(Instant::now).elapsed() < LONGEST_UNDER_WAY
    }

    /// Records that the store reported the credentials as expired.
    pub(crate) fn mark_expired(&self) {
        self.expired.store(true, Ordering::Relaxed);
    }
}

async fn load(
    settings: &RemoteSettings,
    keys: Option<&StaticKeys>,
    unchecked: Arc<OnceLock<Instant>>,
) -> Result<Connection> {
    let (base, authorities) = Box::pin(trusting_chain(settings, keys)).await?;
    let endpoint = settings.endpoint.clone().or_else(|| endpoint_of_chain(&base));
    let region = match (settings.region.clone(), base.region(), &endpoint) {
        (Some(region), _, _) => Region::new(region),
        (None, Some(region), _) => region.clone(),
        (None, None, Some(_)) => Region::from_static(REGION_OF_CUSTOM_ENDPOINTS),
        (None, None, None) => {
            return Err(Error::new(ErrorKind::Usage, "cannot open the remote")
                .on(&settings.url)
                .because("no region is configured")
                .hint("set region for this remote, or AWS_REGION, or region in the profile"));
        }
    };
    let stall_timeout = settings.stall_timeout();
    let clock = StoreClock::new(base.disable_clock_skew_correction() != Some(true));
    let mut builder = only_skew(Builder::from(&base), &clock)
        .region(region)
        .timeout_config(TimeoutConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    let (mut plain_http, mut local) = (false, false);
    if let Some(endpoint) = endpoint {
        let url = check_endpoint(&endpoint, settings.allow_http)?;
        (plain_http, local) = (url.scheme() == "http", is_loopback(&url));
        builder = builder
            .endpoint_url(url.as_str().trim_end_matches('/'))
            .force_path_style(!is_without_path_style(url.host_str().unwrap_or_default()));
    }
    if let Some(provider) = base.credentials_provider() {
        builder = builder.credentials_provider(Chain::new(provider));
    }
    if let Some(path_style) = settings.path_style {
        builder = builder.force_path_style(path_style);
    }
    let client = connector::http_client(HttpOptions {
        authorities,
        identity: ClientIdentity::of(settings)?,
        stall_timeout,
        is_local: local,
        scheme: Scheme::of(plain_http),
    })?;
    let common = CommonHeaders {
        owner: settings.expected_bucket_owner.clone(),
        requester_pays: settings.requester_pays,
        unchecked,
    };
    builder = builder.http_client(client).interceptor(common.clone());
    if settings.anonymous {
        builder = builder.allow_no_auth();
    }
    let sdk = Client::from_conf(builder.build());
    // The SDK sends what is not signed.
    let direct = OnceCell::new_with(settings.anonymous.then_some(None));
    Ok(Connection { sdk, common, clock, direct })
}

/// Returns whether a host belongs to a store that knows no requests with the bucket in the path, by what its documents
/// say (docs/stores-by-name.md).
fn is_without_path_style(host: &str) -> bool {
    const SUFFIXES: [&str; 4] = ["cwobject.com", "cwlota.com", "storage.dev", "storage.tigris.dev"];
    SUFFIXES.iter().any(|suffix| host == *suffix || host.ends_with(&format!(".{suffix}")))
}

/// Loads AWS's configuration, and the authorities that it or the remote's settings name. They are trusted for whatever
/// supplies the credentials too: it may be behind the same proxy.
async fn trusting_chain(
    settings: &RemoteSettings,
    keys: Option<&StaticKeys>,
) -> Result<(SdkConfig, Option<Authorities>)> {
    let base = load_chain(settings, keys, None).await?;
    let Some(path) = authorities_file(settings, &base) else {
        return Ok((base, None));
    };
    let authorities = Some(Authorities::read(&path)?);
    let base = load_chain(settings, keys, authorities.as_ref()).await?;
    Ok((base, authorities))
}

async fn load_chain(
    settings: &RemoteSettings,
    keys: Option<&StaticKeys>,
    authorities: Option<&Authorities>,
) -> Result<SdkConfig> {
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Ok(name) = AppName::new("stepvault") {
        loader = loader.app_name(name);
    }
    // The credentials of a store without TLS may need none either.
    let plain_http = authorities.is_none() && !has_roots();
    if authorities.is_some() || plain_http {
        loader = loader.http_client(connector::http_client(HttpOptions {
            authorities: authorities.cloned(),
            stall_timeout: settings.stall_timeout(),
            ..HttpOptions::default()
        })?);
    }
    if let Some(profile) = &settings.profile {
        loader = loader.profile_name(profile);
    }
    if settings.anonymous {
        loader = loader.no_credentials();
    } else if let Some(keys) = keys {
        loader = loader.credentials_provider(Credentials::new(
            &keys.access_key,
            &keys.secret_key,
            None,
            None,
            "given directly",
        ));
    }
    if let Some(region) = &settings.region {
        loader = loader.region(Region::new(region.clone()));
    } else if settings.endpoint.is_some()
        || ENDPOINT_VARIABLES.iter().any(|name| std::env::var_os(name).is_some())
    {
        // The usual chain ends with the instance's metadata service, which takes seconds where there is none.
        let mut profile = ProfileFileRegionProvider::builder();
        if let Some(name) = &settings.profile {
            profile = profile.profile_name(name);
        }
        loader = loader.region(
            RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new()).or_else(profile.build()),
        );
    }
    Ok(loader.load().await)
}

/// Returns the file with the authorities that the remote's settings, or AWS's own environment or profile, name.
fn authorities_file(settings: &RemoteSettings, base: &SdkConfig) -> Option<PathBuf> {
    let of_chain = || of_chain(base, "AWS_CA_BUNDLE", "ca_bundle").filter(|path| !path.is_empty());
    settings.ca_file.clone().or_else(|| of_chain().map(PathBuf::from))
}

/// Returns the endpoint that environment or profile define for S3, or for every service.
fn endpoint_of_chain(base: &SdkConfig) -> Option<String> {
    let of_s3 = of_chain(base, "AWS_ENDPOINT_URL", "endpoint_url");
    of_s3.or_else(|| base.endpoint_url().map(str::to_owned))
}

/// Returns what the variable `env`, or `profile` in the profile, sets for S3.
fn of_chain(base: &SdkConfig, env: &'static str, profile: &'static str) -> Option<String> {
    let key = ServiceConfigKey::builder().service_id("S3").env(env).profile(profile);
    base.service_config()?.load_config(key.build().ok()?)
}

const OWNER: &str = "x-amz-expected-bucket-owner";
const SOURCE_OWNER: &str = "x-amz-source-expected-bucket-owner";

/// Adds to every request what the settings demand, and removes what the store refuses.
#[derive(Debug, Clone)]
pub(super) struct CommonHeaders {
    /// The account that must own the bucket.
    owner: Option<String>,
    /// The sender pays for its requests.
    requester_pays: bool,
    /// Set for a store that refuses checksums, as Backblaze B2 does.
    unchecked: Arc<OnceLock<Instant>>,
}

impl CommonHeaders {
    /// Changes the headers of a request that is not signed yet.
    pub(super) fn apply(&self, headers: &mut Headers) -> std::result::Result<(), BoxError> {
        if let Some(owner) = &self.owner {
            // A request that tests the owner names another one.
            if !headers.contains_key(OWNER) {
                headers.try_insert(OWNER, owner.clone())?;
            }
            if headers.contains_key("x-amz-copy-source") {
                headers.try_insert(SOURCE_OWNER, owner.clone())?;
            }
        }
        if self.requester_pays {
            headers.insert("x-amz-request-payer", "requester");
        }
        if self.unchecked.get().is_some() {
            let names = headers.iter().map(|(name, _)| name.to_owned());
            let of_checksums: Vec<String> = names
                .filter(|name| name.starts_with("x-amz-checksum-") || name == "x-amz-sdk-checksum-algorithm")
                .collect();
            for name in of_checksums {
                headers.remove(name);
            }
        }
        Ok(())
    }
}

impl Intercept for CommonHeaders {
    fn name(&self) -> &'static str {
        "CommonHeaders"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> std::result::Result<(), BoxError> {
        self.apply(context.request_mut().headers_mut())
    }
}
