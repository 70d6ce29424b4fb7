//! Requests that neither SDK supports. Of Google's XML API: parts with checksums, completion, listings with generations,
//! pending uploads. Of its JSON API what the SDK makes over another protocol: bucket metadata, copies, compositions,
//! listings, deletions.

use http::{HeaderMap, HeaderValue, Method, Request};
use stepvault_core::digest::Crc32c;
use stepvault_core::store_facts::Credentials;
use stepvault_core::{Error, ErrorKind, Result};

use super::access::Access;
use super::client::Client;
use super::xml::{Element, root};
use crate::generic::errors::refused;
use crate::generic::keys::KeySpace;
use crate::generic::transport::Refusal;
use crate::payload::Payload;

/// Options for every new object.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectOptions {
    pub(super) storage_class: Option<String>,
    pub(super) kms_key: Option<String>,
}

/// The XML API of one bucket.
#[derive(Debug, Clone)]
pub(super) struct Api {
    pub(super) url: String,
    pub(super) bucket: String,
    pub(super) keys: KeySpace,
    pub(super) options: ObjectOptions,
    access: Access,
    client: Client,
}

/// A request to be sent.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// The operation, for error messages.
    pub(super) what: &'a str,
    pub(super) method: Method,
    /// The key; `None` for the bucket itself.
    pub(super) key: Option<&'a str>,
    /// Names and values, not encoded.
    pub(super) query: &'a [(&'a str, &'a str)],
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Payload,
}

impl<'a> Call<'a> {
    /// Returns a request without query, headers and body.
    pub(super) fn new(what: &'a str, method: Method, key: Option<&'a str>) -> Self {
        Self {
            what,
            method,
            key,
            query: &[],
            headers: Vec::new(),
            body: Payload::default(),
        }
    }
}

/// A 2xx answer with its whole body.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    document: String,
    subject: String,
    what: String,
}

impl Api {
    pub(super) fn new(
        access: Access,
        url: String,
        bucket: String,
        keys: KeySpace,
        options: ObjectOptions,
        client: Client,
    ) -> Self {
        Self {
            url,
            bucket,
            keys,
            options,
            access,
            client,
        }
    }

    /// Returns the URL of an object, for messages.
    pub(super) fn subject(&self, key: Option<&str>) -> String {
        key.map_or_else(|| self.url.clone(), |key| format!("{}/{key}", self.url))
    }

    /// Fails where there are no credentials, with our own message and time limit; cheap where there are.
    pub(super) async fn check_credentials(&self) -> Result<()> {
        self.access.bearer().await.map(|_| ())
    }

    /// Fetches the credentials and returns their source.
    pub(super) async fn credentials(&self) -> Result<Credentials> {
        self.access.credentials().await
    }

    /// Returns the given `fields` of the bucket from the JSON API.
    pub(super) async fn bucket_document(&self, what: &str, fields: &str) -> Result<String> {
        let call = Call::new(what, Method::GET, None);
        self.send_json(&format!("?fields={}", encode(fields)), call).await
    }

    /// Sends one request to the JSON API and reads its answer. `path` follows the bucket's own path.
    pub(super) async fn send_json(&self, path: &str, call: Call<'_>) -> Result<String> {
        Ok(self.send_to(self.json_url(path), call).await?.document)
    }

    /// Sends one request that creates an object through the JSON API, and reads its answer.
    pub(super) async fn send_insert(&self, query: &str, call: Call<'_>) -> Result<String> {
        let (endpoint, bucket) = (&self.access.endpoint, encode(&self.bucket));
        let url = format!("{endpoint}/upload/storage/v1/b/{bucket}/o?{query}");
        Ok(self.send_to(url, call).await?.document)
    }

    /// Sends one request to the JSON API and returns its answer with the body unread.
    pub(super) async fn open_json(&self, path: &str, call: Call<'_>) -> Result<reqwest::Response> {
        let (what, subject) = (call.what, self.subject(call.key));
        let request = self.request(self.json_url(path), call).await?;
        let (response, _take_back) = self.client.open(what, &subject, request).await?;
        Ok(response)
    }

    fn json_url(&self, path: &str) -> String {
        format!(
            "{}/storage/v1/b/{}{path}",
            self.access.endpoint,
            encode(&self.bucket)
        )
    }

    /// Sends one request and reads its answer.
    pub(super) async fn send(&self, call: Call<'_>) -> Result<Answer> {
        let url = self.request_url(call.key, call.query)?;
        self.send_to(url, call).await
    }

    async fn send_to(&self, url: String, call: Call<'_>) -> Result<Answer> {
        let (what, subject) = (call.what, self.subject(call.key));
        let request = self.request(url, call).await?;
        let (headers, document) = self.client.send(what, &subject, request).await?;
        Ok(Answer {
            headers,
            document,
            subject,
            what: what.to_owned(),
        })
    }

