//! Peers that stop reading: their connections live on, and may keep little of what was being sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use stepvault_core::ErrorKind;
use stepvault_core::digest::PartDigest;
use stepvault_remote::payload::{BLOCK_BYTES, Payload};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::RemoteStore;
use stepvault_testkit::serve::ServerHandle;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::settings;

const CONNECTIONS: usize = 8;
/// Each body has several times what the kernel's buffers on both sides hold.
const BLOCKS: usize = 192;
/// What a connection has queued, 408 KiB and a slice, lies in so many blocks.
const BLOCKS_KEPT: usize = 3;
const PATIENCE: Duration = Duration::from_secs(2);

/// Begins to read each request, and says nothing ever.
fn serve() -> ServerHandle {
    ServerHandle::start(|listener| async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 512]).await;
                std::future::pending::<()>().await;
            });
        }
    })
    .unwrap()
}

/// A block that is counted for as long as anybody has it.
struct Block(Arc<AtomicUsize>);

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        &ZEROS
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn body(alive: &Arc<AtomicUsize>) -> (Payload, PartDigest) {
    alive.fetch_add(BLOCKS, Ordering::Relaxed);
    let blocks: Vec<Bytes> = (0..BLOCKS).map(|_| Bytes::from_owner(Block(Arc::clone(alive)))).collect();
    let digest = PartDigest { size_bytes: (BLOCKS * BLOCK_BYTES) as u64, ..PartDigest::of(b"") };
    (blocks.into(), digest)
}

/// Sends bodies over as many connections at once, until each has failed or is given up.
async fn send(store: &dyn RemoteStore, in_parts: bool) {
    let alive = Arc::new(AtomicUsize::new(0));
    let sent = join_all((0..CONNECTIONS).map(|_| async {
        let (body, digest) = body(&alive);
        let outcome = tokio::time::timeout(PATIENCE, async {
            if in_parts {
                let sent = store.upload_part("key", "upload", 0, body, &digest).await;
                sent.map(drop)
            } else {
                store.create("key", body, &digest).await.map(drop)
            }
        });
        outcome.await
    }));
    for outcome in sent.await {
        assert!(!matches!(outcome, Ok(Ok(()))), "nobody answered");
    }
    // The connections' own tasks get to know.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let kept = alive.load(Ordering::Relaxed);
    assert!(kept > 0, "no connection outlived its request: this shows nothing");
    assert!(
        kept <= CONNECTIONS * BLOCKS_KEPT,
        "{CONNECTIONS} dead connections keep {} KiB",
        (kept * BLOCK_BYTES) >> 10
    );
}

/// A store at the server whose requests may be silent for a second.
async fn opened(url: &str, server: &ServerHandle) -> Arc<dyn RemoteStore> {
    let mut settings = settings(url);
    settings.endpoint = Some(server.endpoint());
    settings.stall_timeout_seconds = 1;
    if url.starts_with("gs:") {
        return stepvault_remote::gcs::open(&settings).await.unwrap();
    }
    settings.region = Some("us-east-1".to_owned());
    let keys = StaticKeys { access_key: "AKIA".to_owned(), secret_key: "secret".to_owned() };
    stepvault_remote::s3::open(&settings, Some(keys)).await.unwrap()
}

#[tokio::test]
async fn of_s3_keep_a_few_blocks_each() {
    for in_parts in [false, true] {
        send(&*opened("s3://bucket/prefix", &serve()).await, in_parts).await;
    }
}

#[tokio::test]
async fn of_google_cloud_storage_keep_a_few_blocks_each() {
    for in_parts in [false, true] {
        send(&*opened("gs://bucket/prefix", &serve()).await, in_parts).await;
    }
}

/// A server whose connections are forgotten by everything between it and its clients, as by a NAT: the open ones are silent
/// from then on, and new ones work.
struct Forgetful {
    server: ServerHandle,
    accepted: Arc<AtomicUsize>,
    /// Connections up to this number are silent.
    forgotten: Arc<AtomicUsize>,
    /// Requests that came in over a silent one.
    unanswered: Arc<AtomicUsize>,
}

impl Forgetful {
    fn start() -> Self {
        let counters = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let [accepted, forgotten, unanswered] = counters.clone();
        let server = ServerHandle::start(move |listener| async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Ordering::SeqCst) + 1;
                let (forgotten, unanswered) = (Arc::clone(&forgotten), Arc::clone(&unanswered));
                tokio::spawn(async move {
                    let mut request = [0; 8 << 10];
                    while stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                        if number <= forgotten.load(Ordering::SeqCst) {
                            unanswered.fetch_add(1, Ordering::SeqCst);
                            std::future::pending::<()>().await;
                        }
                        // Several at once, so that each has a connection of its own.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        let answer =
                            b"HTTP/1.1 403 Forbidden\r\nx-amz-request-id: 1\r\nContent-Length: 0\r\n\r\n";
                        if stream.write_all(answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        let [accepted, forgotten, unanswered] = counters;
        Self { server: server.unwrap(), accepted, forgotten, unanswered }
    }

    /// Reads over several connections, forgets them, and reads until that works again.
    async fn forget(&self, store: &dyn RemoteStore) {
        let kind = async || store.head("key").await.unwrap_err().kind();
        join_all((0..CONNECTIONS).map(|_| kind())).await;
        let open = self.accepted.load(Ordering::SeqCst);
        assert!(open > 1, "one connection shows nothing");
        self.forgotten.store(open, Ordering::SeqCst);
        let mut tries = 1;
        while kind().await != ErrorKind::Denied {
            tries += 1;
        }
        assert_eq!((tries, self.unanswered.load(Ordering::SeqCst)), (2, 1));
    }
}

#[tokio::test]
async fn of_s3_that_are_forgotten_cost_one_stall() {
    let forgetful = Forgetful::start();
    forgetful.forget(&*opened("s3://bucket/prefix", &forgetful.server).await).await;
}

#[tokio::test]
async fn of_google_cloud_storage_that_are_forgotten_cost_one_stall() {
    let forgetful = Forgetful::start();
    forgetful.forget(&*opened("gs://bucket/prefix", &forgetful.server).await).await;
}
