//! Fault injection: rules that a test server evaluates for every request.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a server does to a request that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultAction {
    /// Answer with this status (and `Retry-After`, in seconds) without doing the work.
    Refuse {
        /// HTTP status, e.g. 503.
        status: u16,
        /// Value of the `Retry-After` header.
        retry_after_seconds: Option<u64>,
        /// Provider error code in the body (`SlowDown`, `ExpiredToken`, …).
        code: String,
    },
    /// Do the work, then close the connection without an answer, so that the outcome is ambiguous.
    ApplyThenReset,
    /// Do the work, and delay the answer by this time: the client may be frozen, cut off or gone by then.
    ApplyThenDelay(Duration),
    /// Close the connection before doing anything.
    Reset,
    /// Delay the request by this time, then process it normally.
    Delay(Duration),
    /// Never answer; the connection stays open and silent.
    Hang,
    /// Answer a read with only this many bytes of the body, then close.
    CutBody {
        /// Bytes sent before the cut.
        bytes: usize,
    },
    /// Answer a read with one bit of the body flipped.
    FlipBit,
    /// Answer 200 with a provider's error document as the body (S3 does so on Complete and Copy).
    OkWithError {
        /// Provider error code in the body.
        code: String,
    },
    /// Answer with this status and page as something that is no store does: a proxy, a gateway, a login page. None of the
    /// store's own headers are added.
    Foreign {
        /// HTTP status; with 302 the page redirects to a login.
        status: u16,
        /// The page, without which there is no content type either.
        page: &'static str,
    },
}

impl FaultAction {
    /// Answers with this status and provider error code, without `Retry-After`.
    pub fn refuse(status: u16, code: &str) -> Self {
        Self::Refuse { status, retry_after_seconds: None, code: code.to_owned() }
    }
}

/// One rule: which requests it matches, how many it lets pass first, how many it affects.
#[derive(Debug, Clone)]
pub struct FaultRule {
    /// HTTP method, or `None` for any.
    pub method: Option<String>,
    /// Substring that the path with its query must contain; empty matches all.
    pub path_contains: String,
    /// Matching requests let through before the rule acts.
    pub skip: u64,
    /// Number of matching requests that it then affects; `u64::MAX` for all.
    pub times: u64,
    /// What happens to them.
    pub action: FaultAction,
}

#[derive(Debug)]
struct Armed {
    rule: FaultRule,
    seen: u64,
}

/// The active rules and a log of all requests; cheap to clone, shared with the server.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    rules: Arc<Mutex<Vec<Armed>>>,
    log: Arc<Mutex<Vec<RequestRecord>>>,
}

/// One request as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRecord {
    /// HTTP method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Length of the request body in bytes, by its header.
    pub body_bytes: u64,
    /// Address of the client, where the server records it.
    pub from: Option<IpAddr>,
}

impl Faults {
    /// Adds a rule. Rules are evaluated in the order in which they were added, and the first that applies wins.
    pub fn add(&self, rule: FaultRule) {
        lock(&self.rules).push(Armed { rule, seen: 0 });
    }

    /// Shorthand: the first `times` requests of `method` whose path contains `path_contains` get `action`.
    pub fn inject(&self, method: &str, path_contains: &str, times: u64, action: FaultAction) {
        self.add(FaultRule {
            method: Some(method.to_owned()),
            path_contains: path_contains.to_owned(),
            skip: 0,
            times,
            action,
        });
    }

    /// Removes all rules.
    pub fn clear(&self) {
        lock(&self.rules).clear();
    }

    /// Called by a server once for each request before it does anything: records the request and returns the action.
    pub fn on_request(
        &self,
        method: &str,
        path_and_query: &str,
        body_bytes: u64,
        from: Option<IpAddr>,
    ) -> Option<FaultAction> {
        lock(&self.log).push(RequestRecord {
            method: method.to_owned(),
            path: path_and_query.to_owned(),
            body_bytes,
            from,
        });
        for armed in lock(&self.rules).iter_mut() {
            let rule = &armed.rule;
            let matches = rule.method.as_deref().is_none_or(|wanted| wanted == method)
                && path_and_query.contains(&rule.path_contains);
            if !matches {
                continue;
            }
            armed.seen += 1;
            if armed.seen > rule.skip && armed.seen - rule.skip <= rule.times {
                return Some(rule.action.clone());
            }
        }
        None
    }

    /// Returns every request so far, in order of arrival.
    pub fn requests(&self) -> Vec<RequestRecord> {
        lock(&self.log).clone()
    }

    /// Returns the requests after the first `count`, in order of arrival.
    pub fn requests_after(&self, count: usize) -> Vec<RequestRecord> {
        lock(&self.log).get(count..).unwrap_or_default().to_vec()
    }

    /// Forgets the requests recorded so far.
    pub fn clear_requests(&self) {
        lock(&self.log).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