    async fn request(&self, url: String, call: Call<'_>) -> Result<Request<Payload>> {
        let subject = self.subject(call.key);
        let fault = |error: http::Error| {
            Error::new(ErrorKind::Failed, call.what)
                .on(&subject)
                .caused_by(error)
        };
        let mut request = Request::builder()
            .method(call.method)
            .uri(url)
            .header(http::header::CONTENT_LENGTH, call.body.size_bytes());
        let bearer = self.access.bearer().await?;
        if !bearer.is_empty() {
            let mut value =
                HeaderValue::try_from(format!("Bearer {bearer}")).map_err(|error| fault(error.into()))?;
            value.set_sensitive(true);
            request = request.header(http::header::AUTHORIZATION, value);
        }
        for (name, value) in call.headers {
            request = request.header(name, value);
        }
        request.body(call.body).map_err(fault)
    }

    fn request_url(&self, key: Option<&str>, query: &[(&str, &str)]) -> Result<String> {
        let mut url = format!("{}/{}", self.access.endpoint, encode(&self.bucket));
        if let Some(key) = key {
            url.push('/');
            url.push_str(&encode(&self.keys.full(key)?));
        }
        for (index, (name, value)) in query.iter().enumerate() {
            url.push(if index == 0 { '?' } else { '&' });
            url.push_str(&encode(name));
            url.push('=');
            url.push_str(&encode(value));
        }
        Ok(url)
    }

    /// Returns the headers for storage class and encryption key of a new object.
    pub(super) fn option_headers(&self) -> Vec<(&'static str, String)> {
        let class = self
            .options
            .storage_class
            .clone()
            .map(|class| ("x-goog-storage-class", class));
        let key = self
            .options
            .kms_key
            .clone()
            .map(|key| ("x-goog-encryption-kms-key-name", key));
        class.into_iter().chain(key).collect()
    }

    /// Removes exactly the object that was written as `generation`, because it is damaged; best effort.
    pub(super) async fn discard(&self, key: &str, generation: &str) {
        const WHAT: &str = "cannot remove the damaged object";
        if let Err(error) = self.delete_object(WHAT, key, Some(generation)).await {
            tracing::warn!("{error}");
        }
    }
}

impl Answer {
    /// Returns the content of the document called `name`. A store may return 200 with an error document.
    pub(super) fn root(&self, name: &str) -> Result<Element> {
        if let Ok(error) = root(&self.document, "Error") {
            let code = error.text("Code").unwrap_or_default();
            let message = error.text("Message").unwrap_or_default();
            // The status reported success; the next attempt finds out whether it was.
            let error = refused(
                &self.what,
                &self.subject,
                &Refusal {
                    status: 500,
                    code,
                    message,
                    retry_after_seconds: None,
                    is_of_store: true,
                },
            );
            return Err(error);
        }
        root(&self.document, name).map_err(|error| {
            Error::new(error.kind(), &self.what)
                .on(&self.subject)
                .because(error)
        })
    }
}

/// Returns the CRC-32C from the `x-goog-hash` headers, of which there may be several.
pub(super) fn crc32c_of(headers: &HeaderMap) -> Option<Crc32c> {
    let values = headers
        .get_all("x-goog-hash")
        .iter()
        .filter_map(|value| value.to_str().ok());
    let text = values
        .flat_map(|value| value.split(','))
        .find_map(|item| item.trim().strip_prefix("crc32c="))?;
    crc32c_from(text)
}

/// Returns a CRC-32C from Google's text form.
pub(super) fn crc32c_from(text: &str) -> Option<Crc32c> {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    Some(Crc32c(u32::from_be_bytes(bytes.try_into().ok()?)))
}

/// Percent-encodes everything except letters, digits and `-_.~`, so that no byte of a key has a special meaning.
pub(super) fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut encoded, byte| {
            if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
                encoded.push(char::from(byte));
            } else {
                let _ = write!(encoded, "%{byte:02X}");
            }
            encoded
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_key_is_kept() {
        assert_eq!(encode("a/b c%2F?#é+~"), "a%2Fb%20c%252F%3F%23%C3%A9%2B~");
    }

    #[test]
    fn finds_the_checksum_in_any_of_the_headers() {
        let mut headers = HeaderMap::new();
        headers.append("x-goog-hash", HeaderValue::from_static("md5=AAAA"));
        headers.append("x-goog-hash", HeaderValue::from_static("crc32c=4waSgw=="));
        assert_eq!(crc32c_of(&headers), Some(Crc32c::of(b"123456789")));
        let mut headers = HeaderMap::new();
        headers.append(
            "x-goog-hash",
            HeaderValue::from_static("crc32c=4waSgw==,md5=AAAA"),
        );
        assert_eq!(crc32c_of(&headers), Some(Crc32c::of(b"123456789")));
        headers.insert("x-goog-hash", HeaderValue::from_static("crc32c=short"));
        assert_eq!(crc32c_of(&headers), None);
    }
}
