//! Instance metadata services on loopback: the notices of EC2, Compute Engine and Azure, and the credentials of an EC2
//! instance's role.
//!
//! Paths, headers and statuses follow the providers' documentation. Every token is checked, and a request without the
//! required header is refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::serve::ServerHandle;

/// The name of the instance's role, once it has one.
const ROLE: &str = "training";

/// The state that the services report.
#[derive(Debug, Default)]
struct Said {
    is_ec2: bool,
    is_gce: bool,
    instance_action: Option<String>,
    rebalance: Option<String>,
    role_credentials: Option<String>,
    tokens: BTreeMap<String, Instant>,
    tokens_made: u64,
    azure: Option<Azure>,
    requests: Vec<String>,
    /// Another server, to which every request is redirected.
    redirect_to: Option<String>,
}

/// The state of Azure's service.
#[derive(Debug)]
struct Azure {
    machine: String,
    /// How long the first answer about events takes.
    first_takes: Duration,
    document_incarnation: u64,
    events: Vec<Value>,
    acknowledged: Vec<String>,
}

#[derive(Debug, Clone)]
struct Shared {
    said: Arc<Mutex<Said>>,
    preempted: watch::Sender<bool>,
}

/// A running service. It belongs to no provider until configured.
#[derive(Debug)]
pub struct FakeMetadata {
    server: ServerHandle,
    shared: Shared,
}

impl FakeMetadata {
    /// Starts a service of no provider: it answers 404.
    pub fn start() -> Self {
        let shared = Shared { said: Arc::default(), preempted: watch::Sender::new(false) };
        let app = Router::new().fallback(answer).with_state(shared.clone());
        let server = ServerHandle::start(move |listener| async move {
            let _ = axum::serve(listener, app).await;
        })
        .expect("a free port");
        Self { server, shared }
    }

    /// Starts a service that behaves like EC2.
    pub fn ec2() -> Self {
        let service = Self::start();
        service.said(|said| said.is_ec2 = true);
        service
    }

    /// Starts a service that behaves like Compute Engine.
    pub fn gce() -> Self {
        let service = Self::start();
        service.said(|said| said.is_gce = true);
        service
    }

    /// Starts a service that behaves like Azure, on a virtual machine of this name.
    pub fn azure(machine: &str) -> Self {
        let service = Self::start();
        let azure = Azure {
            machine: machine.to_owned(),
            first_takes: Duration::ZERO,
            document_incarnation: 1,
            events: Vec::new(),
            acknowledged: Vec::new(),
        };
        service.said(|said| said.azure = Some(azure));
        service
    }

    /// Makes the first answer about Azure's events take this long, as the real one may while it enables them.
    pub fn first_events_take(&self, time: Duration) {
        self.said(|said| said.azure.iter_mut().for_each(|azure| azure.first_takes = time));
    }

    /// Schedules an event of Azure for these machines, not before a time in the format of HTTP, or in progress if it is
    /// empty. Returns its id.
    pub fn schedule(&self, event_type: &str, machines: &[&str], not_before: &str) -> String {
        self.said(|said| {
            let azure = said.azure.as_mut().expect("a service of Azure");
            azure.document_incarnation += 1;
            let id = format!("C7061BAC-AFDC-4513-B24B-AA5F13A1612{}", azure.events.len());
            azure.events.push(json!({
                "EventId": id,
                "EventStatus": if not_before.is_empty() { "Started" } else { "Scheduled" },
                "EventType": event_type,
                "ResourceType": "VirtualMachine",
                "Resources": machines,
                "NotBefore": not_before,
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }));
            id
        })
    }

    /// Returns the ids of Azure's events that were acknowledged, in order.
    pub fn acknowledged(&self) -> Vec<String> {
        self.said(|said| said.azure.as_ref().map(|azure| azure.acknowledged.clone()).unwrap_or_default())
    }

