//! Connections, faults and the selection of the handler.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::fields::select;
use super::reply::{Failure, Reply};
use super::request::{Request, Target, flip_first_bit};
use super::state::Core;
use super::{compose, json, list, multipart, objects, resumable, rewrite};
use crate::faults::FaultAction;

/// Ends the connection without an answer.
#[derive(Debug)]
pub(super) struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("connection dropped")
    }
}

impl std::error::Error for Dropped {}

/// An answer or a refusal. A handler that must drop the connection returns an outer error.
pub(super) type Outcome = Result<Reply, Failure>;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A request's body, read only as far as a fault allows.
pub(super) struct Intake {
    incoming: Incoming,
    allowed_bytes: Option<usize>,
}

impl Intake {
    /// Returns the next piece, or `None` at the end; an error when the client or a fault ends the body early.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Dropped> {
        loop {
            if self.allowed_bytes == Some(0) {
                return Err(Dropped);
            }
            let Some(frame) = self.incoming.frame().await else {
                return Ok(None);
            };
            let Ok(mut data) = frame.map_err(|_| Dropped)?.into_data() else {
                continue;
            };
            if let Some(allowed) = &mut self.allowed_bytes {
                data.truncate(*allowed);
                *allowed -= data.len();
            }
            return Ok(Some(data));
        }
    }

    /// Reads and discards the rest, so that the client has finished writing when the answer arrives.
    pub(super) async fn drain(&mut self) -> Result<(), Dropped> {
        while self.next().await?.is_some() {}
        Ok(())
    }

    async fn collect(&mut self) -> Result<Bytes, Dropped> {
        let mut body = BytesMut::new();
        while let Some(data) = self.next().await? {
            body.extend_from_slice(&data);
        }
        Ok(body.freeze())
    }
}

pub(super) async fn serve(listener: TcpListener, core: Arc<Core>) {
    let address = listener.local_addr().expect("a bound listener has an address");
    let endpoint: Arc<str> = format!("http://{address}").into();
    loop {
        // A failed accept concerns a client that is already gone.
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (core, endpoint) = (Arc::clone(&core), Arc::clone(&endpoint));
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let (core, endpoint) = (Arc::clone(&core), Arc::clone(&endpoint));
                async move { answer(&core, &endpoint, request).await }
            });
            // Errors are clients that disconnected, or connections dropped on purpose.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    core: &Core,
    endpoint: &str,
    request: hyper::Request<Incoming>,
) -> Result<Response<Body>, Dropped> {
    let (parts, incoming) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let stated_length =
        parts.headers.get("content-length").and_then(|value| value.to_str().ok()?.parse().ok());
    let action = core.faults.on_request(parts.method.as_str(), path, stated_length.unwrap_or(0), None);

    let mut request = Request::new(parts, endpoint);
    let mut intake = Intake { incoming, allowed_bytes: None };
    let json = request.target.is_json();
    let uploads = request.method == Method::PUT || request.method == Method::POST;
    match &action {
        Some(FaultAction::Refuse { status, retry_after_seconds, code }) => {
            intake.drain().await?;
            let failure =
                Failure::new(*status, code, "Refused on request.").retry_after(*retry_after_seconds);
            return Ok(respond(failure.reply(json)));
        }
        Some(FaultAction::OkWithError { code }) => {
            intake.drain().await?;
            return Ok(respond(Failure::new(500, code, "Failed on request.").reply_as(200, json)));
        }
        Some(FaultAction::Foreign { status, page }) => {
            intake.drain().await?;
            return Ok(foreign(*status, page));
        }
        Some(FaultAction::Reset) => return Err(Dropped),
        Some(FaultAction::Hang) => return std::future::pending().await,
        Some(FaultAction::Delay(duration)) => tokio::time::sleep(*duration).await,
        Some(FaultAction::CutBody { bytes }) if uploads => intake.allowed_bytes = Some(*bytes),
        Some(FaultAction::FlipBit) if uploads => request.damage_upload = true,
        Some(
            FaultAction::ApplyThenReset
            | FaultAction::ApplyThenDelay(_)
            | FaultAction::CutBody { .. }
            | FaultAction::FlipBit,
        )
        | None => {}
    }

    let outcome = route(core, &request, &mut intake).await?;
    let mut reply = outcome.unwrap_or_else(|failure| failure.reply(json));
    match action {
        Some(FaultAction::ApplyThenReset) => Err(Dropped),
        Some(FaultAction::ApplyThenDelay(delay)) => {
            tokio::time::sleep(delay).await;
            Ok(respond(reply))
        }
        Some(FaultAction::CutBody { bytes }) if !uploads => Ok(respond_cut(reply, bytes)),
        Some(FaultAction::FlipBit) if !uploads => {
            reply.body = flip_first_bit(&reply.body);
            Ok(respond(reply))
        }
        _ => Ok(respond(reply)),
    }
}

async fn route(core: &Core, request: &Request, intake: &mut Intake) -> Result<Outcome, Dropped> {
    let is_upload = matches!(request.target, Target::JsonUpload { .. });
    let continues = request.method == Method::POST && request.query.contains_key("upload_id");
    if is_upload && (request.method == Method::PUT || continues) {
        // The only request whose body counts even when it ends early.
        return resumable::put(core, request, intake).await;
    }
    let body = intake.collect().await?;
    Ok(request.authorize(core).and_then(|()| dispatch(core, request, &body)))
}

