//! A receiver of webhooks on loopback, which fails and hangs as a test asks it to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
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

#[derive(Debug, Default)]
struct Received {
    requests: Vec<(String, Value)>,
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

    /// Returns the path and the JSON of every request so far, whatever the answer.
    pub fn requests(&self) -> Vec<(String, Value)> {
        self.received(|received| received.requests.clone())
    }

    /// Returns the JSON of every request so far.
    pub fn documents(&self) -> Vec<Value> {
        self.requests().into_iter().map(|(_, document)| document).collect()
    }
}

async fn answer(State(received): State<Arc<Mutex<Received>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let is_json = parts.headers.get("content-type").is_some_and(|kind| kind == "application/json");
    let document = serde_json::from_slice(&body).ok().filter(|_| is_json && parts.method == "POST");
    let answer = {
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        received.requests.push((parts.uri.to_string(), document.unwrap_or_default()));
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
