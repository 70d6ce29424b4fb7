//! Accepts connections, with limits that protect the service.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use stepvault_core::{Error, ErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::ControlState;
use super::http::{Answer, refusal};
use super::{routes, wait};

/// Maximum number of concurrent connections to one listener. Further ones are closed as soon as they are accepted.
const MAX_CONNECTIONS: usize = 128;
/// Time limit for receiving a request's head.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of a request's head.
const LARGEST_HEAD_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 32;
/// Maximum duration of a connection: the longest wait, plus time to read and write.
const LIFE: Duration = wait::LONGEST_WAIT.saturating_add(Duration::from_secs(30));
/// Time limit for answers that are being written at the end.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Pause after an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A listener.
#[derive(Debug)]
pub(super) enum Door {
    /// The control socket.
    Control(UnixListener),
    /// The port for metrics and the health check.
    Metrics(TcpListener),
}

#[derive(Debug)]
enum Visitor {
    Control(UnixStream),
    Metrics(TcpStream),
}

impl Door {
    async fn accept(&self) -> std::io::Result<Visitor> {
        match self {
            Self::Control(listener) => Ok(Visitor::Control(listener.accept().await?.0)),
            Self::Metrics(listener) => Ok(Visitor::Metrics(listener.accept().await?.0)),
        }
    }
}

/// Serves until told to end.
pub(super) async fn serve(door: Door, control_state: Arc<ControlState>, end: CancellationToken) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let visitor = tokio::select! {
            biased;
            () = end.cancelled() => break,
            // Finished connections are removed.
            Some(_) = connections.join_next() => continue,
            accepted = door.accept() => match accepted {
                Ok(visitor) => visitor,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            continue;
        };
        let control_state = Arc::clone(&control_state);
        connections.spawn(async move {
            receive(visitor, &control_state).await;
            drop(place);
        });
    }
    last_answers(connections).await;
}

async fn receive(visitor: Visitor, control_state: &ControlState) {
    match visitor {
        Visitor::Control(stream) => {
            let refused = refused_peer(&stream);
            let answer = |request| {
                let refused = refused.clone();
                async move {
                    match refused {
                        Some(why) => refusal(StatusCode::FORBIDDEN, &stranger(&why)),
                        None => routes::control(control_state, request).await,
                    }
                }
            };
            connection(stream, answer).await;
        }
        Visitor::Metrics(stream) => {
            connection(stream, |request| routes::metrics(control_state, request)).await;
        }
    }
}

/// Handles one request with one answer.
async fn connection<Stream, Answering>(stream: Stream, answer: impl Fn(Request<Incoming>) -> Answering)
where
    Stream: AsyncRead + AsyncWrite + Unpin,
    Answering: Future<Output = Answer>,
{
    let service = service_fn(|request| {
        let answering = answer(request);
        async move { Ok::<_, Infallible>(answering.await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(LARGEST_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(LIFE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended unexpectedly"),
        Err(_) => tracing::debug!("a connection exceeded its time limit"),
    }
}

async fn last_answers(mut connections: JoinSet<()>) {
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_ANSWERS_WITHIN, all).await;
    connections.shutdown().await;
}

/// Returns why a client is refused; `None` for this user and root.
fn refused_peer(stream: &UnixStream) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == own || peer.uid() == 0 => None,
        Ok(peer) => {
            tracing::warn!(
                user_id = peer.uid(),
                process_id = peer.pid(),
                "refused a request of another user"
            );
            Some(format!(
                "the request came from user {}, and the agent runs as user {own}",
                peer.uid()
            ))
        }
        Err(error) => Some(format!("cannot determine the requesting user: {error}")),
    }
}

fn stranger(why: &str) -> Error {
    Error::new(ErrorKind::Denied, "this user may not control the agent")
        .because(why)
        .hint("run the command as the agent's user")
}
