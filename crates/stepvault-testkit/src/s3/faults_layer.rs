//! Applies injected faults before the protocol layer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use s3s::Body;
use s3s::service::S3Service;
use uuid::Uuid;

use super::connections::Client;
use super::manners::Manners;
use super::state::State;
use crate::faults::{FaultAction, Faults};

/// Time for the bytes before a cut to leave the socket: an error of the body would discard what is still buffered.
const FLUSH: Duration = Duration::from_millis(50);

/// The S3 service behind the fault rules.
#[derive(Clone)]
pub(crate) struct FaultsLayer {
    pub(crate) service: S3Service,
    pub(crate) faults: Faults,
    pub(crate) manners: Manners,
    pub(crate) state: Arc<State>,
}

impl hyper::service::Service<Request<Incoming>> for FaultsLayer {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let layer = self.clone();
        Box::pin(async move {
            let mut response = layer.answer(request).await?;
            if response.extensions().get::<Foreign>().is_some() {
                return Ok(response);
            }
            if let Ok(id) = HeaderValue::try_from(Uuid::new_v4().simple().to_string()) {
                response.headers_mut().insert("x-amz-request-id", id);
            }
            layer.manners.date(&mut response);
            Ok(response)
        })
    }
}

impl FaultsLayer {
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let length =
            request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let from = request.extensions().get::<Client>().map(|client| client.0.ip());
        match self.faults.on_request(request.method().as_str(), target, length.unwrap_or(0), from) {
            None => self.forward(request).await,
            Some(FaultAction::Refuse { status, retry_after_seconds, code }) => {
                drain(request.into_body()).await;
                refusal(status, retry_after_seconds, &code)
            }
            Some(FaultAction::ApplyThenReset) => {
                self.forward(request).await?;
                Err(reset())
            }
            Some(FaultAction::ApplyThenDelay(delay)) => {
                let answer = self.forward(request).await;
                tokio::time::sleep(delay).await;
                answer
            }
            Some(FaultAction::Reset) => Err(reset()),
            Some(FaultAction::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                self.forward(request).await
            }
            Some(FaultAction::Hang) => std::future::pending().await,
            Some(FaultAction::CutBody { bytes }) => cut(self.forward(request).await?, bytes).await,
            Some(FaultAction::FlipBit) => flip_bit(self.forward(request).await?).await,
            Some(FaultAction::OkWithError { code }) => {
                drain(request.into_body()).await;
                refusal(200, None, &code)
            }
            Some(FaultAction::Foreign { status, page }) => {
                let is_head = request.method() == Method::HEAD;
                drain(request.into_body()).await;
                foreign(status, if is_head { "" } else { page })
            }
        }
    }

    /// Returns the refusal of a request that is signed with a key of an ended session.
    fn expired<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let authorization = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
        // Credential=KEY/DATE/REGION/s3/aws4_request
        let (_, scope) = authorization.split_once("Credential=")?;
        let key = scope.split('/').next()?;
        if self.state.keys().get(key)?.expired {
            let text = "The provided token has expired.";
            return Some(document(StatusCode::BAD_REQUEST, "ExpiredToken", text));
        }
        None
    }

    async fn forward(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        if let Some(refusal) = self.manners.refusal(&request).or_else(|| self.expired(&request)) {
            drain(request.into_body()).await;
            return Ok(refusal);
        }
        self.service
            .call(request.map(Body::from))
            .await
            .map_err(|error| io::Error::other(Box::<dyn std::error::Error + Send + Sync>::from(error)))
    }
}

fn reset() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "reset on request")
}

/// Reads the body first, so that a client that is still sending reads the answer instead of a broken pipe.
async fn drain(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// Returns an answer with S3's error document.
pub(crate) fn document(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let document = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message>\
         <RequestId>{}</RequestId></Error>",
        Uuid::new_v4().simple()
    );
    let mut response = Response::new(Body::from(document));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

fn refusal(status: u16, retry_after_seconds: Option<u64>, code: &str) -> io::Result<Response<Body>> {
    let status = StatusCode::from_u16(status).map_err(io::Error::other)?;
    let mut response = document(status, code, "On request.");
    if let Some(seconds) = retry_after_seconds {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}

/// Marks an answer that is not the store's.
#[derive(Debug, Clone, Copy)]
struct Foreign;

fn foreign(status: u16, page: &'static str) -> io::Result<Response<Body>> {
    let mut response = Response::new(Body::from(Bytes::from_static(page.as_bytes())));
    *response.status_mut() = StatusCode::from_u16(status).map_err(io::Error::other)?;
    let headers = response.headers_mut();
    if !page.is_empty() {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
    }
    if status == 302 {
        headers.insert(header::LOCATION, HeaderValue::from_static("/login"));
    }
    response.extensions_mut().insert(Foreign);
    Ok(response)
}

async fn whole_body(response: Response<Body>) -> io::Result<(http::response::Parts, Bytes)> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    Ok((parts, body))
}

async fn cut(response: Response<Body>, bytes: usize) -> io::Result<Response<Body>> {
    let (mut parts, body) = whole_body(response).await?;
    if body.len() <= bytes {
        return Ok(Response::from_parts(parts, Body::from(body)));
    }
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let sent = body.slice(..bytes);
    let frames = futures::stream::unfold(Some(sent), |sent| async move {
        match sent {
            Some(sent) if !sent.is_empty() => Some((Ok(Frame::data(sent)), Some(Bytes::new()))),
            Some(_) => {
                tokio::time::sleep(FLUSH).await;
                Some((Err(reset()), None))
            }
            None => None,
        }
    });
    Ok(Response::from_parts(parts, Body::http_body_unsync(StreamBody::new(frames))))
}

async fn flip_bit(response: Response<Body>) -> io::Result<Response<Body>> {
    let (parts, body) = whole_body(response).await?;
    let mut body = Vec::from(body);
    let middle = body.len() / 2;
    if let Some(byte) = body.get_mut(middle) {
        *byte ^= 1;
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}
