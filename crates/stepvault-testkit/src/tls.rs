//! TLS in front of a test server, with a certificate of an authority that the test makes.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CipherSuite, HandshakeKind, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::serve::ServerHandle;

/// What a server's certificate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// It is for 127.0.0.1, and valid now.
    Valid,
    /// It has expired.
    Expired,
    /// It is for another host.
    OtherHost,
}

/// The connections that an [`Acceptor`] accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Connections over TCP.
    pub connections: u64,
    /// TLS handshakes that succeeded.
    pub handshakes: u64,
    /// Those of them that resumed a session of an earlier connection.
    pub resumed: u64,
}

/// Counts connections, and performs the TLS handshake on each if it was made by an [`Authority`]. The clones share
/// their counts.
#[derive(Debug, Clone, Default)]
pub struct Acceptor {
    tls: Option<Arc<ServerConfig>>,
    connections: Arc<AtomicU64>,
    handshakes: Arc<AtomicU64>,
    resumed: Arc<AtomicU64>,
}

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) enum Accepted {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Acceptor {
    /// Returns the scheme of URLs of its server.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Returns the counts since the last call.
    pub fn take_counts(&self) -> ConnectionCounts {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        ConnectionCounts {
            connections: take(&self.connections),
            handshakes: take(&self.handshakes),
            resumed: take(&self.resumed),
        }
    }

    pub(crate) async fn accept(&self, client: TcpStream) -> io::Result<Accepted> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let Some(config) = &self.tls else {
            return Ok(Accepted::Plain(client));
        };
        let stream = TlsAcceptor::from(Arc::clone(config)).accept(client).await?;
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        if stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed) {
            self.resumed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Accepted::Tls(Box::new(stream)))
    }
}

/// An authority that signs certificates of test servers.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Makes an authority that nobody else knows.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        // Two authorities of one name would be told apart by their signatures alone.
        let name = format!("test authority {}", uuid::Uuid::new_v4());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL's strict mode, Python's default since 3.13, requires it.
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Writes its certificate as PEM.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).expect("its file");
    }

    /// Writes a certificate that it signed for a client, and its private key, as PEM.
    pub fn write_client(&self, certificate: &Path, key: &Path) {
        let mut params = CertificateParams::new(vec!["node.example".to_owned()]).expect("parameters");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let pair = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&pair, &self.0).expect("a certificate");
        std::fs::write(certificate, signed.pem()).expect("its file");
        std::fs::write(key, pair.serialize_pem()).expect("its file");
    }

    /// Returns an acceptor with a certificate that this authority signed.
    pub fn acceptor(&self, validity: Validity) -> Acceptor {
        Acceptor { tls: Some(Arc::new(self.config(validity, None))), ..Acceptor::default() }
    }

    /// Serves what `server` serves, over TLS, until the handle is dropped.
    pub fn serve(&self, server: SocketAddr, validity: Validity) -> ServerHandle {
        Self::serve_with(server, self.config(validity, None))
    }

    /// Serves what `server` serves, over TLS, to clients with a certificate of this authority.
    pub fn serve_to_its_clients(&self, server: SocketAddr) -> ServerHandle {
        let mut trusted = RootCertStore::empty();
        trusted.add(self.0.der().clone()).expect("an authority");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), provider);
        let verifier = verifier.build().expect("a verifier");
        Self::serve_with(server, self.config(Validity::Valid, Some(verifier)))
    }

    fn serve_with(server: SocketAddr, config: ServerConfig) -> ServerHandle {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let serve = async move |listener: TcpListener| {
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let (Ok(mut client), Ok(mut server)) =
                        tokio::join!(acceptor.accept(client), TcpStream::connect(server))
                    else {
                        return;
                    };
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        };
        ServerHandle::start(serve).expect("a free port")
    }

    fn config(&self, validity: Validity, clients: Option<Arc<dyn ClientCertVerifier>>) -> ServerConfig {
        let host = if validity == Validity::OtherHost { "other.example" } else { "127.0.0.1" };
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("parameters");
        params.use_authority_key_identifier_extension = true;
        if validity == Validity::Expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        // Every client encrypts by the same cipher, so that a benchmark compares the clients and not their preferences.
        let mut provider = aws_lc_rs::default_provider();
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
        let builder = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("TLS versions");
        let builder = match clients {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a certificate that fits its key");
        config.ignore_client_order = true;
        // By default, sessions are kept in a table of 256, which a client with more connections would overflow.
        config.ticketer = aws_lc_rs::Ticketer::new().expect("a key for tickets");
        config
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
