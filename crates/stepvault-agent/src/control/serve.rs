//! Accepts connections, with limits that protect the service.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::ControlState;
use super::http::{Answer, Refusal};
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

#[derive(Debug)]
pub(super) enum Listener {
    /// The control socket.
    Control(UnixListener),
    /// The port for metrics and the health check.
    Metrics(TcpListener),
}

#[derive(Debug)]
enum Stream {
    Control(UnixStream),
    Metrics(TcpStream),
}

impl Listener {
    async fn accept(&self) -> std::io::Result<Stream> {
        match self {
            Self::Control(listener) => Ok(Stream::Control(listener.accept().await?.0)),
            Self::Metrics(listener) => Ok(Stream::Metrics(listener.accept().await?.0)),
        }
    }
}

/// Serves until told to end.
pub(super) async fn serve(listener: Listener, state: Arc<ControlState>, end: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            biased;
            () = end.cancelled() => break,
            // Finished connections are removed.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        if connections.len() < MAX_CONNECTIONS {
            let state = Arc::clone(&state);
            connections.spawn(async move { answer_on(stream, &state).await });
        }
    }
    last_answers(connections).await;
}

async fn answer_on(stream: Stream, state: &ControlState) {
    match stream {
        Stream::Control(stream) => match check_peer(&stream) {
            Ok(()) => connection(stream, |request| routes::control(state, request)).await,
            Err(error) => {
                let refuse = |_| async { Refusal::from(error.clone()).0 };
                connection(stream, refuse).await;
            }
        },
        Stream::Metrics(stream) => {
            connection(stream, |request| routes::metrics(&state.metrics, request)).await;
        }
    }
}

/// Handles one request with one answer.
async fn connection<Answering: Future<Output = Answer>>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(Request<Incoming>) -> Answering,
) {
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

/// Refuses clients of other users but root.
fn check_peer(stream: &UnixStream) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let why = match stream.peer_cred() {
        Ok(peer) if peer.uid() == own || peer.uid() == 0 => return Ok(()),
        Ok(peer) => {
            let (user, process_id) = (peer.uid(), peer.pid());
            tracing::warn!(user_id = user, process_id, "refused a request of another user");
            format!("the request came from user {user}, and the agent runs as user {own}")
        }
        Err(error) => format!("cannot determine the requesting user: {error}"),
    };
    Err(Error::new(ErrorKind::Denied, "this user may not control the agent")
        .because(why)
        .hint("run the command as the agent's user"))
}
