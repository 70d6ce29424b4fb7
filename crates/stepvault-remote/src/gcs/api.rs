//! The requests that stepvault sends to a bucket itself, over one HTTP client: to Google's JSON API, and for uploads in
//! parts to its XML API. Google's own client does most of this over gRPC, which an endpoint of the user's may not have,
//! and has no uploads in parts that another process can continue.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request};
use serde::de::DeserializeOwned;
use stepvault_core::{Error, ErrorKind, RemoteSettings, Result};
use tokio::time::timeout;

use super::access::Access;
use super::xml::{Element, root};
use crate::http::body::{BodyFault, TakeBack, beginning, lend, whole};
use crate::http::client::{HttpOptions, Renewed, Scheme};
use crate::http::refusal::{Refusal, Silent, lost};
use crate::http::tls::{Authorities, ClientIdentity};
use crate::keys::{KeySpace, percent_encode};
use crate::payload::{Payload, PayloadBody};
use crate::pieces::patience;

/// Maximum length of a document that is read: a page of 1,000 entries has well under 2 MiB.
const MAXIMUM_DOCUMENT_BYTES: usize = 16 << 20;
/// The type of the bytes of every object.
pub(super) const CONTENT_TYPE: &str = "application/octet-stream";

pub(super) const COMPLETE: &str = "cannot complete the upload";
pub(super) const PENDING: &str = "cannot list the pending uploads";

/// Options for every new object.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectOptions {
    pub(super) storage_class: Option<String>,
    pub(super) kms_key: Option<String>,
}

/// The APIs of one bucket.
#[derive(Debug, Clone)]
pub(super) struct Api {
    pub(super) url: String,
    pub(super) bucket: String,
    pub(super) keys: KeySpace,
    pub(super) options: ObjectOptions,
    pub(super) stall_timeout: Duration,
    access: Access,
    http: Renewed<reqwest::Client>,
}

/// A request to be sent.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// The operation, for error messages.
    what: &'a str,
    method: Method,
    /// The key, for error messages; `None` for the bucket itself.
    key: Option<&'a str>,
    /// What follows the endpoint, encoded.
    path: String,
    /// Names and values, not encoded.
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Payload,
}

impl<'a> Call<'a> {
    /// Names an object in messages.
    pub(super) fn about(mut self, key: &'a str) -> Self {
        self.key = Some(key);
        self
    }

    /// Adds to the path, which is encoded already.
    pub(super) fn below(mut self, path: &str) -> Self {
        self.path.push_str(path);
        self
    }

    /// Adds parameters.
    pub(super) fn query<V: Into<String>>(
        mut self,
        query: impl IntoIterator<Item = (&'static str, V)>,
    ) -> Self {
        let query = query.into_iter().map(|(name, value)| (name, value.into()));
        self.query.extend(query);
        self
    }

    /// Adds headers.
    pub(super) fn headers(mut self, headers: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        self.headers.extend(headers);
        self
    }

    /// Sets the body and its type.
    pub(super) fn body(mut self, content_type: &str, body: impl Into<Payload>) -> Self {
        self.body = body.into();
        self.headers([("content-type", content_type.to_owned())])
    }

    /// Sets the body of part of an upload, which has no type.
    pub(super) fn part(mut self, body: Payload) -> Self {
        self.body = body;
        self
    }

    fn url(&self, endpoint: &str) -> String {
        let mut url = format!("{endpoint}{}", self.path);
        for (index, (name, value)) in self.query.iter().enumerate() {
            url.push(if index == 0 { '?' } else { '&' });
            url.extend([*name, "=", &percent_encode(value, "")]);
        }
        url
    }
}

/// A 2xx answer with its whole body.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    pub(super) document: String,
    subject: String,
    what: String,
}

impl Api {
    /// Reads the settings, and the credentials of Google's chain. Makes no request, except where [`Access::new`] does.
    ///
    /// # Errors
    /// `Usage` when the endpoint, an authority or the certificate cannot be used; `Denied` without credentials.
    pub(super) async fn new(settings: &RemoteSettings) -> Result<Self> {
        let access = Access::new(settings).await?;
        Ok(Self {
            url: settings.url.to_string(),
            bucket: settings.url.bucket.clone(),
            keys: KeySpace::new(&settings.url.prefix),
            options: ObjectOptions {
                storage_class: settings.storage_class.clone(),
                kms_key: settings.kms_key.clone(),
            },
            stall_timeout: settings.stall_timeout(),
            http: http_client(settings, access.plain_http)?,
            access,
        })
    }