    fn said<T>(&self, change: impl FnOnce(&mut Said) -> T) -> T {
        change(&mut self.shared.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.server.endpoint()
    }

    /// Announces the interruption of the spot instance; the body is in EC2's format, or anything else.
    pub fn interrupt(&self, body: impl Into<String>) {
        self.said(|said| said.instance_action = Some(body.into()));
    }

    /// Publishes a rebalance recommendation.
    pub fn rebalance(&self, body: impl Into<String>) {
        self.said(|said| said.rebalance = Some(body.into()));
    }

    /// Gives the instance a role, with the credentials document in EC2's format.
    pub fn give_credentials(&self, document: impl Into<String>) {
        self.said(|said| said.role_credentials = Some(document.into()));
    }

    /// Preempts the machine.
    pub fn preempt(&self) {
        self.shared.preempted.send_replace(true);
    }

    /// Invalidates every token issued so far.
    pub fn expire_tokens(&self) {
        self.said(|said| said.tokens.clear());
    }

    /// Returns the number of tokens issued.
    pub fn tokens_made(&self) -> u64 {
        self.said(|said| said.tokens_made)
    }

    /// Redirects every request to another server.
    pub fn redirect_to(&self, endpoint: impl Into<String>) {
        self.said(|said| said.redirect_to = Some(endpoint.into()));
    }

    /// Returns every request so far: method and path with query.
    pub fn requests(&self) -> Vec<String> {
        self.said(|said| said.requests.clone())
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let (request, body) = request.into_parts();
    let path = request.uri.path().to_owned();
    let (is_gce, is_azure, redirect_to) = {
        let mut said = shared.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.requests.push(format!("{} {}", request.method, request.uri));
        (said.is_gce, said.azure.is_some(), said.redirect_to.clone())
    };
    if let Some(endpoint) = redirect_to {
        let mut response = plain(StatusCode::FOUND, "");
        let location = format!("{endpoint}{path}").parse().expect("a URL");
        response.headers_mut().insert("location", location);
        return response;
    }
    if is_gce && path == "/computeMetadata/v1/instance/preempted" {
        return preempted(&shared, &request).await;
    }
    if is_azure && path.starts_with("/metadata/") {
        let body = axum::body::to_bytes(body, 64 << 10).await.unwrap_or_default();
        return azure(&shared, &request, &body).await;
    }
    let mut said = shared.said.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.is_ec2 {
        return plain(StatusCode::NOT_FOUND, "there is no such thing here");
    }
    ec2(&mut said, &request.method, &path, &request.headers)
}

fn ec2(said: &mut Said, method: &Method, path: &str, headers: &HeaderMap) -> Response {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if path == "/latest/api/token" {
        let seconds =
            header("x-aws-ec2-metadata-token-ttl-seconds").and_then(|text| text.parse::<u64>().ok());
        let Some(seconds) = seconds.filter(|seconds| (1..=21_600).contains(seconds)) else {
            return plain(StatusCode::BAD_REQUEST, "the token's time to live is wrong");
        };
        if method != Method::PUT {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "");
        }
        // Proxies add this header; they get no token.
        if header("x-forwarded-for").is_some() {
            return plain(StatusCode::FORBIDDEN, "");
        }
        said.tokens_made += 1;
        let token = format!("token-{}==", said.tokens_made);
        let until = Instant::now() + Duration::from_secs(seconds);
        said.tokens.insert(token.clone(), until);
        let mut response = plain(StatusCode::OK, token);
        // AWS's own clients accept no token without it.
        let lasts = seconds.to_string().parse().expect("a header");
        let headers = response.headers_mut();
        headers.insert("x-aws-ec2-metadata-token-ttl-seconds", lasts);
        return response;
    }
    let is_good = header("x-aws-ec2-metadata-token")
        .and_then(|token| said.tokens.get(token))
        .is_some_and(|until| *until > Instant::now());
    if !is_good {
        return plain(StatusCode::UNAUTHORIZED, "");
    }
    if path == "/latest/meta-data/iam/security-credentials/" && said.role_credentials.is_some() {
        return plain(StatusCode::OK, ROLE);
    }
    let there = match path {
        "/latest/meta-data/iam/security-credentials/training" => &said.role_credentials,
        "/latest/meta-data/spot/instance-action" => &said.instance_action,
        "/latest/meta-data/events/recommendations/rebalance" => &said.rebalance,
        _ => &None,
    };
    match there {
        Some(body) => plain(StatusCode::OK, body.clone()),
        None => plain(StatusCode::NOT_FOUND, ""),
    }
}

/// As <https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events> describes it.
async fn azure(shared: &Shared, request: &Parts, body: &[u8]) -> Response {
    let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let (path, query) = (request.uri.path(), request.uri.query().unwrap_or_default());
    if header("metadata") != Some("true") || header("x-forwarded-for").is_some() {
        return plain(StatusCode::BAD_REQUEST, "Bad request. Required metadata header not specified");
    }
    let held = {
        let mut said = shared.said.lock().unwrap_or_else(PoisonError::into_inner);
        let azure = said.azure.as_mut().expect("a service of Azure");
        match path {
            "/metadata/scheduledevents" => std::mem::take(&mut azure.first_takes),
            _ => Duration::ZERO,
        }
    };
    tokio::time::sleep(held).await;
    let mut said = shared.said.lock().unwrap_or_else(PoisonError::into_inner);
    let azure = said.azure.as_mut().expect("a service of Azure");
    match (request.method.as_str(), path, query) {
        ("GET", "/metadata/instance/compute", "api-version=2021-02-01") => {
            let document = json!({ "azEnvironment": "AzurePublicCloud", "name": azure.machine });
            plain(StatusCode::OK, document.to_string())
        }
        ("GET", "/metadata/scheduledevents", "api-version=2020-07-01") => {
            let document =
                json!({ "DocumentIncarnation": azure.document_incarnation, "Events": azure.events });
            plain(StatusCode::OK, document.to_string())
        }
        ("POST", "/metadata/scheduledevents", "api-version=2020-07-01") => azure.start(body),
        _ => plain(StatusCode::BAD_REQUEST, "Bad request. api-version is invalid or was not specified"),
    }
}

impl Azure {
    /// Begins the events that a request names.
    fn start(&mut self, body: &[u8]) -> Response {
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let wanted = request["StartRequests"].as_array().cloned().unwrap_or_default();
        let mut ids: Vec<String> =
            wanted.iter().filter_map(|one| Some(one["EventId"].as_str()?.to_owned())).collect();
        ids.retain(|id| self.events.iter().any(|event| event["EventId"] == *id));
        if ids.is_empty() {
            return plain(StatusCode::BAD_REQUEST, "");
        }
        self.document_incarnation += 1;
        for event in self.events.iter_mut().filter(|event| ids.iter().any(|id| event["EventId"] == *id)) {
            event["EventStatus"] = "Started".into();
            event["NotBefore"] = "".into();
        }
        self.acknowledged.extend(ids);
        plain(StatusCode::OK, "")
    }
}

async fn preempted(shared: &Shared, request: &Parts) -> Response {
    let flavor = request.headers.get("metadata-flavor");
    if flavor.is_none_or(|value| value != "Google") {
        return plain(StatusCode::FORBIDDEN, "");
    }
    let query: BTreeMap<String, String> =
        url::form_urlencoded::parse(request.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let mut changes = shared.preempted.subscribe();
    let tag = |value: bool| if value { "1b" } else { "1a" };
    let now = *changes.borrow_and_update();
    if query.get("wait_for_change").is_some_and(|value| value == "true") {
        let known = query.get("last_etag").is_none_or(|etag| etag == tag(now));
        let seconds = query.get("timeout_sec").and_then(|text| text.parse().ok());
        if known {
            let hold = Duration::from_secs(seconds.unwrap_or(3600));
            let _ = tokio::time::timeout(hold, changes.changed()).await;
        }
    }
    let value = *changes.borrow();
    let mut response = plain(StatusCode::OK, if value { "TRUE" } else { "FALSE" });
    let headers = response.headers_mut();
    headers.insert("metadata-flavor", "Google".parse().expect("a header"));
    headers.insert("etag", tag(value).parse().expect("a header"));
    response
}

fn plain(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
}
