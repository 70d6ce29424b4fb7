//! Looking into a step's files where they are, without fetching them: enough to tell which framework wrote them.
//!
//! What is read is not verified. It decides what a plan says, never what is restored.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use futures::StreamExt as _;
use stepvault_core::manifest::FileEntry;
use stepvault_formats::source::ReadAt;
use stepvault_formats::tree::OpenFile;
use tokio::runtime::Handle;

use super::resolve::{Resolved, Source};
use crate::run_remote::RunRemote;

/// The files of a step, read from the first tier that has it.
pub(super) struct Peek {
    resolved: Arc<Resolved>,
    runtime: Handle,
}

impl Peek {
    /// To be made where the runtime is, and used on a thread that may block.
    pub(super) fn new(resolved: Arc<Resolved>) -> Self {
        Self {
            resolved,
            runtime: Handle::current(),
        }
    }

    fn entry(&self, path: &str) -> io::Result<&FileEntry> {
        let mut files = self.resolved.files.iter();
        // A single file is asked for by no name.
        let found = files.find(|file| path.is_empty() || file.path.as_str() == path);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl OpenFile for Peek {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let entry = self.entry(path)?;
        let size_bytes = entry.size_bytes;
        match self.resolved.sources.first() {
            Some(Source::Local(step)) => Ok(Box::new(LocalFile {
                file: File::open(step.file_path(&entry.path))?,
                size_bytes,
            })),
            Some(Source::Remote(remote)) => {
                let key = remote
                    .keys
                    .data(&self.resolved.name, self.resolved.id, &entry.path);
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
        let range = offset..offset.saturating_add(buffer.len() as u64);
        let mut stream = self.remote.store.read(&self.key, Some(range)).await?;
        let mut filled = 0;
        while let Some(piece) = stream.next().await {
            let piece = piece?;
            let Some(room) = buffer.get_mut(filled..filled + piece.len()) else {
                break;
            };
            room.copy_from_slice(&piece);
            filled += piece.len();
        }
        Ok(filled)
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
        let filled = self
            .runtime
            .block_on(self.read(offset, buffer))
            .map_err(io::Error::other)?;
        if filled == buffer.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}