    /// Returns the URL of an object, for messages.
    pub(super) fn subject(&self, key: Option<&str>) -> String {
        key.map_or_else(|| self.url.clone(), |key| format!("{}/{key}", self.url))
    }

    /// Returns the error of an operation `what` on the object `key`.
    pub(super) fn error(&self, kind: ErrorKind, what: &str, key: &str, why: impl std::fmt::Display) -> Error {
        Error::new(kind, what).on(self.subject(Some(key))).because(why)
    }

    /// Returns endpoint and credentials.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Returns a request to the JSON API about the object at `key`, or about the bucket.
    pub(super) fn json<'a>(&self, what: &'a str, method: Method, key: Option<&'a str>) -> Result<Call<'a>> {
        self.about_key(self.call(what, method, key, "/storage/v1/b/"), "/o/")
    }

    /// Returns the request to the JSON API that uploads the object at `key`.
    pub(super) fn json_upload<'a>(&self, what: &'a str, key: &'a str) -> Result<Call<'a>> {
        let name = self.keys.full(key)?;
        let call = self.call(what, Method::POST, Some(key), "/upload/storage/v1/b/");
        Ok(call.below("/o").query([("uploadType", "multipart".to_owned()), ("name", name)]))
    }

    /// Returns a request to the XML API about the object at `key`, or about the bucket.
    pub(super) fn xml<'a>(&self, what: &'a str, method: Method, key: Option<&'a str>) -> Result<Call<'a>> {
        self.about_key(self.call(what, method, key, "/"), "/")
    }

    fn about_key<'a>(&self, call: Call<'a>, between: &str) -> Result<Call<'a>> {
        match call.key {
            Some(key) => Ok(call.below(between).below(&self.encoded(key)?)),
            None => Ok(call),
        }
    }

    fn call<'a>(&self, what: &'a str, method: Method, key: Option<&'a str>, above: &str) -> Call<'a> {
        Call {
            what,
            method,
            key,
            path: format!("{above}{}", percent_encode(&self.bucket, "")),
            query: Vec::new(),
            headers: Vec::new(),
            body: Payload::default(),
        }
    }

    /// Returns the name of `key` in the bucket, so that no byte of it has a special meaning in a URL.
    pub(super) fn encoded(&self, key: &str) -> Result<String> {
        Ok(percent_encode(&self.keys.full(key)?, ""))
    }

    /// Sends one request and reads the document of a 2xx answer.
    pub(super) async fn send(&self, call: Call<'_>) -> Result<Answer> {
        let (what, subject) = (call.what.to_owned(), self.subject(call.key));
        let (response, _take_back) = self.open(call).await?;
        let headers = response.headers().clone();
        let fault = |kind, why: String| Error::new(kind, &what).on(&subject).because(why);
        let read = whole(response.bytes_stream(), self.stall_timeout, MAXIMUM_DOCUMENT_BYTES).await;
        let document = read.map_err(|error| match error {
            BodyFault::Lost(error) => client_error(&what, &subject, error),
            BodyFault::TooLong => fault(ErrorKind::Failed, error.to_string()),
            BodyFault::Silent(_) | BodyFault::TooSlow(_) => fault(ErrorKind::Unreachable, error.to_string()),
        })?;
        let document = String::from_utf8(document)
            .map_err(|_| fault(ErrorKind::Unreachable, "the answer is not text".to_owned()))?;
        Ok(Answer { headers, document, subject, what })
    }

    /// Sends one request and returns a 2xx answer whose body has not been read, and what keeps the request's body until
    /// it has.
    pub(super) async fn open(&self, call: Call<'_>) -> Result<(reqwest::Response, TakeBack<PayloadBody>)> {
        let (what, subject) = (call.what, self.subject(call.key));
        let limit = patience(self.stall_timeout, call.body.size_bytes());
        let (parts, payload) = self.request(call).await?.into_parts();
        let (body, take_back) = lend(payload.into_body());
        let request = Request::from_parts(parts, reqwest::Body::wrap(body));
        let request = request.try_into().map_err(|error| client_error(what, &subject, error))?;
        let mut lease = self.http.lease();
        let response = timeout(limit, lease.execute(request)).await;
        let response = response.map_err(|_| lost(what, &subject, false, &Silent(limit)))?;
        let response = lease.ended(response, reqwest::Error::is_connect);
        let response = response.map_err(|error| client_error(what, &subject, error))?;
        let status = response.status();
        if status.is_success() {
            return Ok((response, take_back));
        }
        let headers = response.headers().clone();
        let document = beginning(response.bytes_stream(), self.stall_timeout).await;
        Err(refusal_of(status.as_u16(), &headers, &document).to_error(what, &subject))
    }

    async fn request(&self, call: Call<'_>) -> Result<Request<Payload>> {
        let fault = |error: http::Error| {
            Error::new(ErrorKind::Failed, call.what).on(self.subject(call.key)).caused_by(error)
        };
        let mut request = Request::builder()
            .uri(call.url(&self.access.endpoint))
            .method(&call.method)
            .header(http::header::CONTENT_LENGTH, call.body.size_bytes());
        let bearer = self.access.bearer().await?;
        if !bearer.is_empty() {
            let mut value =
                HeaderValue::try_from(format!("Bearer {bearer}")).map_err(|error| fault(error.into()))?;
            value.set_sensitive(true);
            request = request.header(http::header::AUTHORIZATION, value);
        }
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        request.body(call.body).map_err(fault)
    }
}

