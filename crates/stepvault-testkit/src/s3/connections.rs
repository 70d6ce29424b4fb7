//! Accepts connections and runs one service on each.

use std::net::SocketAddr;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

use crate::tls::{Accepted, Acceptor};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The client's address, stored in the extensions of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client(pub(crate) SocketAddr);

/// Serves HTTP/1.1 on the connections of `acceptor` until dropped. Connections ended by a client or a fault are not
/// reported.
pub(crate) async fn serve<Handler, Answer>(listener: TcpListener, acceptor: Acceptor, handler: Handler)
where
    Handler: Service<http::Request<Incoming>, Response = http::Response<Answer>> + Clone + Send + 'static,
    Handler::Future: Send,
    Handler::Error: Into<BoxError>,
    Answer: Body + Send + 'static,
    Answer::Data: Send,
    Answer::Error: Into<BoxError>,
{
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            // Out of descriptors: wait until some are closed.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (acceptor, handler) = (acceptor.clone(), handler.clone());
        tokio::spawn(async move {
            match acceptor.accept(stream).await {
                Ok(Accepted::Plain(stream)) => serve_connection(stream, client, handler).await,
                Ok(Accepted::Tls(stream)) => serve_connection(stream, client, handler).await,
                Err(_) => {}
            }
        });
    }
}

async fn serve_connection<Handler, Answer>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: SocketAddr,
    handler: Handler,
) where
    Handler: Service<http::Request<Incoming>, Response = http::Response<Answer>>,
    Handler::Error: Into<BoxError>,
    Answer: Body + 'static,
    Answer::Error: Into<BoxError>,
{
    let marked = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(Client(client));
        handler.call(request)
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), marked).await;
}
