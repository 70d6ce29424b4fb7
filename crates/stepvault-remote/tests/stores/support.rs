//! Settings, bytes and servers that the tests share.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::TryStreamExt as _;
use stepvault_core::digest::{FileDigest, PartDigest, Sha256Digest};
use stepvault_core::file_parts::FileParts;
use stepvault_core::ids::RemoteName;
use stepvault_core::observe::{Event, Observer};
use stepvault_core::remote_settings::{RemoteSettings, RemoteUrl};
use stepvault_core::{Error, Result};
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::{Created, ObjectHead, PartReceipt, RemoteStore};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};

pub(crate) fn settings(url: &str) -> RemoteSettings {
    let url: RemoteUrl = url.parse().unwrap();
    let mut settings = RemoteSettings::new(RemoteName::new("archive").unwrap(), url);
    settings.stall_timeout_seconds = 5;
    settings.retry_deadline_seconds = 5;
    settings
}

/// Counts retries.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    retries: Mutex<Vec<String>>,
}

impl Listener {
    pub(crate) fn retries(&self) -> Vec<String> {
        self.retries.lock().unwrap().clone()
    }
}

impl Observer for Listener {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Retrying { tier, error, .. } = event {
            self.retries.lock().unwrap().push(format!("{tier}: {error}"));
        }
    }
}

/// A strict server with a bucket, and settings that lead to it.
pub(crate) struct Strict {
    pub(crate) server: StrictS3,
    pub(crate) settings: RemoteSettings,
    pub(crate) listener: Arc<Listener>,
}

pub(crate) const BUCKET: &str = "checkpoints";

impl Strict {
    pub(crate) fn start() -> Self {
        Self::start_with(StrictS3Options::default())
    }

    pub(crate) fn start_with(options: StrictS3Options) -> Self {
        let server = StrictS3::start_with(options);
        server.create_bucket(BUCKET);
        let mut settings = settings(&format!("s3://{BUCKET}/vault"));
        settings.endpoint = Some(server.endpoint());
        settings.region = Some("us-east-1".to_owned());
        Self {
            server,
            settings,
            listener: Arc::default(),
        }
    }

    /// Makes the next `times` requests of a method to a path fail.
    pub(crate) fn inject(&self, method: &str, path_contains: &str, times: u64, action: FaultAction) {
        self.server.faults().inject(method, path_contains, times, action);
    }

    pub(crate) fn keys(&self) -> StaticKeys {
        StaticKeys {
            access_key: self.server.access_key().to_owned(),
            secret_key: self.server.secret_key().to_owned(),
        }
    }

    /// With all decorators.
    pub(crate) async fn open(&self) -> Arc<dyn RemoteStore> {
        let options = OpenOptions {
            s3_keys: Some(self.keys()),
        };
        open_with(&self.settings, Arc::clone(&self.listener) as _, options)
            .await
            .unwrap()
    }

    /// Without any.
    pub(crate) async fn open_bare(&self) -> Arc<dyn RemoteStore> {
        stepvault_remote::s3::open(&self.settings, Some(self.keys()))
            .await
            .unwrap()
    }
}

/// Bytes that repeat nowhere near.
pub(crate) fn bytes(length: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    Bytes::from(bytes)
}

/// The bytes of a range.
pub(crate) fn slice(bytes: &Bytes, range: &std::ops::Range<u64>) -> Bytes {
    bytes.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap())
}

/// A file cut into parts, with its digests.
pub(crate) struct File {
    pub(crate) bytes: Bytes,
    pub(crate) parts: Vec<(Bytes, PartDigest)>,
    pub(crate) digest: FileDigest,
}

impl File {
    pub(crate) fn new(length: usize, seed: u64) -> Self {
        let bytes = bytes(length, seed);
        let cut = FileParts::of(length as u64).unwrap();
        let parts: Vec<_> = (0..cut.count())
            .map(|index| {
                let part = slice(&bytes, &cut.range(index));
                let digest = PartDigest::of(&part);
                (part, digest)
            })
            .collect();
        let digests: Vec<_> = parts.iter().map(|(_, digest)| *digest).collect();
        Self {
            bytes,
            parts,
            digest: FileDigest::from_parts(&digests),
        }
    }

    pub(crate) fn part_digests(&self) -> Vec<Sha256Digest> {
        self.parts.iter().map(|(_, digest)| digest.sha256).collect()
    }

    /// Sends the parts, the last one first, and returns their receipts in order.
    pub(crate) async fn send(
        &self,
        store: &dyn RemoteStore,
        key: &str,
        upload: &str,
    ) -> Result<Vec<PartReceipt>> {
        let mut receipts = Vec::new();
        for index in (0..u32::try_from(self.parts.len()).unwrap()).rev() {
            receipts.push(self.send_part(store, key, upload, index).await?);
        }
        receipts.reverse();
        Ok(receipts)
    }

    pub(crate) async fn send_part(
        &self,
        store: &dyn RemoteStore,
        key: &str,
        upload: &str,
        index: u32,
    ) -> Result<PartReceipt> {
        send_part(store, key, upload, index, &self.parts[index as usize].0).await
    }

    pub(crate) async fn upload(&self, store: &dyn RemoteStore, key: &str) -> Result<Created> {
        let upload = store.start_upload(key, self.digest.size_bytes).await?;
        let receipts = self.send(store, key, &upload).await?;
        store.complete_upload(key, &upload, &receipts, &self.digest).await
    }
}

/// The head of an object that had to be written.
#[track_caller]
pub(crate) fn written(created: Created) -> ObjectHead {
    match created {
        Created::Written(head) => head,
        Created::Exists => panic!("the key was free"),
    }
}

pub(crate) async fn create(store: &dyn RemoteStore, key: &str, body: &[u8]) -> Result<Created> {
    let bytes = Bytes::copy_from_slice(body);
    store.create(key, bytes.into(), &PartDigest::of(body)).await
}

pub(crate) async fn send_part(
    store: &dyn RemoteStore,
    key: &str,
    upload: &str,
    index: u32,
    body: &Bytes,
) -> Result<PartReceipt> {
    store
        .upload_part(key, upload, index, body.clone().into(), &PartDigest::of(body))
        .await
}

pub(crate) async fn read(
    store: &dyn RemoteStore,
    key: &str,
    range: Option<std::ops::Range<u64>>,
) -> Result<Vec<u8>> {
    let mut body = store.read(key, range).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = body.try_next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

pub(crate) async fn listed(store: &dyn RemoteStore, prefix: &str) -> Result<Vec<String>> {
    let mut keys: Vec<String> = store.list(prefix).map_ok(|info| info.key).try_collect().await?;
    keys.sort();
    Ok(keys)
}

/// The text of an error with its hint, as a person reads it.
pub(crate) fn shown(error: &Error) -> String {
    match error.hint_text() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}
