//! Requests for the bytes of objects and of parts, built and signed here: the SDK takes longer to prepare a request than a
//! small object takes to be sent. Endpoint, region and credentials are those that the SDK finds, and the requests travel
//! over its HTTP client.

use std::fmt::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::{ByteStream, SdkBody};
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4::SigningParams;
use aws_smithy_runtime_api::client::auth::{AuthScheme as _, AuthSchemeId};
use aws_smithy_runtime_api::client::http::{
    HttpClient as _, HttpConnector as _, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::identity::{
    Identity, ResolveCachedIdentity as _, SharedIdentityResolver,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::http::Headers;
use aws_smithy_types::endpoint::Endpoint;
use aws_types::sdk_config::TimeSource as _;
use futures::stream;
use stepvault_core::Result;

use super::checksums::{AnswerHeaders, SentChecksum};
use super::client::{CommonHeaders, Connection};
use super::clock::TRIES;
use super::errors::Fault;
use super::store::S3Store;
use crate::causes::find;
use crate::http::body::beginning;
use crate::keys::percent_encode;
use crate::payload::Payload;
use crate::store::StoredChecksum;

/// The scheme of signatures that is known here.
const SIGNATURES: AuthSchemeId = AuthSchemeId::new("sigv4");
/// Type of the bytes of every object.
const CONTENT_TYPE: &str = "application/octet-stream";

/// A request for the bytes of an object, or of a part.
#[derive(Debug)]
pub(super) struct Call<'a> {
    key: &'a str,
    /// The upload, and the number of the part in it.
    part: Option<(&'a str, i32)>,
    headers: Vec<(&'static str, String)>,
    /// The bytes to be written; `None` to read.
    body: Option<Payload>,
}

impl<'a> Call<'a> {
    /// Returns the request that reads an object.
    pub(super) fn read(key: &'a str) -> Self {
        Self { key, part: None, headers: Vec::new(), body: None }
    }

    /// Returns the request that writes bytes with their checksum.
    pub(super) fn write(key: &'a str, body: Payload, checksum: &StoredChecksum) -> Self {
        let length = Some(body.size_bytes().to_string());
        let call = Self { body: Some(body), ..Self::read(key) };
        let call =
            call.header("content-type", Some(CONTENT_TYPE.to_owned())).header("content-length", length);
        SentChecksum::of(checksum)
            .headers()
            .into_iter()
            .fold(call, |call, (name, value)| call.header(name, value))
    }

    /// Makes the bytes a part of an upload.
    pub(super) fn of_upload(self, upload: &'a str, number: i32) -> Self {
        Self { part: Some((upload, number)), ..self }
    }

    /// Adds a header, if it has a value.
    pub(super) fn header(mut self, name: &'static str, value: Option<String>) -> Self {
        self.headers.extend(value.map(|value| (name, value)));
        self
    }

    /// Returns the body of one request.
    fn sdk_body(&self) -> SdkBody {
        self.body.clone().map_or_else(SdkBody::empty, |body| SdkBody::from_body_1_x(body.into_body()))
    }
}

/// A successful answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) headers: Headers,
    /// What is read, as it arrives; nothing after a write.
    pub(super) body: SdkBody,
}

/// How requests reach a bucket without the SDK.
#[derive(Debug)]
pub(super) struct Direct {
    /// The bucket's URL, without a slash at the end.
    bucket_url: String,
    /// Region and service for which requests are signed.
    region: String,
    service: String,
    settings: SigningSettings,
    identities: SharedIdentityResolver,
    connector: SharedHttpConnector,
    /// With the SDK's cache of credentials.
    components: RuntimeComponents,
    none: ConfigBag,
}

/// Reports how the SDK would send a request, as the error that keeps it from doing so.
#[derive(Debug)]
struct Finder;

#[derive(Debug, thiserror::Error)]
#[error("the request is only prepared")]
struct Prepared(Option<Arc<Direct>>);

impl Intercept for Finder {
    fn name(&self) -> &'static str {
        "Finder"
    }

    fn read_before_signing(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> std::result::Result<(), BoxError> {
        let endpoint = config.load::<Endpoint>();
        let direct = endpoint.and_then(|endpoint| Direct::new(endpoint, components.clone()));
        Err(Prepared(direct.map(Arc::new)).into())
    }
}

impl Direct {
    /// Asks the SDK how it would send a request, and sends none. Returns `None` for a bucket whose requests are not signed
    /// with the credentials themselves: a directory bucket is used in a session, which the SDK opens and renews.
    pub(super) async fn find(sdk: &Client, bucket: &str) -> std::result::Result<Option<Arc<Self>>, Fault> {
        let request = sdk.get_object().bucket(bucket).key("any").customize().interceptor(Finder);
        let Err(error) = request.send().await else {
            return Ok(None);
        };
        match find::<Prepared>(&error) {
            Some(Prepared(direct)) => Ok(direct.clone()),
            None => Err(Fault::of(&error)),
        }
    }

    fn new(endpoint: &Endpoint, components: RuntimeComponents) -> Option<Self> {
        let scheme = endpoint.auth_schemes().first()?;
        if scheme.name() != SIGNATURES.inner() || endpoint.headers().next().is_some() {
            return None;
        }
        let told = |name| scheme.get(name)?.as_string().map(str::to_owned);
        let mut settings = SigningSettings::default();
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let client = components.http_client()?;
        Some(Self {
            bucket_url: endpoint.url().trim_end_matches('/').to_owned(),
            region: told("signingRegion")?,
            service: told("signingName")?,
            settings,
            identities: components.auth_scheme(SIGNATURES)?.identity_resolver(&components)?,
            connector: client.http_connector(&HttpConnectorSettings::builder().build(), &components),
            components,
            none: ConfigBag::base(),
        })
    }

    /// Sends a request about `full_key` that is signed for `time`.
    async fn send(
        &self,
        call: &Call<'_>,
        full_key: &str,
        common: &CommonHeaders,
        time: SystemTime,
    ) -> std::result::Result<HttpResponse, Fault> {
        let cache = self.components.identity_cache();
        let found = cache.resolve_cached_identity(self.identities.clone(), &self.components, &self.none);
        let identity = found.await.map_err(|error| Fault::of_unsent(&*error, true))?;
        let request = self.request(call, full_key, common, time, &identity);
        let request = request.map_err(|error| Fault::of_unsent(&*error, true))?;
        self.connector.call(request).await.map_err(|error| Fault::of_unsent(&error, false))
    }

    fn request(
        &self,
        call: &Call<'_>,
        full_key: &str,
        common: &CommonHeaders,
        time: SystemTime,
        identity: &Identity,
    ) -> std::result::Result<HttpRequest, BoxError> {
        let mut url = format!("{}/{}", self.bucket_url, percent_encode(full_key, "/"));
        match (&call.part, &call.body) {
            (None, None) => url.push_str("?x-id=GetObject"),
            (None, Some(_)) => url.push_str("?x-id=PutObject"),
            (Some((upload, number)), _) => {
                let upload = percent_encode(upload, "");
                write!(url, "?x-id=UploadPart&partNumber={number}&uploadId={upload}")?;
            }
        }
        let mut request = HttpRequest::new(call.sdk_body());
        request.set_method(if call.body.is_some() { "PUT" } else { "GET" })?;
        request.set_uri(url)?;
        for (name, value) in &call.headers {
            request.headers_mut().try_insert(*name, value.clone())?;
        }
        common.apply(request.headers_mut())?;
        // The checksum is in a signed header, so an unsigned body is still protected; signing it would hash twice.
        let body = call.body.as_ref().map_or_else(SignableBody::empty, |_| SignableBody::UnsignedPayload);
        let parameters = SigningParams::builder()
            .identity(identity)
            .region(&self.region)
            .name(&self.service)
            .time(time)
            .settings(self.settings.clone())
            .build()?
            .into();
        let signable = SignableRequest::new(request.method(), request.uri(), request.headers().iter(), body)?;
        let (signature, _) = sign(signable, &parameters)?.into_parts();
        for (name, value) in signature.headers() {
            request.headers_mut().try_insert(name.to_owned(), value.to_owned())?;
        }
        Ok(request)
    }
}

impl S3Store {
    /// Sends a request; a refusal is the error of `what`.
    pub(super) async fn sent(&self, what: &str, call: &Call<'_>) -> Result<Answer> {
        self.send(call).await?.map_err(|fault| fault.into_error(what, &self.name(call.key)))
    }

    /// Sends a request, and returns its answer or why there is none. The body of the answer to a read is not read yet.
    pub(super) async fn send(&self, call: &Call<'_>) -> Result<std::result::Result<Answer, Fault>> {
        let connection = self.clients.get().await?;
        let answer = match connection.direct(&self.bucket).await {
            Ok(Some(direct)) => self.send_directly(direct, &connection, call).await,
            Ok(None) => self.send_by_sdk(&connection.sdk, call).await,
            Err(fault) => Err(fault),
        };
        Ok(answer.map_err(|fault| self.noted(fault)))
    }

    async fn send_directly(
        &self,
        direct: &Direct,
        connection: &Connection,
        call: &Call<'_>,
    ) -> std::result::Result<Answer, Fault> {
        let full_key = self.full_key(call.key);
        let mut tries = 0;
        loop {
            let time = connection.clock.now();
            let mut answer = direct.send(call, &full_key, &connection.common, time).await?;
            let is_success = answer.status().is_success();
            let body = answer.take_body();
            if is_success && call.body.is_none() {
                return Ok(Answer { headers: answer.headers().clone(), body });
            }
            let pieces = stream::unfold(ByteStream::new(body), |mut body| async {
                body.next().await.map(|piece| (piece, body))
            });
            // To its end also after success, so that the connection can be used again.
            let document = beginning(pin!(pieces), self.clients.settings.stall_timeout()).await;
            if is_success {
                return Ok(Answer { headers: answer.headers().clone(), body: SdkBody::empty() });
            }
            tries += 1;
            if tries == TRIES || !connection.clock.is_set_by(time, &answer) {
                return Err(Fault::of_answer(&answer, &document));
            }
        }
    }

    /// Sends the request as one of the SDK's operations, with the same headers.
    async fn send_by_sdk(&self, sdk: &Client, call: &Call<'_>) -> std::result::Result<Answer, Fault> {
        let kept = AnswerHeaders::default();
        let headers = call.headers.clone();
        let add = move |request: &mut HttpRequest| {
            for (name, value) in &headers {
                request.headers_mut().insert(*name, value.clone());
            }
        };
        let (bucket, key) = (&self.bucket, self.full_key(call.key));
        let body = || ByteStream::new(call.sdk_body());
        let answered = match (call.part, &call.body) {
            (Some((upload, number)), _) => {
                let request = sdk.upload_part().bucket(bucket).key(key).upload_id(upload).part_number(number);
                let request = request.body(body()).customize().disable_payload_signing();
                let sent = request.mutate_request(add).interceptor(kept.clone()).send().await;
                sent.map(|_| SdkBody::empty()).map_err(|error| Fault::of(&error))
            }
            (None, Some(_)) => {
                let request = sdk.put_object().bucket(bucket).key(key).body(body()).customize();
                let request = request.disable_payload_signing().mutate_request(add);
                let sent = request.interceptor(kept.clone()).send().await;
                sent.map(|_| SdkBody::empty()).map_err(|error| Fault::of(&error))
            }
            (None, None) => {
                let request = sdk.get_object().bucket(bucket).key(key).customize().mutate_request(add);
                let sent = request.interceptor(kept.clone()).send().await;
                sent.map(|output| output.body.into_inner()).map_err(|error| Fault::of(&error))
            }
        };
        answered.map(|body| Answer { headers: kept.kept().clone(), body })
    }
}
