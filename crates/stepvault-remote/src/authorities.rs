//! Authorities whose certificates are trusted for a remote, besides the system's.

use std::path::Path;

use reqwest::Certificate;
use stepvault_core::{Error, ErrorKind, Result};

/// The largest file that is read: the bundles of operating systems have some 300 KiB.
const MAXIMUM_BYTES: u64 = 16 << 20;

/// Certificates of authorities in PEM, each of which was checked.
#[derive(Debug)]
pub(crate) struct Authorities(Vec<u8>);

impl Authorities {
    /// Reads a PEM file with one or several certificates.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when it cannot be read, or is not that.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let fault = || {
            Error::new(ErrorKind::Usage, "cannot use the certificates of authorities")
                .on(path.display())
                .hint("give a PEM file with the certificate of the authority that signed the server's")
        };
        let pem = stepvault_local::durable::read_bounded(path, MAXIMUM_BYTES)
            .map_err(|error| fault().because(error))?
            .ok_or_else(|| fault().because("the file does not exist"))?;
        let certificates =
            Certificate::from_pem_bundle(&pem).map_err(|error| fault().caused_by(error.without_url()))?;
        if certificates.is_empty() {
            return Err(fault().because("it holds no certificate"));
        }
        // The clients would find out at their first request, and one of them by a panic.
        let checked = reqwest::Client::builder().tls_certs_only(certificates).build();
        checked.map_err(|error| fault().caused_by(error.without_url()))?;
        Ok(Self(pem))
    }

    /// Returns the certificates.
    pub(crate) fn certificates(&self) -> reqwest::Result<Vec<Certificate>> {
        Certificate::from_pem_bundle(&self.0)
    }

    /// Returns the certificates in PEM.
    pub(crate) fn pem(&self) -> &[u8] {
        &self.0
    }
}
