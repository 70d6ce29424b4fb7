//! The connection of the SDK to a server that asks for a client certificate: the SDK's own HTTP client has none.

use aws_sdk_s3::primitives::SdkBody;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use reqwest::{Body, Client};

/// Sends requests by a client that has a certificate.
#[derive(Debug, Clone)]
pub(super) struct Identified(pub(super) Client);

impl HttpConnector for Identified {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let client = self.0.clone();
        HttpConnectorFuture::new(async move {
            let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
            let request = request
                .map(Body::wrap)
                .try_into()
                .map_err(|error: reqwest::Error| ConnectorError::user(error.into()))?;
            let response = client.execute(request).await.map_err(|error| {
                let is_timeout = error.is_timeout();
                let error = error.without_url().into();
                if is_timeout { ConnectorError::timeout(error) } else { ConnectorError::io(error) }
            })?;
            let response = http::Response::from(response).map(SdkBody::from_body_1_x);
            HttpResponse::try_from(response).map_err(|error| ConnectorError::other(error.into(), None))
        })
    }
}
