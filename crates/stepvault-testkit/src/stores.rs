//! Requests to a store as tests send them, without the engine.

use std::ops::Range;

use bytes::Bytes;
use futures::TryStreamExt as _;
use stepvault_core::digest::{ContentDigest, DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::file_parts::FileParts;
use stepvault_core::ids::RemoteName;
use stepvault_core::remote_settings::{RemoteSettings, RemoteUrl};
use stepvault_core::{Error, Result};
use stepvault_remote::store::{Created, ObjectHead, PartReceipt, RemoteStore};

use crate::random;

/// Returns the settings of a remote called `archive` that gives up after seconds.
pub fn settings(url: &str) -> RemoteSettings {
    let url: RemoteUrl = url.parse().unwrap();
    let mut settings = RemoteSettings::new(RemoteName::new("archive").unwrap(), url);
    settings.stall_timeout_seconds = 5;
    settings.retry_deadline_seconds = 5;
    settings
}

/// Returns bytes that depend on the seed and repeat nowhere near.
pub fn bytes(length: usize, seed: u64) -> Bytes {
    random::bytes(seed, length).into()
}

/// Returns the bytes of a range.
pub fn slice(bytes: &Bytes, range: &Range<u64>) -> Bytes {
    bytes.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap())
}

/// A file, divided into file parts.
#[derive(Debug)]
pub struct File {
    /// All of it.
    pub bytes: Bytes,
    /// Its file parts, in order.
    pub parts: Vec<(Bytes, PartDigest)>,
    /// Its composite digest.
    pub digest: FileDigest,
}

impl File {
    /// Returns a file with bytes from a seed and digests by SHA-256.
    pub fn new(length: usize, seed: u64) -> Self {
        Self::by(DigestAlgorithm::Sha256, length, seed)
    }

    /// Returns a file with bytes from a seed and digests by this algorithm.
    pub fn by(algorithm: DigestAlgorithm, length: usize, seed: u64) -> Self {
        let bytes = bytes(length, seed);
        let cut = FileParts::of(length as u64).unwrap();
        let parts: Vec<_> = (0..cut.count())
            .map(|index| {
                let part = slice(&bytes, &cut.range(index));
                let digest = PartDigest::by(algorithm, &part);
                (part, digest)
            })
            .collect();
        let digests: Vec<_> = parts.iter().map(|(_, digest)| *digest).collect();
        Self { bytes, parts, digest: FileDigest::from_parts(&digests) }
    }

    /// Returns the digest of each file part.
    pub fn part_digests(&self) -> Vec<ContentDigest> {
        self.parts.iter().map(|(_, digest)| digest.content).collect()
    }

    /// Sends the file parts, the last one first, and returns their receipts in order.
    pub async fn send(&self, store: &dyn RemoteStore, key: &str, upload: &str) -> Result<Vec<PartReceipt>> {
        let mut receipts = Vec::new();
        for index in (0..u32::try_from(self.parts.len()).unwrap()).rev() {
            receipts.push(self.send_part(store, key, upload, index).await?);
        }
        receipts.reverse();
        Ok(receipts)
    }

    /// Sends one file part.
    pub async fn send_part(
        &self,
        store: &dyn RemoteStore,
        key: &str,
        upload: &str,
        index: u32,
    ) -> Result<PartReceipt> {
        let (body, digest) = &self.parts[index as usize];
        store.upload_part(key, upload, index, body.clone().into(), digest).await
    }

    /// Begins an upload of the file.
    pub async fn start(&self, store: &dyn RemoteStore, key: &str) -> Result<String> {
        let algorithm = self.digest.content.algorithm();
        store.start_upload(key, self.digest.size_bytes, algorithm).await
    }

    /// Uploads the file in parts.
    pub async fn upload(&self, store: &dyn RemoteStore, key: &str) -> Result<Created> {
        let upload = self.start(store, key).await?;
        let receipts = self.send(store, key, &upload).await?;
        store.complete_upload(key, &upload, &receipts, &self.digest).await
    }
}

/// Returns the head of a written object, and panics if the key existed.
#[track_caller]
pub fn written(created: Created) -> ObjectHead {
    match created {
        Created::Written(head) => head,
        Created::Exists => panic!("the key was free"),
    }
}

/// Creates an object.
pub async fn create(store: &dyn RemoteStore, key: &str, body: &[u8]) -> Result<Created> {
    let bytes = Bytes::copy_from_slice(body);
    store.create(key, bytes.into(), &PartDigest::of(body)).await
}

/// Sends one file part with its digest.
pub async fn send_part(
    store: &dyn RemoteStore,
    key: &str,
    upload: &str,
    index: u32,
    body: &Bytes,
) -> Result<PartReceipt> {
    store.upload_part(key, upload, index, body.clone().into(), &PartDigest::of(body)).await
}

/// Reads an object, or a range of it.
pub async fn read(store: &dyn RemoteStore, key: &str, range: Option<Range<u64>>) -> Result<Vec<u8>> {
    let mut body = store.read(key, range).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = body.try_next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Returns the keys under a prefix, sorted.
pub async fn listed(store: &dyn RemoteStore, prefix: &str) -> Result<Vec<String>> {
    let mut keys: Vec<String> = store.list(prefix).map_ok(|info| info.key).try_collect().await?;
    keys.sort();
    Ok(keys)
}

/// Returns the text of an error with its hint, as a user reads it.
pub fn shown(error: &Error) -> String {
    match error.hint_text() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}
