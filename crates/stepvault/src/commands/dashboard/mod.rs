//! `dashboard`: serves a page that shows every run.

mod change;
mod page;
pub(super) mod snapshot;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use stepvault_agent::http::{TlsAcceptor, Token, serve, tls_acceptor};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::page::{Feed, Guard};
use self::snapshot::Collector;
use crate::arguments::values::interval;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::Output;
use crate::session::Session;

/// Serve a page that shows every run: steps by tier, uploads, disk, retention, and what a restore would take
///
/// The page needs nothing from elsewhere, and the same address gives its content as JSON to a client that accepts that.
/// It changes nothing, and lists the remotes only while somebody watches. With --remote URL alone it shows the runs of a
/// bucket. With --json it prints the content once, and ends.
#[derive(Debug, Args)]
pub(crate) struct DashboardArguments {
    /// Address to serve the page at
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8465")]
    listen: SocketAddr,
    #[command(flatten)]
    protection: Protection,
}

/// How the page of a dashboard is protected. On a loopback address it is served to every user of this machine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Protection of the page, for other than loopback addresses")]
pub(crate) struct Protection {
    /// Certificate chain for HTTPS, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Serve without TLS: everyone on the way can read the page and the token
    #[arg(long, conflicts_with = "tls_certificate")]
    allow_http: bool,
    /// File with the token that a client must send; by default one is generated and printed once
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// How often to list the remotes while somebody watches
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = interval)]
    refresh: Duration,
}

/// Runs the command: until it is interrupted, or with `--json` once.
pub(crate) async fn run(session: &Session, arguments: &DashboardArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    if settings.all_remotes().is_empty() && settings.local_directory().is_none() {
        return Err(Error::new(ErrorKind::Usage, "nothing to show")
            .because("no remote or vault is given or configured")
            .hint("give --remote URL or --local DIR, or a configuration with --config FILE"));
    }
    if session.output.json {
        let document = Collector::new(settings, arguments.protection.refresh).collect().await;
        session.output.result(&document)?;
        return Ok(ExitCode::Done);
    }
    let dashboard = Dashboard::open(arguments.listen, &arguments.protection, settings).await?;
    session.output.text(&dashboard.place())?;
    dashboard.serve(session.interrupt.clone()).await;
    Ok(ExitCode::Done)
}

/// A page that is not served yet.
pub(super) struct Dashboard {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    guard: Guard,
    collector: Collector,
    url: String,
}

impl Dashboard {
    /// Opens the port.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the address is not protected, or cannot be used.
    pub(super) async fn open(
        listen: SocketAddr,
        protection: &Protection,
        settings: Settings,
    ) -> Result<Self> {
        let fault = || Error::new(ErrorKind::Usage, "cannot serve the dashboard").on(listen);
        let is_loopback = listen.ip().is_loopback();
        let tls = match (&protection.tls_certificate, &protection.tls_key) {
            (Some(certificate), Some(key)) => Some(tls_acceptor(certificate, key).await?),
            _ if is_loopback || protection.allow_http => None,
            _ => {
                return Err(fault().because("other machines could reach it without TLS").hint(
                    "give --tls-certificate and --tls-key, or --allow-http in a network that you trust, or a loopback address",
                ));
            }
        };
        let (token, secret) = match &protection.token_file {
            Some(file) => (Some(Token::read(file).await?), None),
            None if is_loopback => (None, None),
            None => {
                let (token, secret) = Token::generate();
                (Some(token), Some(secret))
            }
        };
        let listener = TcpListener::bind(listen).await.map_err(|error| {
            fault().caused_by(error).hint("choose a free port with --listen, or port 0 for any")
        })?;
        let address = listener.local_addr().map_err(|error| fault().caused_by(error))?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let query = secret.map(|secret| format!("?token={secret}")).unwrap_or_default();
        Ok(Self {
            listener,
            url: format!("{scheme}://{address}/{query}"),
            guard: Guard { token, is_secure: tls.is_some() },
            tls,
            collector: Collector::new(settings, protection.refresh),
        })
    }

    /// Returns where the page is, with a generated token, for people.
    fn place(&self) -> String {
        let is_generated = self.url.contains('?');
        let note = if is_generated { " (this token is not shown again)" } else { "" };
        format!("dashboard: {}{note}", self.url)
    }

    /// Serves the page until told to end.
    pub(super) async fn serve(self, end: CancellationToken) {
        let feed = Feed::new();
        let routes = page::routes(&feed, self.guard);
        let collecting = feed.collect(self.collector);
        let serving = serve(self.listener, move |_| routes.clone(), self.tls, end);
        tokio::select! {
            () = serving => {}
            () = collecting => {}
        }
    }
}

/// Serves a dashboard beside another command, on a thread of its own, and says where. Await what it returns before the runtime
/// ends.
///
/// # Errors
/// As [`Dashboard::open`].
pub(super) async fn beside(
    listen: SocketAddr,
    protection: &Protection,
    settings: Settings,
    output: &Output,
    end: CancellationToken,
) -> Result<JoinHandle<()>> {
    let dashboard = Dashboard::open(listen, protection, settings).await?;
    output.line(&dashboard.place());
    let runtime = Handle::current();
    Ok(tokio::task::spawn_blocking(move || runtime.block_on(dashboard.serve(end))))
}
