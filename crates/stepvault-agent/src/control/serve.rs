//! Listens on the control socket and for scrapes, and accepts connections, with limits that protect the service.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::socket::{PrivateSocket, listen_privately};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::net::Listener;
use tokio_util::sync::CancellationToken;

use super::{Answer, ControlState, FinalResponse, Refusal, routes};
use crate::report::AgentReport;

/// Maximum number of concurrent connections to one listener. Further ones are closed as soon as they are accepted.
const MAX_CONNECTIONS: usize = 128;
/// Time limit for receiving a request's head.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of a request's head.
const LARGEST_HEAD_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 32;
/// Maximum duration of a connection: the longest wait, plus time to read and write.
const LIFE: Duration = routes::LONGEST_WAIT.saturating_add(Duration::from_secs(30));
/// Time limit for answers that are being written at the end.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Pause after an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves until told to end.
async fn serve<L: Listener, Answering: Future<Output = ()> + Send + 'static>(
    mut listener: L,
    state: Arc<ControlState>,
    answer_on: fn(L::Io, Arc<ControlState>) -> Answering,
    end: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            biased;
            () = end.cancelled() => break,
            // Finished connections are removed.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        if connections.len() < MAX_CONNECTIONS {
            connections.spawn(answer_on(stream, Arc::clone(&state)));
        }
    }
    last_answers(connections).await;
}

/// Answers on the control socket.
async fn answer_command(stream: UnixStream, state: Arc<ControlState>) {
    match check_peer(&stream) {
        Ok(()) => connection(stream, |request| routes::control(&state, request)).await,
        Err(error) => connection(stream, |_| async { Refusal::from(error.clone()).0 }).await,
    }
}

/// Answers on the port for metrics and the health check.
async fn answer_scrape(stream: TcpStream, state: Arc<ControlState>) {
    connection(stream, |request| routes::metrics(&state.metrics, request)).await;
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

// Opens the control socket and the metrics port, and closes them at the end.

/// A process that listens on a socket accepts a connection within this time, or is useless to its clients.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// The open listeners. Dropping it closes them at once, and removes the socket's name.
#[derive(Debug)]
pub(crate) struct Control {
    listening: JoinSet<()>,
    end: CancellationToken,
    ended: watch::Sender<FinalResponse>,
    socket: Option<PrivateSocket>,
}

impl Control {
    /// Opens what is configured; nothing for a service that ends after one round. A socket that cannot be opened is
    /// only a warning: checkpoints are more important.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when the metrics port cannot be opened, because it was requested explicitly.
    pub(crate) async fn start(state: ControlState, ended: watch::Sender<FinalResponse>) -> Result<Self> {
        let mut control =
            Self { listening: JoinSet::new(), end: CancellationToken::new(), ended, socket: None };
        let shared = Arc::clone(&state.shared);
        if shared.options.lifecycle.once {
            return Ok(control);
        }
        let state = Arc::new(state);
        if let Some(address) = shared.options.agent.metrics_listen {
            let listener = listen_on(address).await?;
            let serving = serve(listener, Arc::clone(&state), answer_scrape, control.end.clone());
            control.listening.spawn(serving);
        }
        if let Some(path) = shared.options.control_socket() {
            match open(&path).await {
                Ok((listener, socket)) => {
                    tracing::info!(path = %socket.path().display(), "listening on the control socket");
                    control.socket = Some(socket);
                    control.listening.spawn(serve(listener, state, answer_command, control.end.clone()));
                }
                Err(error) => shared.reporter.warn_once("control", &warning(&error)),
            }
        }
        Ok(control)
    }

    /// Answers clients that waited for the end, and closes. Takes a few seconds at most.
    pub(crate) async fn end(mut self, report: Option<&AgentReport>) {
        if let Some(answer) = routes::final_response(report) {
            self.ended.send_replace(Some(Arc::new(answer)));
        }
        // New requests are refused; current ones are answered.
        self.socket = None;
        self.end.cancel();
        while self.listening.join_next().await.is_some() {}
    }
}

fn warning(error: &Error) -> String {
    let hint = error.hint_text().unwrap_or(
        "set another path with agent.control-socket, or set it to \"off\": the agent works without it, but 'announce' \
         and 'drain' do not",
    );
    format!("the control socket is unavailable: {error} ({hint})")
}

async fn open(path: &Path) -> Result<(UnixListener, PrivateSocket)> {
    let is_taken = match tokio::time::timeout(TAKEN_WITHIN, UnixStream::connect(path)).await {
        Ok(connected) => connected.is_ok(),
        // A process that accepts no connections is frozen, not dead.
        Err(_) => true,
    };
    if is_taken {
        return Err(Error::new(ErrorKind::Held, "cannot create the socket")
            .on(path.display())
            .because("another process listens on it")
            .hint("give each agent its own socket with agent.control-socket"));
    }
    let own = path.to_owned();
    let (listener, socket) = blocking(move || listen_privately(&own)).await?;
    let fault = |error: std::io::Error| {
        Error::new(ErrorKind::Failed, "cannot listen on the socket").on(path.display()).caused_by(error)
    };
    listener.set_nonblocking(true).map_err(fault)?;
    Ok((UnixListener::from_std(listener).map_err(fault)?, socket))
}

async fn listen_on(address: SocketAddr) -> Result<TcpListener> {
    if !address.ip().is_loopback() {
        return Err(Error::new(ErrorKind::Usage, "cannot serve metrics")
            .on(address)
            .because("other machines could reach it, and it has no authentication")
            .hint("use a loopback address: 127.0.0.1 or [::1]"));
    }
    TcpListener::bind(address).await.map_err(|error| {
        Error::new(ErrorKind::Usage, "cannot serve metrics")
            .on(address)
            .caused_by(error)
            .hint("set agent.metrics-listen to a free port")
    })
}