/// Creates the client, with the authorities and the certificate that the settings name.
fn http_client(settings: &RemoteSettings, plain_http: bool) -> Result<Renewed<reqwest::Client>> {
    let options = HttpOptions {
        authorities: settings.ca_file.as_deref().map(Authorities::read).transpose()?,
        identity: ClientIdentity::of(settings)?,
        stall_timeout: settings.stall_timeout(),
        is_local: false,
        scheme: Scheme::of(plain_http),
    };
    options.open().map_err(|error| {
        Error::new(ErrorKind::Failed, "cannot open the remote")
            .on(&settings.url)
            .caused_by(error.without_url())
    })
}

/// Returns the error for a failure of the HTTP client. The message already contains the URL.
pub(super) fn client_error(what: &str, subject: &str, error: reqwest::Error) -> Error {
    lost(what, subject, error.is_connect(), &error.without_url())
}

/// Returns the refusal. The JSON API has one code for a missing object and a missing bucket, and none for a wrong checksum:
/// the text shows which it is.
pub(super) fn refusal_of(status: u16, headers: &HeaderMap, document: &[u8]) -> Refusal {
    let mut refusal = Refusal::new(status, headers, document);
    let names_bucket = |text: &str| text.starts_with("The specified bucket") || text.starts_with("Bucket ");
    if status == 404 && names_bucket(&refusal.message) {
        "NoSuchBucket".clone_into(&mut refusal.code);
    }
    let text = refusal.message.to_ascii_lowercase();
    if matches!(status, 400 | 412) && (text.contains("crc32c") || text.contains("md5")) {
        "BadDigest".clone_into(&mut refusal.code);
    }
    refusal
}

impl Answer {
    /// Returns the text of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the error for a successful answer that cannot be used: the next attempt finds out what it meant.
    pub(super) fn unusable(&self, why: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Unreachable, &self.what).on(&self.subject).because(why)
    }

    /// Returns the content of the JSON document.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.document)
            .map_err(|error| self.unusable(format!("the store's answer cannot be read ({error})")))
    }

    /// Returns the content of the XML document called `name`. A store may return 200 with an error document.
    pub(super) fn root(&self, name: &str) -> Result<Element> {
        if let Ok(error) = root(&self.document, "Error") {
            // The status reported success; the next attempt finds out whether it was.
            let refusal = Refusal {
                status: 500,
                code: error.text("Code").unwrap_or_default(),
                message: error.text("Message").unwrap_or_default(),
                retry_after_seconds: None,
                is_of_store: true,
            };
            return Err(refusal.to_error(&self.what, &self.subject));
        }
        root(&self.document, name)
            .map_err(|error| Error::new(error.kind(), &self.what).on(&self.subject).because(error))
    }
}
