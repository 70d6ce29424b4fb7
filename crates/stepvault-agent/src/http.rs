//! HTTP for clients that may be slow, malicious or numerous: connections, heads and the time for each are bounded, and
//! none of them runs on the threads that seal and upload.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stepvault_core::{Error, ErrorKind, Result, Sha256Digest};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
pub use tokio_rustls::TlsAcceptor;
use tokio_util::net::Listener;
use tokio_util::sync::CancellationToken;

/// Maximum number of concurrent connections to one listener. Further ones are closed as soon as they are accepted.
const MAX_CONNECTIONS: usize = 128;
/// Time limit for receiving a request's head.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of a request's head.
const LARGEST_HEAD_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 32;
/// Maximum duration of a connection: the longest wait, plus time to read and write.
const LIFE: Duration = crate::control::LONGEST_WAIT.saturating_add(Duration::from_secs(30));
/// Time limit for answers that are being written at the end.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Pause after an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Answers the requests of each connection by the routes that `routes` returns for it, until told to end; by TLS if there is
/// an acceptor.
pub async fn serve<L>(
    mut listener: L,
    routes: impl Fn(&L::Io) -> Router,
    tls: Option<TlsAcceptor>,
    end: CancellationToken,
) where
    L: Listener,
    L::Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            biased;
            () = end.cancelled() => break,
            // Finished connections are removed.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        if connections.len() < MAX_CONNECTIONS {
            let routes = routes(&stream);
            match tls.clone() {
                Some(tls) => connections.spawn(secure_connection(stream, tls, routes)),
                None => connections.spawn(connection(stream, routes)),
            };
        }
    }
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_ANSWERS_WITHIN, all).await;
    connections.shutdown().await;
}

async fn secure_connection(stream: impl AsyncRead + AsyncWrite + Unpin, tls: TlsAcceptor, routes: Router) {
    match tokio::time::timeout(HEAD_WITHIN, tls.accept(stream)).await {
        Ok(Ok(stream)) => connection(stream, routes).await,
        Ok(Err(error)) => tracing::debug!(%error, "no TLS on a connection"),
        Err(_) => tracing::debug!("a TLS handshake exceeded its time limit"),
    }
}

/// Reads the certificate chain and the private key of a server, both in PEM.
///
/// # Errors
/// [`ErrorKind::Usage`] if a file cannot be read, or the two cannot be used.
pub async fn tls_acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let fault = |file: &Path| Error::new(ErrorKind::Usage, "cannot use the file for TLS").on(file.display());
    let read = |file: PathBuf| async move {
        let fault = |error| fault(&file).caused_by(error);
        tokio::fs::read(&file).await.map_err(fault)
    };
    let (chain, secret) = tokio::try_join!(read(certificate.to_owned()), read(key.to_owned()))?;
    let chain: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
    let chain = chain.map_err(|error| fault(certificate).because(error.to_string()))?;
    let secret =
        PrivateKeyDer::from_pem_slice(&secret).map_err(|error| fault(key).because(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| fault(certificate).caused_by(error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Handles one request with one answer.
async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, routes: Router) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(LARGEST_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    match tokio::time::timeout(LIFE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended unexpectedly"),
        Err(_) => tracing::debug!("a connection exceeded its time limit"),
    }
}

/// Shorter secrets can be guessed.
const SHORTEST_SECRET_BYTES: usize = 16;

/// The secret that a client has to send. Its digest is kept, so that it is never printed, and every comparison takes the same
/// time.
#[derive(Debug, Clone)]
pub struct Token(Sha256Digest);

impl Token {
    /// Creates the token that `secret` proves.
    pub fn new(secret: &str) -> Self {
        Self(Sha256Digest::of(secret.as_bytes()))
    }

    /// Creates a token with a random secret, and returns the secret.
    pub fn generate() -> (Self, String) {
        let secret = random_word();
        (Self::new(&secret), secret)
    }

    /// Reads the secret from a file. White space around it does not count.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the file cannot be read, or its secret could be guessed.
    pub async fn read(file: &Path) -> Result<Self> {
        let fault = || Error::new(ErrorKind::Usage, "cannot use the token").on(file.display());
        let text = tokio::fs::read_to_string(file).await.map_err(|error| fault().caused_by(error))?;
        let secret = text.trim();
        if secret.len() < SHORTEST_SECRET_BYTES || secret.contains(char::is_whitespace) {
            return Err(fault()
                .because(format!("it is not one word of at least {SHORTEST_SECRET_BYTES} characters"))
                .hint("write a random one: openssl rand -hex 32"));
        }
        Ok(Self::new(secret))
    }

    /// Whether this is the secret.
    pub fn is(&self, secret: &str) -> bool {
        self.0 == Sha256Digest::of(secret.as_bytes())
    }

    /// Whether a request carries the secret as `Authorization: Bearer`.
    pub fn is_sent_in(&self, headers: &HeaderMap) -> bool {
        let sent = header_text(headers, &header::AUTHORIZATION).split_once(' ');
        sent.is_some_and(|(scheme, secret)| scheme.eq_ignore_ascii_case("bearer") && self.is(secret.trim()))
    }

    /// Builds the answer to a client that has not sent it; `how` says how to send it.
    pub fn refusal(how: &'static str) -> Response {
        (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], how).into_response()
    }
}

/// Returns the text of a header; empty if there is none.
pub fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Returns a word that cannot be guessed.
pub fn random_word() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
