//! Opening the socket and the port, and closing them at the end.

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

use super::messages::DrainAnswer;
use super::serve::{Door, serve};
use super::{Desk, ServedRun, drain};
use crate::assembly::{prompt, remotes_of};
use crate::metrics::Metrics;
use crate::note::Notes;
use crate::options::AgentOptions;
use crate::report::AgentReport;
use crate::shared::Shared;

/// Whoever listens on a socket takes a connection in this time, or is as good as dead to its clients.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// What listens. Dropping it closes everything at once, and takes the socket's name away.
#[derive(Debug)]
pub(crate) struct Control {
    listening: JoinSet<()>,
    end: CancellationToken,
    ended: watch::Sender<Option<Arc<DrainAnswer>>>,
    socket: Option<PrivateSocket>,
}

impl Control {
    /// Opens what is configured; nothing for a service that does its work once and ends. A socket that cannot be opened
    /// is a warning: checkpoints are more important.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when the port for metrics cannot be had: it was asked for by name.
    pub(crate) async fn start(
        options: &AgentOptions,
        shared: &Arc<Shared>,
        notes: &Notes,
        metrics: Arc<Metrics>,
    ) -> Result<Self> {
        let (ended, told) = watch::channel(None);
        let mut control = Self {
            listening: JoinSet::new(),
            end: CancellationToken::new(),
            ended,
            socket: None,
        };
        if options.once {
            return Ok(control);
        }
        let prompt = prompt(&options.remotes);
        let runs = options.runs.iter().map(|run| ServedRun {
            run: run.run.clone(),
            remotes: remotes_of(run, &prompt),
        });
        let desk = Arc::new(Desk::new(
            Arc::clone(shared),
            runs.collect(),
            notes.clone(),
            metrics,
            options.drain_deadline,
            told,
        ));
        if let Some(address) = options.metrics_listen {
            let listener = listen_on(address).await?;
            control.listening.spawn(serve(
                Door::Metrics(listener),
                Arc::clone(&desk),
                control.end.clone(),
            ));
        }
        if let Some(path) = &options.control_socket {
            match open(path).await {
                Ok((listener, socket)) => {
                    tracing::info!(path = %socket.path().display(), "controlled there");
                    control.socket = Some(socket);
                    control
                        .listening
                        .spawn(serve(Door::Control(listener), desk, control.end.clone()));
                }
                Err(error) => shared.warn("control", &warning(&error)),
            }
        }
        Ok(control)
    }

    /// Answers whoever waited for the end, and closes. Takes a few seconds at most.
    pub(crate) async fn end(mut self, report: Option<&AgentReport>) {
        if let Some(answer) = drain::farewell(report) {
            self.ended.send_replace(Some(Arc::new(answer)));
        }
        // New requests find nobody, those under way are answered.
        self.socket = None;
        self.end.cancel();
        while self.listening.join_next().await.is_some() {}
    }
}

fn warning(error: &Error) -> String {
    let hint = error.hint_text().unwrap_or(
        "name another place with agent.control-socket, or set it to \"off\": without it the agent works, and \
         'announce' and 'drain' do not",
    );
    format!("the agent cannot be controlled: {error} ({hint})")
}

async fn open(path: &Path) -> Result<(UnixListener, PrivateSocket)> {
    let is_taken = match tokio::time::timeout(TAKEN_WITHIN, UnixStream::connect(path)).await {
        Ok(connected) => connected.is_ok(),
        // Somebody who does not take connections is frozen, not dead.
        Err(_) => true,
    };
    if is_taken {
        return Err(Error::new(ErrorKind::Held, "cannot make the socket")
            .on(path.display())
            .because("another process listens there")
            .hint("give each agent a socket of its own with agent.control-socket"));
    }
    let place = path.to_owned();
    let (listener, socket) = blocking(move || listen_privately(&place)).await?;
    let fault = |error: std::io::Error| {
        Error::new(ErrorKind::Failed, "cannot listen on the socket")
            .on(path.display())
            .caused_by(error)
    };
    listener.set_nonblocking(true).map_err(fault)?;
    Ok((UnixListener::from_std(listener).map_err(fault)?, socket))
}

async fn listen_on(address: SocketAddr) -> Result<TcpListener> {
    if !address.ip().is_loopback() {
        return Err(Error::new(ErrorKind::Usage, "cannot serve metrics")
            .on(address)
            .because("other machines could reach it, and nothing asks them who they are")
            .hint("use an address of this machine alone: 127.0.0.1 or [::1]"));
    }
    TcpListener::bind(address).await.map_err(|error| {
        Error::new(ErrorKind::Usage, "cannot serve metrics")
            .on(address)
            .caused_by(error)
            .hint("give agent.metrics-listen a port that is free")
    })
}
