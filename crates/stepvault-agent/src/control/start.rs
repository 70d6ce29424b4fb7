//! Opens the control socket and the metrics port, and closes them at the end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::socket::{PrivateSocket, listen_privately};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::serve::{Listener, serve};
use super::{ControlState, FinalResponse, drain};
use crate::report::AgentReport;

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
            let listener = Listener::Metrics(listen_on(address).await?);
            let serving = serve(listener, Arc::clone(&state), control.end.clone());
            control.listening.spawn(serving);
        }
        if let Some(path) = shared.options.control_socket() {
            match open(&path).await {
                Ok((listener, socket)) => {
                    tracing::info!(path = %socket.path().display(), "listening on the control socket");
                    control.socket = Some(socket);
                    let serving = serve(Listener::Control(listener), state, control.end.clone());
                    control.listening.spawn(serving);
                }
                Err(error) => shared.reporter.warn_once("control", &warning(&error)),
            }
        }
        Ok(control)
    }

    /// Answers clients that waited for the end, and closes. Takes a few seconds at most.
    pub(crate) async fn end(mut self, report: Option<&AgentReport>) {
        if let Some(answer) = drain::final_response(report) {
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
