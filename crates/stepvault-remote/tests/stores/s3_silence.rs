//! Slow lines against dead ones: only silence counts, wherever in a request it falls.

use std::time::{Duration, Instant};

use bytes::Bytes;
use stepvault_core::ErrorKind;
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::RemoteStore;
use stepvault_testkit::serve::ServerHandle;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{bytes, create, read, settings};

const STALL: Duration = Duration::from_secs(1);
/// Several times what the kernel's buffers on both sides hold.
const BODY_BYTES: usize = 48 << 20;

/// How a hand-made server treats each connection.
#[derive(Clone, Copy)]
struct Manners {
    /// Bytes of the request it reads, with a pause after each 512 KiB.
    reads_bytes: usize,
    read_pause: Duration,
    /// Bytes of its ten-byte answer that it sends, each after a pause.
    sends_bytes: usize,
    send_pause: Duration,
}

fn serve(manners: Manners) -> ServerHandle {
    ServerHandle::start(move |listener| async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut stream = stream;
                let _ = converse(&mut stream, manners).await;
                // Neither closed nor answered.
                std::future::pending::<()>().await;
            });
        }
    })
    .unwrap()
}

async fn converse(stream: &mut TcpStream, manners: Manners) -> std::io::Result<()> {
    let mut buffer = vec![0; 512 << 10];
    let mut seen = 0;
    let mut head = Vec::new();
    let wanted = loop {
        seen += stream.read(&mut buffer[..1]).await?;
        head.push(buffer[0]);
        if head.ends_with(b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&head).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            break seen + length.unwrap_or(0);
        }
    };
    while seen < wanted.min(manners.reads_bytes) {
        let mut filled = 0;
        while filled < buffer.len() && seen < wanted {
            let read = stream.read(&mut buffer).await?;
            (filled, seen) = (filled + read, seen + read);
        }
        tokio::time::sleep(manners.read_pause).await;
    }
    if seen < wanted {
        return std::future::pending().await;
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 10\r\n\r\n").await?;
    for _ in 0..manners.sends_bytes {
        tokio::time::sleep(manners.send_pause).await;
        stream.write_all(b"x").await?;
    }
    Ok(())
}

const PROMPT: Manners = Manners {
    reads_bytes: usize::MAX,
    read_pause: Duration::ZERO,
    sends_bytes: 10,
    send_pause: Duration::ZERO,
};

async fn open(server: &ServerHandle) -> std::sync::Arc<dyn RemoteStore> {
    let mut settings = settings("s3://bucket/prefix");
    settings.endpoint = Some(server.endpoint());
    settings.stall_timeout_seconds = STALL.as_secs();
    let keys = StaticKeys { access_key: "AKIA".to_owned(), secret_key: "secret".to_owned() };
    stepvault_remote::s3::open(&settings, Some(keys)).await.unwrap()
}

async fn upload(server: &ServerHandle, body: &Bytes) -> (stepvault_core::Result<()>, Duration) {
    let store = open(server).await;
    let began = Instant::now();
    let outcome = create(&*store, "key", body).await.map(drop);
    (outcome, began.elapsed())
}

#[tokio::test]
async fn a_slow_upload_takes_its_time() {
    let server = serve(Manners { read_pause: Duration::from_millis(50), ..PROMPT });
    let (outcome, took) = upload(&server, &bytes(BODY_BYTES, 1)).await;
    outcome.unwrap();
    assert!(took > STALL * 2, "{took:?} shows nothing");
}

#[tokio::test]
async fn an_upload_that_stops_in_the_middle_fails() {
    let server = serve(Manners { reads_bytes: 1 << 20, ..PROMPT });
    let (outcome, took) = upload(&server, &bytes(BODY_BYTES, 1)).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(
        error.to_string(),
        "cannot write the object: s3://bucket/prefix/key: no byte moved for 1 seconds"
    );
    assert!(took >= STALL && took < STALL * 3, "{took:?}");
}

#[tokio::test]
async fn a_slow_answer_takes_its_time_and_a_silent_one_fails() {
    let slow = serve(Manners { send_pause: Duration::from_millis(300), ..PROMPT });
    assert_eq!(read(&*open(&slow).await, "key", None).await.unwrap(), [b'x'; 10]);
    let silent = serve(Manners { sends_bytes: 4, ..PROMPT });
    let began = Instant::now();
    let error = read(&*open(&silent).await, "key", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(
        error.to_string(),
        "cannot read the object: s3://bucket/prefix/key: no byte moved for 1 seconds"
    );
    assert!(began.elapsed() < STALL * 3, "{:?}", began.elapsed());
}
