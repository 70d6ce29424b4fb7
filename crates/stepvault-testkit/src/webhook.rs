//! A receiver of documents on loopback, which fails and hangs as a test asks it to: in the place of a webhook, a Pushgateway
//! or a collector of traces.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;

use crate::serve::ServerHandle;

/// How the receiver answers a request.
#[derive(Debug, Clone, Copy)]
pub enum WebhookAnswer {
    /// With this status.
    Status(u16),
    /// With 429, and this number of seconds in `Retry-After`.
    TooMany(u64),
    /// Not at all.
    Hang,
}

/// A request, whatever the answer was.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: String,
}

impl ReceivedRequest {
    /// Returns the JSON that was posted; null for any other request.
    pub fn document(&self) -> Value {
        let is_json = self.headers.get("content-type").is_some_and(|kind| kind == "application/json");
        let document = serde_json::from_str(&self.body).ok();
        document.filter(|_| is_json && self.method == "POST").unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Received {
    requests: Vec<ReceivedRequest>,
    next: VecDeque<WebhookAnswer>,
    /// How every request is answered for which `next` holds nothing.
    otherwise: Option<WebhookAnswer>,
}

/// A running receiver.
#[derive(Debug)]
pub struct WebhookReceiver {
    server: ServerHandle,
    received: Arc<Mutex<Received>>,
}

impl WebhookReceiver {
    /// Starts a receiver that accepts everything.
    pub fn start() -> Self {
        let received = Arc::<Mutex<Received>>::default();
        let app = Router::new().fallback(answer).with_state(Arc::clone(&received));
        let server = ServerHandle::start(move |listener| async move {
            let _ = axum::serve(listener, app).await;
        })
        .expect("a free port");
        Self { server, received }
    }

    fn received<T>(&self, change: impl FnOnce(&mut Received) -> T) -> T {
        change(&mut self.received.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.endpoint())
    }

    /// Answers the next requests so, and then accepts them.
    pub fn answer_next(&self, answers: impl IntoIterator<Item = WebhookAnswer>) {
        self.received(|received| received.next.extend(answers));
    }

    /// Answers every request so.
    pub fn answer_always(&self, answer: WebhookAnswer) {
        self.received(|received| received.otherwise = Some(answer));
    }

    /// Returns every request so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.received(|received| received.requests.clone())
    }

    /// Returns the JSON of every request so far.
    pub fn documents(&self) -> Vec<Value> {
        self.requests().iter().map(ReceivedRequest::document).collect()
    }
}

async fn answer(State(received): State<Arc<Mutex<Received>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let request = ReceivedRequest {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let answer = {
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        received.requests.push(request);
        received.next.pop_front().or(received.otherwise).unwrap_or(WebhookAnswer::Status(204))
    };
    let mut response = Response::builder();
    response = match answer {
        WebhookAnswer::Status(status) => response.status(status),
        WebhookAnswer::TooMany(seconds) => response.status(429).header("retry-after", seconds),
        WebhookAnswer::Hang => std::future::pending().await,
    };
    response.body(Body::empty()).expect("a response")
}
