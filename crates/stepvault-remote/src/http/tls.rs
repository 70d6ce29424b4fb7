//! Certificates of the settings: of authorities that are trusted besides the system's, and of this machine.

use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

use reqwest::{Certificate, Client, Identity};
use rustls_native_certs::load_native_certs;
use stepvault_core::{Error, ErrorKind, RemoteSettings, Result};

/// The largest file of authorities that is read: the bundles of operating systems have some 300 KiB.
const MAXIMUM_AUTHORITIES_BYTES: u64 = 16 << 20;
/// The largest file with this machine's certificate or key that is read.
const MAXIMUM_IDENTITY_BYTES: u64 = 1 << 20;

/// Certificates of authorities in PEM, all of them checked.
#[derive(Debug, Clone)]
pub(crate) struct Authorities(pub(crate) Vec<u8>);

impl Authorities {
    /// Reads a PEM file with one or several certificates.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when it cannot be read, or is not that.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let fault = || {
            Error::at(ErrorKind::Usage, "cannot use the certificates of authorities", path)
                .hint("give a PEM file with the certificate of the authority that signed the server's")
        };
        let invalid = |error: reqwest::Error| fault().caused_by(error.without_url());
        let pem = read(path, MAXIMUM_AUTHORITIES_BYTES, fault)?;
        let certificates = Certificate::from_pem_bundle(&pem).map_err(invalid)?;
        if certificates.is_empty() {
            return Err(fault().because("it holds no certificate"));
        }
        // The clients would find out at their first request, and one of them by a panic.
        let checked = Client::builder().tls_certs_only(certificates).build();
        checked.map_err(invalid)?;
        Ok(Self(pem))
    }

    /// Returns the certificates.
    pub(crate) fn certificates(&self) -> reqwest::Result<Vec<Certificate>> {
        Certificate::from_pem_bundle(&self.0)
    }
}

/// The certificate by which this machine proves itself to a server that asks for it, those of its issuers, and its private
/// key.
#[derive(Clone)]
pub(crate) struct ClientIdentity(pub(super) Identity);

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClientIdentity(…)")
    }
}

impl ClientIdentity {
    /// Reads what the settings name; `None` where they name nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when a file cannot be read, or the two are not a certificate and its key.
    pub(crate) fn of(settings: &RemoteSettings) -> Result<Option<Self>> {
        let (Some(certificate), Some(key)) = (&settings.client_certificate, &settings.client_key) else {
            return Ok(None);
        };
        let fault = |path: &Path| {
            Error::at(ErrorKind::Usage, "cannot use the client certificate", path).hint(
                "give PEM files: client-certificate with the certificate, client-key with its private key",
            )
        };
        let invalid = |error: reqwest::Error| fault(certificate).caused_by(error.without_url());
        let mut pem = read(certificate, MAXIMUM_IDENTITY_BYTES, || fault(certificate))?;
        pem.push(b'\n');
        pem.extend(read(key, MAXIMUM_IDENTITY_BYTES, || fault(key))?);
        let identity = Self(Identity::from_pem(&pem).map_err(invalid)?);
        // The client would find out at its first request.
        Client::builder().identity(identity.0.clone()).build().map_err(invalid)?;
        Ok(Some(identity))
    }
}

/// Returns whether root certificates are installed. The SDK panics where it is to use them and there are none.
pub(crate) fn has_roots() -> bool {
    static HAS_ROOTS: LazyLock<bool> = LazyLock::new(|| !load_native_certs().certs.is_empty());
    *HAS_ROOTS
}

fn read(path: &Path, most_bytes: u64, fault: impl Fn() -> Error) -> Result<Vec<u8>> {
    stepvault_local::durable::read_bounded(path, most_bytes)
        .map_err(|error| fault().because(error))?
        .ok_or_else(|| fault().because("the file does not exist"))
}
