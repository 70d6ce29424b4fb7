//! Answers on the control socket, from any process that listens there.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stepvault_agent::control::{AnnounceRequest, Client, DrainRequest, WaitRequest};
use stepvault_agent::step_progress::Goal;
use stepvault_core::ids::Step;
use tokio::runtime::Runtime;

use super::messages;

/// No answer may take longer, whatever it is.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest message beside what the other side says.
const MAX_OWN_BYTES: usize = 1024;

/// A socket with any process that listens there, and the client that asks.
struct Place {
    runtime: Runtime,
    client: Client,
    answer: Arc<Mutex<Vec<u8>>>,
    /// Removed with it.
    _directory: tempfile::TempDir,
}

thread_local! {
    static PLACE: OnceCell<Place> = const { OnceCell::new() };
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path: PathBuf = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let answer: Arc<Mutex<Vec<u8>>> = Arc::default();
        let said = Arc::clone(&answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answer = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let _ = serve(stream, &answer);
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, client: Client::new(path), answer, _directory: directory }
    }
}

/// Reads a request to its end, and answers.
fn serve(mut stream: UnixStream, answer: &[u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    let is_whole = |request: &[u8]| {
        let head = request.windows(4).any(|end| end == b"\r\n\r\n");
        head && (request.starts_with(b"GET") || request.ends_with(b"}"))
    };
    while !is_whole(&request) {
        match stream.read(&mut piece)? {
            0 => break,
            length => request.extend_from_slice(&piece[..length]),
        }
    }
    stream.write_all(answer)?;
    stream.shutdown(Shutdown::Both)
}

/// The first byte says what is asked; what follows is the answer: raw, or the body of one whose status the second byte
/// says.
pub fn check(bytes: &[u8]) {
    let [which, status, rest @ ..] = bytes else { return };
    let answer = if rest.starts_with(b"HTTP/") {
        rest.to_vec()
    } else {
        let status = if *status % 4 == 3 { 409 } else { 200 };
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", rest.len());
        [head.as_bytes(), rest].concat()
    };
    PLACE.with(|place| {
        let place = place.get_or_init(Place::new);
        *place.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
        let asked = async { tokio::time::timeout(2 * PATIENCE, ask(&place.client, *which)).await };
        let told = place.runtime.block_on(asked).expect("an answer in time");
        if let Err(error) = told {
            assert!(error.to_string().len() <= rest.len() * 2 + MAX_OWN_BYTES, "{error}");
        }
    });
}

async fn ask(client: &Client, which: u8) -> stepvault_core::Result<()> {
    match which % 5 {
        0 => client.status(PATIENCE).await.map(drop),
        1 => {
            let request = AnnounceRequest {
                run: None,
                path: PathBuf::from("/out/step_7"),
                step: None,
                name: None,
                metrics: BTreeMap::new(),
                rank: None,
            };
            client.announce(&request).await.map(drop)
        }
        2 => client.announcement(1).await.map(drop),
        3 => {
            let request = WaitRequest {
                run: None,
                step: Step::new(7)?,
                attempt: None,
                goal: Goal::Durable,
                timeout_seconds: 0,
            };
            client.wait(&request, PATIENCE).await.map(drop)
        }
        _ => client.drain(&DrainRequest::default(), PATIENCE).await.map(drop),
    }
}

/// Every message as an answer to every question, and some that are none.
pub fn seeds() -> Vec<Vec<u8>> {
    let raw: [&[u8]; 4] = [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n{",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 301 x\r\nlocation: /v1/status\r\n\r\n",
    ];
    let messages = messages::seeds();
    let with_format = messages.iter().map(|text| [b"{\"format\":1,", &text[1..]].concat());
    let answers = with_format.chain(raw.iter().map(|raw| raw.to_vec()));
    answers
        .flat_map(|answer| (0..5).map(move |which| [&[which, which], answer.as_slice()].concat()))
        .collect()
}
