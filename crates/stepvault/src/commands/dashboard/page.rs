//! The page, its content as JSON, and who may read them.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use futures::{Stream, stream};
use parking_lot::Mutex;
use stepvault_agent::http::{Token, header_text, random_word};
use stepvault_core::document::Document;
use tokio::sync::watch;
use tokio::time::Instant;

use super::change::Change;
use super::snapshot::{Collector, DashboardDocument};

const PAGE: &str = include_str!("page.html");
/// Stands in the page where the word belongs that allows its own script and style.
const NONCE: &str = "NONCE";
/// Interval of looks at the vault and the agent while somebody watches.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Without a request for this long nobody watches.
const WATCHED_FOR: Duration = Duration::from_secs(20);
/// How long a first answer may take: a remote may be slow.
const FIRST_WITHIN: Duration = Duration::from_mins(1);
const UNWRITABLE: &str = "cannot write the content of the dashboard";
/// The cookie that carries the token.
const COOKIE: &str = "stepvault-token";

/// The latest content.
#[derive(Debug, Clone)]
pub(super) struct Feed {
    latest: watch::Sender<Option<Arc<Published>>>,
    watched: Arc<Mutex<Instant>>,
}

/// Content that is served.
#[derive(Debug)]
struct Published {
    document: DashboardDocument,
    /// The whole of it, written when it is first asked for.
    json: OnceLock<Option<Bytes>>,
    /// What is new in it, for those who have the content before.
    change: String,
}

impl Published {
    fn after(before: Option<&Self>, document: DashboardDocument) -> serde_json::Result<Self> {
        let before = before.map(|before| &before.document);
        let change = serde_json::to_string(&Change::between(before, &document)?)?;
        Ok(Self { document, json: OnceLock::new(), change })
    }

    fn json(&self) -> Option<Bytes> {
        let written = self.json.get_or_init(|| {
            let json = serde_json::to_vec(&Document::new(&self.document));
            json.inspect_err(|error| tracing::warn!(%error, "{UNWRITABLE}")).ok().map(Bytes::from)
        });
        written.clone()
    }
}

impl Feed {
    pub(super) fn new() -> Self {
        Self { latest: watch::Sender::new(None), watched: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Collects the content for as long as somebody watches, and pauses otherwise.
    pub(super) async fn collect(&self, mut collector: Collector) {
        loop {
            let document = collector.collect().await;
            let before = self.latest.borrow().clone();
            match Published::after(before.as_deref(), document) {
                Ok(published) => drop(self.latest.send_replace(Some(Arc::new(published)))),
                Err(error) => tracing::warn!(%error, "{UNWRITABLE}"),
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
            while self.watched.lock().elapsed() > WATCHED_FOR {
                tokio::time::sleep(LOOK_INTERVAL / 4).await;
            }
        }
    }

    fn watch(&self) {
        *self.watched.lock() = Instant::now();
    }

    async fn latest(&self) -> Option<Arc<Published>> {
        self.watch();
        let mut latest = self.latest.subscribe();
        let first = latest.wait_for(Option::is_some);
        let first = tokio::time::timeout(FIRST_WITHIN, first).await.ok()?.ok()?;
        first.clone()
    }

    /// Returns what is new in each content. A client that is too slow for one of them gets the next, which applies to another
    /// content than it has.
    fn changes(self) -> impl Stream<Item = Result<Event, Infallible>> {
        let latest = self.latest.subscribe();
        stream::unfold((self, latest), |(feed, mut latest)| async move {
            feed.watch();
            latest.changed().await.ok()?;
            let published = latest.borrow_and_update().clone()?;
            Some((Ok(Event::default().data(&published.change)), (feed, latest)))
        })
    }
}

/// Who may read the page.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    /// The token that clients must send; `None` on a loopback address.
    pub(super) token: Option<Token>,
    /// Whether the page is served by TLS.
    pub(super) is_secure: bool,
}

/// Returns the routes of the page.
pub(super) fn routes(feed: &Feed, guard: Guard) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/dashboard.json", get(content))
        .route("/events", get(events))
        .fallback(|| async { (StatusCode::NOT_FOUND, "use / or /dashboard.json\n") })
        .with_state(feed.clone())
        .layer(from_fn_with_state(guard, check))
}

async fn page(State(feed): State<Feed>, headers: HeaderMap) -> Response {
    if header_text(&headers, &header::ACCEPT).contains("application/json") {
        return content(State(feed)).await;
    }
    feed.watch();
    let nonce = random_word();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    let headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, &policy)];
    (headers, PAGE.replace(NONCE, &nonce)).into_response()
}

async fn content(State(feed): State<Feed>) -> Response {
    match feed.latest().await.and_then(|published| published.json()) {
        Some(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the tiers have not answered yet\n").into_response(),
    }
}

async fn events(State(feed): State<Feed>) -> impl axum::response::IntoResponse {
    Sse::new(feed.changes()).keep_alive(KeepAlive::default())
}

/// Lets a client in that has the token. A browser gets it with the URL that was printed, and keeps it in a cookie.
async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut answer = match &guard.token {
        None if is_local(request.headers()) => next.run(request).await,
        None => {
            let text = "this address is served to this machine only: open it as 127.0.0.1 or localhost\n";
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Some(token) => match token_in(request.uri()) {
            Some(secret) if token.is(secret) => redirect(secret, guard.is_secure),
            _ if token.is_sent_in(request.headers()) || has_cookie(token, request.headers()) => {
                next.run(request).await
            }
            _ => Token::refusal(
                "open the URL with the token that was printed at the start, or send it as 'Authorization: Bearer TOKEN'\n",
            ),
        },
    };
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Whether a browser asked for a name of this machine: a page of another site, whose name was made to point here, must not
/// read this one.
fn is_local(headers: &HeaderMap) -> bool {
    let host = header_text(headers, &header::HOST);
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback || name.eq_ignore_ascii_case("localhost")
}

fn token_in(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

fn has_cookie(token: &Token, headers: &HeaderMap) -> bool {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.any(|(name, value)| name == COOKIE && token.is(value))
}

/// Keeps the token in a cookie, and takes it out of the address.
fn redirect(secret: &str, is_secure: bool) -> Response {
    let secure = if is_secure { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={secret}; HttpOnly; SameSite=Strict; Path=/{secure}");
    (StatusCode::SEE_OTHER, [(header::LOCATION, "/".to_owned()), (header::SET_COOKIE, cookie)])
        .into_response()
}
