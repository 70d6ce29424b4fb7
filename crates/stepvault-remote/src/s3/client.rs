//! Creates clients from settings and AWS's usual chain: region, endpoint, credentials.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use aws_config::environment::region::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{AppName, BehaviorVersion, SdkConfig};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::interceptors::{
    BeforeDeserializationInterceptorContextMut, BeforeTransmitInterceptorContextMut,
    BeforeTransmitInterceptorContextRef, InterceptorContext,
};
use aws_sdk_s3::config::retry::{ClassifyRetry, RetryAction, RetryConfig};
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    Builder, ConfigBag, Credentials, Intercept, Region, RequestChecksumCalculation,
    ResponseChecksumValidation, RuntimeComponents, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::BoxError;
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use aws_types::service_config::ServiceConfigKey;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::checksums::dated;
use super::connector;
use super::credentials::Chain;
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
    keys: Option<StaticKeys>,
    /// When the store first refused a request because it knows no checksums.
    unchecked: Arc<OnceLock<Instant>>,
    current: Mutex<(Client, Instant)>,
    expired: AtomicBool,
}

impl Clients {
    /// Loads the configuration and creates the first client. Credentials are fetched with the first request.
    pub(crate) async fn load(settings: &RemoteSettings, keys: Option<StaticKeys>) -> Result<Self> {
        let unchecked = Arc::default();
        let client = load(settings, keys.as_ref(), Arc::clone(&unchecked)).await?;
        Ok(Self {
            unchecked,
            settings: settings.clone(),
            keys,
            current: Mutex::new((client, Instant::now())),
            expired: AtomicBool::new(false),
        })
    }

    /// Returns the client for the next request.
    pub(crate) async fn get(&self) -> Result<Client> {
        let mut current = self.current.lock().await;
        if self.expired.load(Ordering::Relaxed) && current.1.elapsed() >= LEAST_TIME_BETWEEN_RENEWALS {
            let unchecked = Arc::clone(&self.unchecked);
            let client = load(&self.settings, self.keys.as_ref(), unchecked).await?;
            *current = (client, Instant::now());
            self.expired.store(false, Ordering::Relaxed);
        }
        Ok(current.0.clone())
    }

    /// Reads AWS's configuration again, as these clients use it.
    pub(super) async fn chain(&self) -> Result<SdkConfig> {
        let (base, _) = trusting_chain(&self.settings, self.keys.as_ref()).await?;
        Ok(base)
    }

    /// Returns whether keys were given directly.
    pub(super) fn given(&self) -> bool {
        self.keys.is_some()
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
) -> Result<Client> {
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
    let mut builder = only_skew(Builder::from(&base))
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
    builder = builder.http_client(client).interceptor(CommonHeaders {
        owner: settings.expected_bucket_owner.clone(),
        requester_pays: settings.requester_pays,
        unchecked,
    });
    Ok(Client::from_conf(builder.build()))
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
    if let Some(keys) = keys {
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
#[derive(Debug)]
struct CommonHeaders {
    /// The account that must own the bucket.
    pub(super) owner: Option<String>,
    /// The sender pays for its requests.
    requester_pays: bool,
    /// Set for a store that refuses checksums, as Backblaze B2 does.
    unchecked: Arc<OnceLock<Instant>>,
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
        let headers = context.request_mut().headers_mut();
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

/// A refusal whose clock is this far from the signature may be caused by that. Stores accept 15 minutes; the SDK uses
/// 4.
const SUSPICIOUS: Duration = Duration::from_mins(4);
/// The refused request and its retry.
const TRIES: u32 = 2;
/// There is nothing to wait for.
const PAUSE: Duration = Duration::from_millis(10);

/// Configures the client to retry only this, once.
///
/// Requests are signed with the time. The SDK reads from every answer how far the store's clock is away, and signs
/// later requests by the store's clock. But the request from which it learned this has failed by then, and the SDK's
/// own retries are disabled here: our retries would go on for minutes where only a corrected clock helps. So exactly
/// this request is sent a second time, immediately, and no other one; a second refusal is final.
fn only_skew(builder: Builder) -> Builder {
    builder
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(TRIES)
                .with_initial_backoff(PAUSE)
                .with_max_backoff(PAUSE),
        )
        .interceptor(Notice)
        .retry_classifier(OnlySkew)
}

/// The time for which a request was signed, as its header has it.
#[derive(Debug, Clone)]
struct SignedFor(String);

impl Storable for SignedFor {
    type Storer = StoreReplace<Self>;
}

/// Marks a refusal whose date is far from the request's.
#[derive(Debug, Clone, Copy)]
struct RefusedFarAway;

/// Compares the signed time with the date of a refusal. Once the SDK knows the clock difference, they are close.
#[derive(Debug)]
struct Notice;

impl Intercept for Notice {
    fn name(&self) -> &'static str {
        "SkewNotice"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> std::result::Result<(), BoxError> {
        if let Some(time) = context.request().headers().get("x-amz-date") {
            config.interceptor_state().store_put(SignedFor(time.to_owned()));
        }
        Ok(())
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> std::result::Result<(), BoxError> {
        let response = context.response_mut();
        // By the status alone, because the answer to a HEAD has no code.
        if response.status().as_u16() != 403 {
            return Ok(());
        }
        let signed = config.load::<SignedFor>().and_then(|time| signed_for(&time.0));
        let date = response.headers().get("date").and_then(dated);
        let is_far = |(signed, date)| apart(signed, date) > SUSPICIOUS;
        if signed.zip(date).is_some_and(is_far) {
            response.add_extension(RefusedFarAway);
        }
        Ok(())
    }
}

/// The retry decorator, which has the deadline, handles every other failure.
#[derive(Debug)]
struct OnlySkew;

impl ClassifyRetry for OnlySkew {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        let response = context.response();
        match response.and_then(|response| response.extension::<RefusedFarAway>()) {
            Some(RefusedFarAway) => RetryAction::client_error(),
            None => RetryAction::RetryForbidden,
        }
    }

    fn name(&self) -> &'static str {
        "OnlySkew"
    }
}

fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|error| error.duration())
}

/// `20261121T101600Z`
fn signed_for(text: &str) -> Option<SystemTime> {
    let time = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", text).ok()?;
    Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_and_a_date_are_compared_either_way() {
        let signed = signed_for("20270115T080000Z").unwrap();
        let date = dated("Fri, 15 Jan 2027 09:00:00 GMT").unwrap();
        assert_eq!(apart(signed, date), Duration::from_hours(1));
        assert_eq!(apart(date, signed), Duration::from_hours(1));
        assert_eq!(apart(date, date), Duration::ZERO);
        for bad in ["", "2027", "20271315T080000Z", "2027-01-15T08:00:00Z"] {
            assert_eq!(signed_for(bad), None, "{bad}");
            assert_eq!(dated(bad), None, "{bad}");
        }
    }
}
