//! The certificate by which this machine proves itself to a server that asks for it.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use reqwest::{Client, Identity};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};

use crate::authorities::Authorities;

/// The largest file that is read.
const MAXIMUM_BYTES: u64 = 1 << 20;

/// A certificate, those of its issuers, and its private key.
#[derive(Clone)]
pub(crate) struct ClientIdentity(Identity);

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
        let mut pem = read(certificate)?;
        pem.push(b'\n');
        pem.extend(read(key)?);
        let identity =
            Identity::from_pem(&pem).map_err(|error| fault(certificate).caused_by(error.without_url()))?;
        let identity = Self(identity);
        // The client would find out at its first request.
        identity
            .client(None, Duration::ZERO, false)
            .map_err(|error| fault(certificate).caused_by(error.without_url()))?;
        Ok(Some(identity))
    }

    /// Returns it as an HTTP client takes it.
    pub(crate) fn into_inner(self) -> Identity {
        self.0
    }

    /// Creates an HTTP client that proves itself by this certificate. `local`: the server is on this machine, and no
    /// proxy is asked.
    pub(crate) fn client(
        &self,
        authorities: Option<&Authorities>,
        connect_timeout: Duration,
        local: bool,
    ) -> reqwest::Result<Client> {
        let trusted = authorities.map_or(Ok(Vec::new()), Authorities::certificates)?;
        let builder = Client::builder()
            .http1_only()
            .connect_timeout(connect_timeout)
            .tls_certs_merge(trusted)
            .identity(self.0.clone());
        if local { builder.no_proxy() } else { builder }.build()
    }
}

fn fault(path: &Path) -> Error {
    Error::new(ErrorKind::Usage, "cannot use the client certificate")
        .on(path.display())
        .hint("give PEM files: client-certificate with the certificate, client-key with its private key")
}

fn read(path: &Path) -> Result<Vec<u8>> {
    stepvault_local::durable::read_bounded(path, MAXIMUM_BYTES)
        .map_err(|error| fault(path).because(error))?
        .ok_or_else(|| fault(path).because("the file does not exist"))
}
