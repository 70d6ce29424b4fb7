//! Accepts connections and runs one service on each.

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Serves HTTP/1.1 until dropped; a connection ends quietly when its client or a fault ends it.
pub(crate) async fn serve<Handler, Answer>(listener: TcpListener, handler: Handler)
where
    Handler: Service<http::Request<Incoming>, Response = http::Response<Answer>> + Clone + Send + 'static,
    Handler::Future: Send,
    Handler::Error: Into<BoxError>,
    Answer: Body + Send + 'static,
    Answer::Data: Send,
    Answer::Error: Into<BoxError>,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: leave time for some to be closed.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), handler.clone());
        tokio::spawn(async move {
            let _ = connection.await;
        });
    }
}
