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

    /// Returns the certificates in PEM.
    pub(crate) fn pem(&self) -> &[u8] {
        &self.0
    }
}

/// Returns what to do about a connection that failed because one side rejected the other's certificate; `None` for any
/// other failure. Matches the messages of the TLS library, because the SDKs hide its error type. Such a failure is not
/// transient.
pub(crate) fn certificate_hint(why: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&[
        "CertificateUnknown",
        "BadCertificate",
        "UnknownCA",
        "CertificateRequired",
    ]) {
        return Some("the server refuses this client's certificate, or requires one");
    }
    if !has(&["invalid peer certificate"]) {
        return None;
    }
    Some(if has(&["UnknownIssuer", "BadSignature"]) {
        "no authority that this machine trusts has signed the server's certificate: set ca-file for this remote \
         (ca-file=PATH in its URL), or add the authority to the system's store"
    } else if has(&["certificate expired", "Expired"]) {
        "the server's certificate has expired: renew it, or set this machine's clock"
    } else if has(&["not valid yet", "NotValidYet"]) {
        "the server's certificate is not valid yet: set this machine's clock"
    } else if has(&["not valid for name", "NotValidForName"]) {
        "the server's certificate is for another host: correct the endpoint, or the certificate's names"
    } else {
        "check the server's certificate"
    })
}
