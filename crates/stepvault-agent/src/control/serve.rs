//! Accepting connections, none of which can harm the service.

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

use super::Desk;
use super::http::{Answer, refusal};
use super::{routes, wait};

/// Most connections to one listener at once. One more is closed as soon as it is accepted.
const MOST_CONNECTIONS: usize = 128;
/// How long a request may take to say what it wants.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Most bytes of a request's head.
const LARGEST_HEAD_BYTES: usize = 16 << 10;
const MOST_HEADERS: usize = 32;
/// How long a connection may last, whatever it does: the longest wait, and time to read and write.
const LIFE: Duration = wait::LONGEST_WAIT.saturating_add(Duration::from_secs(30));
/// How long an answer that is under way at the end may take.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// After an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Where requests come in.
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
pub(super) async fn serve(door: Door, desk: Arc<Desk>, end: CancellationToken) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let visitor = tokio::select! {
            biased;
            () = end.cancelled() => break,
            // Those that have ended are forgotten.
            Some(_) = connections.join_next() => continue,
            accepted = door.accept() => match accepted {
                Ok(visitor) => visitor,
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            continue;
        };
        let desk = Arc::clone(&desk);
        connections.spawn(async move {
            receive(visitor, &desk).await;
            drop(place);
        });
    }
    last_answers(connections).await;
}

async fn receive(visitor: Visitor, desk: &Desk) {
    match visitor {
        Visitor::Control(stream) => {
            let refused = refused_peer(&stream);
            let answer = |request| {
                let refused = refused.clone();
                async move {
                    match refused {
                        Some(why) => refusal(StatusCode::FORBIDDEN, &stranger(&why)),
                        None => routes::control(desk, request).await,
                    }
                }
            };
            connection(stream, answer).await;
        }
        Visitor::Metrics(stream) => {
            connection(stream, |request| routes::metrics(desk, request)).await;
        }
    }
}

/// One request, one answer.
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
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(LIFE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
        Err(_) => tracing::debug!("a connection lasted too long"),
    }
}

async fn last_answers(mut connections: JoinSet<()>) {
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_ANSWERS_WITHIN, all).await;
    connections.shutdown().await;
}

/// Why whoever connected is not listened to; `None` for this user and root.
fn refused_peer(stream: &UnixStream) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == own || peer.uid() == 0 => None,
        Ok(peer) => {
            tracing::warn!(
                user_id = peer.uid(),
                process_id = peer.pid(),
                "a request of another user was refused"
            );
            Some(format!(
                "user {} asks, and the agent runs as user {own}",
                peer.uid()
            ))
        }
        Err(error) => Some(format!("it is not known who asks: {error}")),
    }
}

fn stranger(why: &str) -> Error {
    Error::new(ErrorKind::Denied, "this user may not control the agent")
        .because(why)
        .hint("run the command as the agent's user")
}
