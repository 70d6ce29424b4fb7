//! Peers that stop reading: their connections live on, and may keep little of what was being sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use stepvault_core::digest::PartDigest;
use stepvault_remote::payload::{BLOCK_BYTES, Payload};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::RemoteStore;
use stepvault_testkit::serve::ServerHandle;
use tokio::io::AsyncReadExt as _;

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

#[tokio::test]
async fn of_s3_keep_a_few_blocks_each() {
    for in_parts in [false, true] {
        let server = serve();
        let mut settings = settings("s3://bucket/prefix");
        settings.endpoint = Some(server.endpoint());
        settings.region = Some("us-east-1".to_owned());
        settings.stall_timeout_seconds = 1;
        let keys = StaticKeys { access_key: "AKIA".to_owned(), secret_key: "secret".to_owned() };
        let store = stepvault_remote::s3::open(&settings, Some(keys)).await.unwrap();
        send(&*store, in_parts).await;
    }
}

#[tokio::test]
async fn of_google_cloud_storage_keep_a_few_blocks_each() {
    for in_parts in [false, true] {
        let server = serve();
        let mut settings = settings("gs://bucket/prefix");
        settings.endpoint = Some(server.endpoint());
        settings.stall_timeout_seconds = 1;
        let store = stepvault_remote::gcs::open(&settings).await.unwrap();
        send(&*store, in_parts).await;
    }
}
