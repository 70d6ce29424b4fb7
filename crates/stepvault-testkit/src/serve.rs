//! Runs a server on a free loopback port on its own threads, and ends it when the handle is dropped.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A running server. Dropping it stops the server and waits for its thread.
#[derive(Debug)]
pub struct ServerHandle {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServerHandle {
    /// Binds `127.0.0.1:0` and runs `serve(listener)` on a runtime with one worker thread until dropped.
    ///
    /// # Errors
    /// When no port is free or no thread can be started.
    pub fn start<Serve, Serving>(serve: Serve) -> std::io::Result<Self>
    where
        Serve: FnOnce(TcpListener) -> Serving + Send + 'static,
        Serving: Future<Output = ()>,
    {
        Self::start_on(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, serve)
    }

    /// Like [`start`](Self::start), on an existing listener: on an address or in a network namespace chosen by the
    /// test.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start_on<Serve, Serving>(listener: std::net::TcpListener, serve: Serve) -> std::io::Result<Self>
    where
        Serve: FnOnce(TcpListener) -> Serving + Send + 'static,
        Serving: Future<Output = ()>,
    {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("test-server".to_owned()).spawn(move || {
            runtime.block_on(async {
                match TcpListener::from_std(listener) {
                    Ok(listener) => tokio::select! {
                        () = serve(listener) => {}
                        _ = stopped => {}
                    },
                    Err(error) => eprintln!("test server: {error}"),
                }
            });
            // Closes connections that are still open instead of waiting for their clients.
            runtime.shutdown_background();
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `http://127.0.0.1:PORT`, or its other address.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
