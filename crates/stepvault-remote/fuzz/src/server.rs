//! A server on loopback that answers whatever it is told to, and closes the connection behind each answer.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The longest request that is waited for to its end.
const MAX_BYTES: usize = 1 << 20;
/// A client that says nothing more has gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// The server and what it answers next.
#[derive(Debug)]
pub struct Server {
    port: u16,
    answers: Arc<Mutex<VecDeque<Vec<u8>>>>,
}

impl Server {
    /// Runs until the process ends.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers: Arc<Mutex<VecDeque<Vec<u8>>>> = Arc::default();
        let next = Arc::clone(&answers);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut answers = next.lock().unwrap_or_else(PoisonError::into_inner);
                // The last one goes to all that come later.
                let answer = match answers.len() {
                    0 | 1 => answers.front().cloned(),
                    _ => answers.pop_front(),
                };
                drop(answers);
                let _ = serve(stream, &answer.unwrap_or_default());
            }
        });
        Self { port, answers }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn answer(&self, answers: Vec<Vec<u8>>) {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner) = answers.into();
    }
}

/// Reads one request to its end, and answers.
fn serve(mut stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut piece = [0; 16 << 10];
    while request.len() < MAX_BYTES && !is_whole(&request) {
        match stream.read(&mut piece)? {
            0 => break,
            length => request.extend_from_slice(&piece[..length]),
        }
    }
    stream.write_all(answer)?;
    stream.shutdown(Shutdown::Both)
}

fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|end| end == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.split("content-length:").nth(1).and_then(|rest| rest.lines().next());
    let length = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    if head.contains("transfer-encoding: chunked") {
        return request.ends_with(b"0\r\n\r\n");
    }
    request.len() >= end + 4 + length
}
