//! The HTTP client of a remote. Its pool of connections is replaced when one of them turns out to be dead.
//!
//! A NAT or a load balancer that forgets its connections does so for all of them at once, and says nothing. Each retry
//! would pick another dead connection of the pool, and wait for it as long as the last one.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::redirect::Policy;

use super::CONNECT_TIMEOUT;
use super::tls::{Authorities, ClientIdentity, has_roots};

/// Time without traffic after which the kernel probes a connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How a remote's requests travel.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpOptions {
    /// Trusted besides the system's authorities.
    pub(crate) authorities: Option<Authorities>,
    /// The certificate by which this machine proves itself.
    pub(crate) identity: Option<ClientIdentity>,
    /// Time after which a request that moves no byte fails.
    pub(crate) stall_timeout: Duration,
    /// The server is on this machine, and no proxy is asked.
    pub(crate) is_local: bool,
    pub(crate) scheme: Scheme,
}

/// The schemes of URLs that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Scheme {
    #[default]
    Any,
    Https,
    /// Needs no authorities, which a container may not have, and whose loading takes time.
    Http,
}

impl Scheme {
    /// Returns the scheme of a remote.
    pub(crate) fn of(plain_http: bool) -> Self {
        if plain_http { Self::Http } else { Self::Https }
    }
}

impl HttpOptions {
    /// Creates a client.
    pub(crate) fn client(&self) -> reqwest::Result<reqwest::Client> {
        let trusted = self.authorities.as_ref().map_or(Ok(Vec::new()), Authorities::certificates)?;
        let mut builder = reqwest::Client::builder()
            // Over HTTP/2 all requests would share one connection, and reads that pause would stall the others.
            .http1_only()
            .user_agent(concat!("stepvault/", env!("CARGO_PKG_VERSION")))
            // Shorter than the stall time, so that it is known which of the two has passed.
            .connect_timeout((self.stall_timeout * 3 / 4).min(CONNECT_TIMEOUT))
            // No user timeout: it would also end a connection whose peer is only slow to read.
            .tcp_keepalive(KEEP_ALIVE)
            .https_only(self.scheme == Scheme::Https)
            // A correct request is never redirected, and credentials must not be sent to another host.
            .redirect(Policy::none());
        builder = if self.scheme == Scheme::Http || !has_roots() {
            builder.tls_certs_only(trusted)
        } else {
            builder.tls_certs_merge(trusted)
        };
        if let Some(identity) = &self.identity {
            builder = builder.identity(identity.0.clone());
        }
        if self.is_local { builder.no_proxy() } else { builder }.build()
    }

    /// Creates a client that is replaced when its connections are dead.
    pub(crate) fn open(self) -> reqwest::Result<Renewed<reqwest::Client>> {
        let client = self.client()?;
        Ok(Renewed::new(client, move || self.client().ok()))
    }
}

/// The client of one remote.
#[derive(Clone)]
pub(crate) struct Renewed<Client>(Arc<Shared<Client>>);

struct Shared<Client> {
    /// `None` if no other client can be created; the one there is stays in use then.
    create: Box<dyn Fn() -> Option<Client> + Send + Sync>,
    current: Mutex<Current<Client>>,
}

struct Current<Client> {
    client: Client,
    generation: u64,
    /// Whether a request on one of its connections got no answer.
    is_distrusted: bool,
}

/// A client for one request. Dropped without an answer, it takes its client's idle connections along.
pub(crate) struct Lease<Client> {
    client: Client,
    generation: u64,
    shared: Arc<Shared<Client>>,
    is_answered: bool,
}

impl<Client> fmt::Debug for Renewed<Client> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Renewed({})", self.0.current.lock().generation)
    }
}

impl<Client: Clone> Renewed<Client> {
    /// Uses `client` until a request gets no answer, and then what `create` returns.
    pub(crate) fn new(client: Client, create: impl Fn() -> Option<Client> + Send + Sync + 'static) -> Self {
        let current = Mutex::new(Current { client, generation: 0, is_distrusted: false });
        Self(Arc::new(Shared { create: Box::new(create), current }))
    }

    /// Returns the client for one request. Requests that are under way keep the one they have.
    pub(crate) fn lease(&self) -> Lease<Client> {
        let mut current = self.0.current.lock();
        if current.is_distrusted
            && let Some(client) = (self.0.create)()
        {
            *current = Current { client, generation: current.generation + 1, is_distrusted: false };
        }
        Lease {
            client: current.client.clone(),
            generation: current.generation,
            shared: Arc::clone(&self.0),
            is_answered: false,
        }
    }
}

impl<Client> Lease<Client> {
    /// Records and returns the outcome of the request. After an answer, or if no connection was made, the other
    /// connections are as good as they were.
    pub(crate) fn ended<T, E>(
        &mut self,
        outcome: Result<T, E>,
        is_connect: impl FnOnce(&E) -> bool,
    ) -> Result<T, E> {
        self.is_answered = outcome.as_ref().err().is_none_or(is_connect);
        outcome
    }

    /// The server stopped in the middle of its answer.
    pub(crate) fn lost(&mut self) {
        self.is_answered = false;
    }
}

impl<Client> Deref for Lease<Client> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl<Client> Drop for Lease<Client> {
    fn drop(&mut self) {
        let mut current = self.shared.current.lock();
        current.is_distrusted |= !self.is_answered && self.generation == current.generation;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn answer(lease: &mut Lease<u32>) {
        lease.ended(Ok::<_, ()>(()), |()| false).unwrap();
    }

    #[test]
    fn one_request_without_an_answer_costs_one_client() {
        let created = AtomicU32::new(0);
        let clients = Renewed::new(0, move || Some(created.fetch_add(1, Ordering::Relaxed) + 1));
        let mut answered = clients.lease();
        answer(&mut answered);
        drop(answered);
        assert_eq!(*clients.lease(), 0);
        // The lease of the line above was dropped without an answer.
        let stalled = [clients.lease(), clients.lease(), clients.lease()];
        assert!(stalled.iter().all(|lease| **lease == 1));
        drop(stalled);
        let mut next = clients.lease();
        assert_eq!(*next, 2, "three that stall together are one failure");
        answer(&mut next);
        drop(next);
        assert_eq!(*clients.lease(), 2);
    }

    #[test]
    fn the_client_stays_where_no_other_can_be_had() {
        let clients = Renewed::new("first", || None);
        drop(clients.lease());
        assert_eq!(*clients.lease(), "first");
    }
}
