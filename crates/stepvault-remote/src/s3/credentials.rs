//! Why credentials could not be loaded, by the name of the file or the service that was to give them.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::future::ProvideCredentials as Providing;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_smithy_runtime_api::client::result::ConnectorError;

use super::errors::innermost;
use crate::causes::{causes, find};

/// The variable that names the token of a web identity, as a pod has it.
const TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
/// Variables that name the endpoint from which a container gets its credentials.
const CONTAINER_ENDPOINTS: [&str; 2] =
    ["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"];

/// AWS's chain of providers. It tells the fault of a profile only once, and after that only that it has told it.
#[derive(Debug)]
pub(super) struct Chain {
    inner: SharedCredentialsProvider,
    fault: OnceLock<String>,
}

impl Chain {
    pub(super) fn new(inner: SharedCredentialsProvider) -> Self {
        Self { inner, fault: OnceLock::new() }
    }

    async fn provide(&self) -> Result<Credentials, CredentialsError> {
        let answer = self.inner.provide_credentials().await;
        match (&answer, self.fault.get()) {
            (Err(error @ CredentialsError::InvalidConfiguration(_)), None) => {
                self.fault.get_or_init(|| causes(error).last().map(ToString::to_string).unwrap_or_default());
                answer
            }
            (Err(error), Some(fault)) if innermost(error).contains("already taken") => {
                Err(CredentialsError::invalid_configuration(fault.clone()))
            }
            _ => answer,
        }
    }
}

impl ProvideCredentials for Chain {
    fn provide_credentials<'a>(&'a self) -> Providing<'a>
    where
        Self: 'a,
    {
        Providing::new(self.provide())
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        self.inner.fallback_on_interrupt()
    }
}

/// Returns why credentials could not be loaded.
pub(super) fn credentials_fault(error: &CredentialsError) -> String {
    let why = innermost(error);
    let token = std::env::var(TOKEN_FILE).ok();
    if find::<ConnectorError>(error).is_some() {
        let container = CONTAINER_ENDPOINTS.iter().any(|name| std::env::var_os(name).is_some());
        return match (&token, container) {
            (Some(_), _) => format!("STS, for the web identity of {TOKEN_FILE}: {why}"),
            (None, true) => format!("the container's endpoint of credentials: {why}"),
            (None, false) => format!("STS, SSO or the metadata service of the machine: {why}"),
        };
    }
    match token.filter(|path| find::<io::Error>(error).is_some() && !Path::new(path).is_file()) {
        Some(path) => format!("{TOKEN_FILE} names {path}: {why}"),
        None => why,
    }
}
