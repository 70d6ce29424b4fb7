//! Client for metadata services: plain HTTP to one address, without proxy or redirect, one connection for each request.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, DATE, HOST};
use http::uri::Scheme;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use stepvault_core::{Error, ErrorKind, Result, Timestamp};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Maximum size of an answer.
const MAX_BYTES: usize = 64 << 10;

/// The address of a metadata service.
#[derive(Debug, Clone)]
pub(super) struct Metadata {
    endpoint: String,
    host: String,
    port: u16,
    /// Prefix of every path.
    prefix: String,
}

/// The service's answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Reply {
    /// Returns a header's value.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the service's own time, if it sends it.
    pub(super) fn date(&self) -> Option<Timestamp> {
        let text = self.headers.get(DATE)?.to_str().ok()?;
        let time = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
        Some(Timestamp::from_seconds(time.as_second()))
    }
}

impl Metadata {
    /// Parses the service's URL.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for anything but `http://HOST[:PORT][/PREFIX]`.
    pub(super) fn at(endpoint: &str) -> Result<Self> {
        let fault = |why: &str| {
            // Whatever the text is, a secret would come before an '@' or in a query.
            let place = endpoint.split(['?', '#']).next().unwrap_or_default();
            Error::new(ErrorKind::Usage, "cannot query the metadata service")
                .on(place.rsplit('@').next().unwrap_or_default())
                .because(why)
                .hint("give it as http://HOST:PORT")
        };
        let uri: Uri = endpoint.parse().map_err(|_| fault("it is not a URL"))?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(fault("metadata services speak plain HTTP"));
        }
        let authority = uri.authority().ok_or_else(|| fault("it has no host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(fault("it has more than a host, a port and a path"));
        }
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self {
            endpoint: format!("http://{authority}{prefix}"),
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            prefix,
        })
    }

    /// Sends one request without a body.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when there is no answer within `patience`.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        patience: Duration,
    ) -> Result<Reply> {
        self.send(method, path, headers, String::new(), patience).await
    }

    /// Sends one request.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when there is no answer within `patience`.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
        patience: Duration,
    ) -> Result<Reply> {
        let fault = || {
            Error::new(ErrorKind::Unreachable, "cannot query the metadata service")
                .on(format!("{}{path}", self.endpoint))
        };
        match timeout(patience, self.exchange(method, path, headers, body)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(fault().because(error)),
            Err(_) => Err(fault().because(format!("no answer within {} s", patience.as_secs_f64()))),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> std::result::Result<Reply, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let host = match (self.host.contains(':'), self.port) {
            (true, port) => format!("[{}]:{port}", self.host),
            (false, 80) => self.host.clone(),
            (false, port) => format!("{}:{port}", self.host),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, host)
            .header(CONNECTION, "close");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let exchange = async move {
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, MAX_BYTES).collect().await?.to_bytes();
            Ok(Reply {
                status: parts.status,
                headers: parts.headers,
                body: String::from_utf8_lossy(&body).trim().to_owned(),
            })
        };
        // The connection performs the exchange; its end is irrelevant once there is an answer.
        tokio::pin!(exchange);
        tokio::select! {
            reply = &mut exchange => reply,
            _ = connection => exchange.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_plain_http() {
        let parts = |endpoint| {
            let metadata = Metadata::at(endpoint).unwrap();
            (metadata.host, metadata.port, metadata.prefix)
        };
        assert_eq!(parts("http://169.254.169.254"), ("169.254.169.254".to_owned(), 80, String::new()));
        assert_eq!(parts("http://[fd00:ec2::254]/"), ("fd00:ec2::254".to_owned(), 80, String::new()));
        assert_eq!(parts("http://127.0.0.1:1338/fake/"), ("127.0.0.1".to_owned(), 1338, "/fake".to_owned()));
        let error = Metadata::at("https://169.254.169.254").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot query the metadata service: https://169.254.169.254: metadata services speak plain HTTP"
        );
        for wrong in ["", "169.254.169.254", "http://", "ftp://x", "http://a b"] {
            Metadata::at(wrong).unwrap_err();
        }
    }

    #[test]
    fn secrets_in_an_endpoint_are_refused_and_not_repeated() {
        for wrong in [
            "http://user:s3cr3t@127.0.0.1",
            "http://127.0.0.1/?token=s3cr3t",
            "https://user:s3cr3t@127.0.0.1",
            "http://user:s3cr3t@ 127.0.0.1?s3cr3t",
        ] {
            let error = Metadata::at(wrong).unwrap_err();
            assert!(!error.to_string().contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn the_service_s_own_time_is_read() {
        let mut headers = HeaderMap::new();
        headers.insert(DATE, "Thu, 01 Jan 1970 00:01:40 GMT".parse().unwrap());
        let reply = Reply { status: StatusCode::OK, headers, body: String::new() };
        assert_eq!(reply.date(), Some(Timestamp::from_seconds(100)));
    }
}
