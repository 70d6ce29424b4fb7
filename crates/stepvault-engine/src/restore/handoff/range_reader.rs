//! Reads ranges of a step's files from their tier without fetching the files: enough to detect the framework that wrote
//! them.
//!
//! The data is not verified. It affects a plan's description, never what is restored.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use futures::StreamExt as _;
use stepvault_core::manifest::FileEntry;
use stepvault_formats::source::ReadAt;
use stepvault_formats::tree::OpenFile;
use tokio::runtime::Handle;

use crate::restore::resolve::{ResolvedStep, Source};
use crate::tier::run_remote::{BodyRetries, RunRemote};

/// The files of a step, read from the first tier that has it.
pub(super) struct RangeReader {
    resolved: Arc<ResolvedStep>,
    runtime: Handle,
}

impl RangeReader {
    /// Must be created inside the runtime, and used on a thread that may block.
    pub(super) fn new(resolved: Arc<ResolvedStep>) -> Self {
        Self { resolved, runtime: Handle::current() }
    }

    fn entry(&self, path: &str) -> io::Result<&FileEntry> {
        let mut files = self.resolved.files.iter();
        // A single file is requested with an empty path.
        let found = files.find(|file| path.is_empty() || file.path.as_str() == path);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl OpenFile for RangeReader {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let entry = self.entry(path)?;
        let size_bytes = entry.size_bytes;
        match self.resolved.sources.first() {
            Some(Source::Local(step)) => {
                Ok(Box::new(LocalFile { file: File::open(step.file_path(&entry.path))?, size_bytes }))
            }
            Some(Source::Remote(remote)) => {
                let key = remote.keys.data(&self.resolved.name, self.resolved.id, &entry.path);
                Ok(Box::new(RemoteFile {
                    remote: remote.clone(),
                    key: key.map_err(io::Error::other)?,
                    size_bytes,
                    runtime: self.runtime.clone(),
                }))
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

struct LocalFile {
    file: File,
    size_bytes: u64,
}

impl ReadAt for LocalFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

struct RemoteFile {
    remote: RunRemote,
    key: String,
    size_bytes: u64,
    runtime: Handle,
}

impl RemoteFile {
    async fn read(&self, offset: u64, buffer: &mut [u8]) -> stepvault_core::Result<usize> {
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
    async fn fill(
        &self,
        range: Range<u64>,
        buffer: &mut [u8],
        filled: &mut usize,
    ) -> stepvault_core::Result<()> {
        let mut stream = self.remote.store.read(&self.key, Some(range)).await?;
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
    use stepvault_core::ids::RunName;
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
        let remote = RunRemote::new(store, Arc::new(settings), RunName::new("run").unwrap());
        let bytes: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let body = bytes::Bytes::from(bytes.clone()).into();
        let digest = PartDigest::of(&bytes);
        remote.store.create("file", body, &digest).await.unwrap();
        let cut = FaultAction::CutBody { bytes: 250_000 };
        server.faults().inject("GET", "file", 2, cut);
        let file = RemoteFile {
            remote,
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
