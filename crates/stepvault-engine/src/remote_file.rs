//! Reads ranges of objects: a body that breaks off is taken up where it broke.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::tree::ReadAt;
use stepvault_remote::store::{BodyStream, RemoteStore};
use tokio::runtime::Handle;

/// An object of a known size. It must be read on a thread that may block.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    pub(crate) store: Arc<dyn RemoteStore>,
    pub(crate) key: String,
    pub(crate) size_bytes: u64,
    pub(crate) runtime: Handle,
}

impl RemoteFile {
    /// Fills `buffer` from `offset`. A response that breaks off is continued.
    pub(crate) async fn read(&self, offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        let until = offset.saturating_add(buffer.len() as u64);
        let mut body = RangeBody::new(&self.store, &self.key, offset..until);
        while let Some(piece) = body.next().await? {
            let (room, rest) = buffer.split_at_mut(piece.len());
            room.copy_from_slice(&piece);
            buffer = rest;
        }
        Ok(())
    }
}

impl ReadAt for RemoteFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.runtime.block_on(self.read(offset, buffer)).map_err(io::Error::other)
    }
}

/// The body of a range of an object, as it arrives. A body that breaks off is requested again from there.
pub(crate) struct RangeBody {
    store: Arc<dyn RemoteStore>,
    key: String,
    missing: Range<u64>,
    body: Option<BodyStream>,
    breaks: BodyRetries,
    moved: bool,
}

impl RangeBody {
    pub(crate) fn new(store: &Arc<dyn RemoteStore>, key: &str, range: Range<u64>) -> Self {
        let (store, key, breaks) = (Arc::clone(store), key.to_owned(), BodyRetries::default());
        Self { store, key, missing: range, body: None, breaks, moved: false }
    }

    /// Returns the next bytes; `None` after exactly the bytes of the range.
    ///
    /// # Errors
    /// That of a request for the object: the store has repeated it. That of the body, when it broke off too often.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.body.is_some() || !self.missing.is_empty() {
            let body = match &mut self.body {
                Some(body) => body,
                None => self.body.insert(self.store.read(&self.key, Some(self.missing.clone())).await?),
            };
            let left = self.missing.end - self.missing.start;
            let broken = match body.next().await {
                Some(Ok(piece)) if piece.len() as u64 <= left => {
                    self.missing.start += piece.len() as u64;
                    self.moved |= !piece.is_empty();
                    return Ok(Some(piece));
                }
                // The connection is reused only after its end was seen. After the last byte, only the bytes count.
                None | Some(Err(_)) if left == 0 => {
                    self.body = None;
                    return Ok(None);
                }
                Some(Ok(_)) => self.fault(ErrorKind::Damaged, "a store sent more bytes than requested"),
                Some(Err(error)) => error,
                None => self.fault(ErrorKind::Unreachable, "a read ended before its last byte"),
            };
            self.body = None;
            self.breaks.wait(broken, std::mem::take(&mut self.moved)).await?;
        }
        Ok(None)
    }

    fn fault(&self, kind: ErrorKind, what: &str) -> Error {
        Error::new(kind, what).on(format!("{}/{}", self.store.url(), self.key))
    }
}

// Resumes bodies that broke off: requests the rest, a bounded number of times.

/// How many times in a row a body may break off without another byte before its store counts as unreachable. Opening it
/// is retried and paced by the store.
const TRIES: u32 = 4;
/// Wait after the first break; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The breaks of one object's body.
#[derive(Debug, Default)]
pub(crate) struct BodyRetries {
    in_a_row: u32,
}

impl BodyRetries {
    /// Waits until the rest may be requested. Drop the broken response first, so that its place among the concurrent
    /// requests is free. `moved` says whether it delivered a byte.
    ///
    /// # Errors
    /// The given error, when it is no break, or the break was one too many.
    pub(crate) async fn wait(&mut self, error: Error, moved: bool) -> Result<()> {
        if moved {
            self.in_a_row = 0;
        }
        if error.kind() != ErrorKind::Unreachable || !error.is_transient() || self.in_a_row + 1 >= TRIES {
            return Err(error);
        }
        tokio::time::sleep(FIRST_WAIT * 2_u32.pow(self.in_a_row)).await;
        self.in_a_row += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::digest::PartDigest;
    use stepvault_core::observe::SilentObserver;
    use stepvault_remote::open::open_with;
    use stepvault_testkit::faults::FaultAction;
    use stepvault_testkit::s3::StrictS3;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn an_answer_that_breaks_off_is_taken_up_where_it_broke() {
        let server = StrictS3::start();
        let (settings, options) = crate::test_remote::on(&server);
        let store = open_with(&settings, Arc::new(SilentObserver), options).await.unwrap();
        let bytes: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let body = Bytes::from(bytes.clone()).into();
        let digest = PartDigest::of(&bytes);
        store.create("file", body, &digest).await.unwrap();
        let cut = FaultAction::CutBody { bytes: 250_000 };
        server.faults().inject("GET", "file", 2, cut);
        let file = RemoteFile {
            store,
            key: "file".to_owned(),
            size_bytes: bytes.len() as u64,
            runtime: Handle::current(),
        };
        let mut buffer = vec![0; bytes.len() - 100];
        let read = tokio::task::spawn_blocking(move || {
            let outcome = file.read_exact_at(100, &mut buffer);
            outcome.map(|()| buffer)
        });
        assert_eq!(read.await.unwrap().unwrap(), bytes[100..]);
    }

    #[tokio::test(start_paused = true)]
    async fn breaks_without_a_byte_more_are_bounded() {
        let broken = || Error::new(ErrorKind::Unreachable, "cut off");
        let mut breaks = BodyRetries::default();
        for _ in 0..100 {
            breaks.wait(broken(), true).await.unwrap();
        }
        breaks.wait(broken(), false).await.unwrap();
        breaks.wait(broken(), false).await.unwrap();
        assert_eq!(breaks.wait(broken(), false).await.unwrap_err().kind(), ErrorKind::Unreachable);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_break_is_waited_for() {
        let damaged = Error::new(ErrorKind::Damaged, "too short");
        let error = BodyRetries::default().wait(damaged, true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
    }
}
