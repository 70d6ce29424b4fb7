//! An object, read at offsets by checks that block.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use futures::StreamExt as _;
use stepvault_core::Result;
use stepvault_formats::tree::ReadAt;
use stepvault_remote::store::RemoteStore;
use tokio::runtime::Handle;

use crate::tier::run_remote::BodyRetries;

/// An object of a known size. It must be read on a thread that may block.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    pub(crate) store: Arc<dyn RemoteStore>,
    pub(crate) key: String,
    pub(crate) size_bytes: u64,
    pub(crate) runtime: Handle,
}

impl RemoteFile {
    /// Fills `buffer` from `offset`, and returns how many bytes there were. A response that breaks off is continued.
    pub(crate) async fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let until = offset.saturating_add(buffer.len() as u64);
        let (mut filled, mut breaks) = (0, BodyRetries::default());
        loop {
            let before = filled;
            match self.fill(offset + filled as u64..until, buffer, &mut filled).await {
                Ok(()) => return Ok(filled),
                Err(error) => breaks.wait(error, filled > before).await?,
            }
        }
    }

    /// Receives the body of one response.
    async fn fill(&self, range: Range<u64>, buffer: &mut [u8], filled: &mut usize) -> Result<()> {
        let mut stream = self.store.read(&self.key, Some(range)).await?;
        while let Some(piece) = stream.next().await {
            let piece = piece?;
            let Some(room) = buffer.get_mut(*filled..*filled + piece.len()) else {
                break;
            };
            room.copy_from_slice(&piece);
            *filled += piece.len();
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
        let filled = self.runtime.block_on(self.read(offset, buffer)).map_err(io::Error::other)?;
        if filled == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
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
        let body = bytes::Bytes::from(bytes.clone()).into();
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
}
