//! Opens the control socket and the port for scrapes, and closes them at the end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use stepvault_core::config::MetricsSettings;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::socket::{PrivateSocket, listen_privately};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{ControlState, FinalResponse, Refusal, routes};
use crate::http::{Token, serve};
use crate::metrics::MetricsAccess;
use crate::report::AgentReport;

/// Returns the routes for a client on the control socket: those of the API, or a refusal of every request.
fn routes_for(stream: &UnixStream, routes: &Router) -> Router {
    match check_peer(stream) {
        Ok(()) => routes.clone(),
        Err(error) => Router::new().fallback(move || async { Refusal::from(error) }),
    }
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
    /// [`ErrorKind::Usage`] when the metrics port cannot be opened or its token cannot be read: it was asked for.
    pub(crate) async fn start(state: ControlState, ended: watch::Sender<FinalResponse>) -> Result<Self> {
        let mut control =
            Self { listening: JoinSet::new(), end: CancellationToken::new(), ended, socket: None };
        let shared = Arc::clone(&state.shared);
        if shared.options.lifecycle.once {
            return Ok(control);
        }
        let state = Arc::new(state);
        let MetricsSettings { listen, token_file, file, .. } = &shared.options.agent.metrics;
        if let Some(file) = file {
            let metrics = Arc::clone(&state.metrics);
            control.listening.spawn(metrics.write_to(file.clone(), control.end.clone()));
        }
        if let Some(address) = *listen {
            let access = match token_file {
                Some(file) => MetricsAccess::Token(Token::read(file).await?),
                None => MetricsAccess::Open,
            };
            let listener = listen_on(address).await?;
            let routes = crate::metrics::routes(Arc::clone(&state.metrics), access);
            control.listening.spawn(serve(listener, move |_| routes.clone(), None, control.end.clone()));
        }
        if let Some(path) = shared.options.control_socket() {
            match open(&path).await {
                Ok((listener, socket)) => {
                    tracing::info!(path = %socket.path().display(), "listening on the control socket");
                    control.socket = Some(socket);
                    let api = routes::control(state);
                    let routes = move |stream: &UnixStream| routes_for(stream, &api);
                    control.listening.spawn(serve(listener, routes, None, control.end.clone()));
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
    TcpListener::bind(address).await.map_err(|error| {
        Error::new(ErrorKind::Usage, "cannot serve metrics")
            .on(address)
            .caused_by(error)
            .hint("set agent.metrics-listen to a free port")
    })
}
