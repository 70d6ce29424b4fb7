//! One HTTP request by hand, for what the clients never send.

use std::fmt::Write as _;

use stepvault_testkit::gcs::StrictGcs;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An answer taken apart; `status` is 0 when the connection closed without one.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (given, value) = line.split_once(':')?;
            given.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    /// Text of the first XML element with this name.
    pub(crate) fn element(&self, name: &str) -> Option<String> {
        let text = self.text();
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
    }
}

/// Sends a request with its whole body.
pub(crate) async fn send(
    server: &StrictGcs,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    send_cut(server, method, path, headers, body, body.len()).await
}

/// Sends a request that states `stated_bytes` and breaks off after `body`.
pub(crate) async fn send_cut(
    server: &StrictGcs,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    stated_bytes: usize,
) -> Answer {
    let address = server.endpoint().trim_start_matches("http://").to_owned();
    let path = path.strip_prefix(&server.endpoint()).unwrap_or(path);
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: storage.test\r\nConnection: close\r\nContent-Length: {stated_bytes}\r\n"
    );
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head.push_str("\r\n");
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    // The server may close at any moment on purpose; what it answered decides.
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(body).await;
    if body.len() < stated_bytes {
        let _ = stream.shutdown().await;
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Answer { status: 0, head: String::new(), body: Vec::new() };
    };
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head, body: answer[end + 4..].to_vec() }
}