fn dispatch(core: &Core, request: &Request, body: &Bytes) -> Outcome {
    let method = request.method.as_str();
    match &request.target {
        Target::JsonUpload { bucket } => {
            core.require_bucket(bucket)?;
            match (method, request.parameter("uploadType")) {
                ("POST", Some("multipart")) => json::insert_multipart(core, request, bucket, body),
                ("POST", Some("media")) => json::insert_media(core, request, bucket, body),
                ("POST", Some("resumable")) => resumable::start(core, request, bucket, body),
                ("DELETE", _) => resumable::cancel(core, request),
                ("POST", None) => Err(Failure::new(400, "required", "Required parameter: uploadType")),
                ("POST", Some(other)) => {
                    let message = format!("Invalid value for uploadType: {other}");
                    Err(Failure::new(400, "InvalidArgument", &message))
                }
                _ => Err(Failure::not_implemented("this kind of upload")),
            }
        }
        Target::JsonObject { bucket, key } => {
            core.require_bucket(bucket)?;
            match (method, request.parameter("alt")) {
                ("GET", Some("media")) => json::read_media(core, request, bucket, key),
                ("GET", _) => json::get(core, request, bucket, key),
                ("DELETE", _) => json::delete(core, request, bucket, key),
                _ => Err(Failure::not_implemented("this call on a JSON object")),
            }
        }
        Target::JsonBucket { bucket } if method == "GET" => {
            let described = select(core.described(bucket)?, request.parameter("fields"))?;
            Ok(Reply::json(200, &described))
        }
        Target::JsonBucket { .. } => Err(Failure::not_implemented("this call on a JSON bucket")),
        Target::JsonObjects { bucket } if method == "GET" => {
            core.require_bucket(bucket)?;
            list::json_objects(core, request, bucket)
        }
        Target::JsonObjects { .. } => Err(Failure::not_implemented("this call on a bucket's objects")),
        Target::JsonCompose { bucket, key } if method == "POST" => {
            core.require_bucket(bucket)?;
            compose::compose(core, request, bucket, key, body)
        }
        Target::JsonCompose { .. } => Err(Failure::not_implemented("this call on a composition")),
        Target::JsonRewrite { from, to } if method == "POST" => {
            rewrite::rewrite(core, request, from, to, body)
        }
        Target::JsonRewrite { .. } => Err(Failure::not_implemented("this call on two JSON objects")),
        Target::JsonOther => Err(Failure::not_implemented("this JSON path")),
        Target::XmlBucket { bucket } => {
            core.require_bucket(bucket)?;
            match method {
                "GET" if request.query.contains_key("uploads") => {
                    list::multipart_uploads(core, request, bucket)
                }
                "GET" => list::objects(core, request, bucket),
                _ => Err(Failure::not_implemented("this call on a bucket")),
            }
        }
        Target::XmlObject { bucket, key } => {
            core.require_bucket(bucket)?;
            let has_upload = request.query.contains_key("uploadId");
            match method {
                "GET" if has_upload => multipart::list_parts(core, request, bucket, key),
                "GET" | "HEAD" => objects::get(core, request, bucket, key),
                "PUT" if has_upload => multipart::put_part(core, request, bucket, key, body),
                "PUT" if request.headers.contains_key("x-goog-copy-source") => {
                    objects::copy(core, request, bucket, key)
                }
                "PUT" => objects::put(core, request, bucket, key, body),
                "POST" if request.query.contains_key("uploads") => {
                    multipart::initiate(core, request, bucket, key)
                }
                "POST" if has_upload => multipart::complete(core, request, bucket, key, body),
                "DELETE" if has_upload => multipart::abort(core, request, bucket, key),
                "DELETE" => objects::delete(core, request, bucket, key),
                _ => Err(Failure::not_implemented("this call on an object")),
            }
        }
        Target::XmlService => Err(Failure::not_implemented("listing buckets")),
    }
}

fn respond(reply: Reply) -> Response<Body> {
    // Also for an empty object: an answer to HEAD has no body that would show the length.
    let length = reply.body.len();
    let reply = if reply.headers.contains_key("content-length") || reply.status.as_u16() == 204 {
        reply
    } else {
        reply.header("content-length", length.to_string())
    };
    let body = Full::new(reply.body).map_err(|never: Infallible| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    // Google adds it to every answer.
    let id = HeaderValue::from_static("strict");
    response.headers_mut().insert("x-guploader-uploadid", id);
    response
}

/// Answers as something that is no store does.
fn foreign(status: u16, page: &'static str) -> Response<Body> {
    let body = Full::new(Bytes::from_static(page.as_bytes()))
        .map_err(|never: Infallible| match never {})
        .boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::NOT_FOUND);
    if !page.is_empty() {
        let html = HeaderValue::from_static("text/html");
        response.headers_mut().insert("content-type", html);
    }
    if status == 302 {
        let login = HeaderValue::from_static("/login");
        response.headers_mut().insert("location", login);
    }
    response
}

/// Announces the whole length, sends `bytes` of it and closes the connection.
fn respond_cut(reply: Reply, bytes: usize) -> Response<Body> {
    let length = reply.body.len();
    let start = reply.body.slice(..bytes.min(length));
    let reply = reply.header("content-length", length.to_string());
    let pieces =
        futures::stream::once(async move { Ok(Frame::data(start)) }).chain(futures::stream::once(async {
            // The bytes before the cut must be sent first.
            tokio::time::sleep(Duration::from_millis(20)).await;
            Err(io::Error::other("cut on request"))
        }));
    let mut response = Response::new(StreamBody::new(pieces).boxed_unsync());
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    response
}
