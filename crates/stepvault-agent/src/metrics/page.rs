//! The page that a scraper reads, and the health check.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use super::{Metrics, TextFormat};
use crate::http::{Token, header_text};

/// Who may read the page.
#[derive(Debug, Clone)]
pub(crate) enum MetricsAccess {
    /// Every client: only this machine reaches the address, or a network policy protects it.
    Open,
    /// Clients that send this token. Others learn only whether the agent is well.
    Token(Token),
}

/// Returns the routes of the address for metrics.
pub(crate) fn routes(metrics: Arc<Metrics>, access: MetricsAccess) -> Router {
    let protected = Router::new().route("/metrics", get(page));
    let protected = match &access {
        MetricsAccess::Open => protected,
        MetricsAccess::Token(token) => protected.route_layer(from_fn_with_state(token.clone(), check)),
    };
    let health = {
        let metrics = Arc::clone(&metrics);
        get(move |headers: HeaderMap| async move { health(&metrics, &access, &headers) })
    };
    protected
        .route("/healthz", health)
        .fallback(|method: Method| async move {
            let is_read = [Method::GET, Method::HEAD].contains(&method);
            let status = if is_read { StatusCode::NOT_FOUND } else { StatusCode::METHOD_NOT_ALLOWED };
            (status, "use GET /metrics or /healthz\n")
        })
        .with_state(metrics)
}

async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    if token.is_sent_in(request.headers()) {
        return next.run(request).await;
    }
    Token::refusal("send the token as 'Authorization: Bearer TOKEN'\n")
}

async fn page(State(metrics): State<Arc<Metrics>>, headers: HeaderMap) -> Response {
    let format = TextFormat::accepted(header_text(&headers, &header::ACCEPT));
    match metrics.text(format).await {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn health(metrics: &Metrics, access: &MetricsAccess, headers: &HeaderMap) -> Response {
    let problems = metrics.problems();
    if problems.is_empty() {
        return "well\n".into_response();
    }
    let text = match access {
        MetricsAccess::Token(token) if !token.is_sent_in(headers) => "not well\n".to_owned(),
        _ => problems.join("\n") + "\n",
    };
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}
