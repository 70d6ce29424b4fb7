//! One run on one remote: its keys, its marker, and the reading and writing of records.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use stepvault_core::codec::{MAX_RECORD_BYTES, Record, decode, encode};
use stepvault_core::digest::PartDigest;
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::keys::RunKeys;
use stepvault_core::observe::Tier;
use stepvault_core::records::VaultMarker;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::random;
use stepvault_remote::store::{Created, ObjectInfo, RemoteStore};

use crate::broken_body::Breaks;

/// A run on a remote. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RunRemote {
    /// The store, with its decorators.
    pub store: Arc<dyn RemoteStore>,
    /// Where things are.
    pub keys: RunKeys,
    /// What is configured.
    pub settings: Arc<RemoteSettings>,
    /// The remote as a tier, for events and reports.
    pub tier: Tier,
    /// Cleared once the store has refused to copy for a reason that will not pass: it is not asked again.
    pub may_copy: Arc<AtomicBool>,
}

impl RunRemote {
    /// The run `run` on `store`.
    pub fn new(store: Arc<dyn RemoteStore>, settings: Arc<RemoteSettings>, run: RunName) -> Self {
        let tier = Tier::Remote(settings.name.clone());
        Self {
            store,
            keys: RunKeys::new(run),
            settings,
            tier,
            may_copy: Arc::new(AtomicBool::new(true)),
        }
    }

    /// The remote's name.
    pub fn name(&self) -> &RemoteName {
        &self.settings.name
    }

    /// A key with the remote's URL before it, for messages.
    pub fn describe(&self, key: &str) -> String {
        format!("{}/{key}", self.store.url())
    }

    /// Where a step's data is, for messages.
    pub fn place(&self, name: &str, id: StepId) -> String {
        let (url, prefix) = (self.store.url(), self.keys.data_prefix(name, id));
        format!("{}/{}", url.trim_end_matches('/'), prefix.trim_end_matches('/'))
    }

    /// The bytes of an object of at most [`MAX_RECORD_BYTES`]; `None` when it does not exist.
    pub async fn read_small(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let mut breaks = Breaks::default();
        loop {
            let stream = match self.store.read(key, None).await {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            match self.collect_small(key, stream).await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) => breaks.wait(error, false).await?,
            }
        }
    }

    async fn collect_small(
        &self,
        key: &str,
        mut stream: BoxStream<'static, Result<Bytes>>,
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(piece) = stream.try_next().await? {
            if (bytes.len() + piece.len()) as u64 > MAX_RECORD_BYTES {
                return Err(Error::new(ErrorKind::Damaged, "cannot read a record")
                    .on(self.describe(key))
                    .because(format!("it has more than {MAX_RECORD_BYTES} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// A record and its bytes; `None` when it does not exist.
    pub async fn read_record<R: Record>(&self, key: &str) -> Result<Option<(R, Vec<u8>)>> {
        match self.read_small(key).await? {
            None => Ok(None),
            Some(bytes) => Ok(Some((decode(&bytes, &self.describe(key))?, bytes))),
        }
    }

    /// Writes a record that never changes, and reads it back: after `Ok` exactly these bytes stand there, whether
    /// this call wrote them, an earlier one whose answer was lost, or another writer with the same record.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when something else stands there.
    pub async fn create_record<R: Record>(&self, key: &str, record: &R) -> Result<Vec<u8>> {
        let bytes = encode(record)?;
        // What this program could not read back must not be written: a step would be durable and unreadable.
        decode::<R>(&bytes, &self.describe(key))?;
        let body = Bytes::from(bytes.clone());
        let written = self
            .store
            .create(key, body.into(), &PartDigest::of(&bytes))
            .await?;
        let conflict = |why: &str| {
            Error::new(ErrorKind::Conflict, format!("cannot write the {}", R::WHAT))
                .on(self.describe(key))
                .because(why)
        };
        match self.read_small(key).await? {
            Some(found) if found == bytes => Ok(bytes),
            Some(_) if matches!(written, Created::Exists) => {
                Err(conflict("another one stands there already"))
            }
            Some(_) => {
                Err(conflict("what was read back is not what was written").with_kind(ErrorKind::Damaged))
            }
            None => Err(conflict("it is not there after it was written").with_kind(ErrorKind::Damaged)),
        }
    }

    /// Writes a record over whatever is there.
    pub async fn replace_record<R: Record>(&self, key: &str, record: &R) -> Result<()> {
        let bytes = encode(record)?;
        let digest = PartDigest::of(&bytes);
        self.store.replace(key, Bytes::from(bytes), &digest).await
    }

    /// Everything under a prefix. A failure in the middle fails the whole: half a listing decides nothing.
    pub async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.store.list(prefix).try_collect().await
    }

    /// The marker; `None` when the run has none here.
    pub async fn marker(&self) -> Result<Option<VaultMarker>> {
        Ok(self
            .read_record::<VaultMarker>(&self.keys.marker())
            .await?
            .map(|(marker, _)| marker))
    }

    /// The marker, written if there is none. `expected` is the identity that this vault saw here before.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when another vault stands here than before: a wrong bucket, or one that was emptied
    /// and used for something else.
    pub async fn ensure_marker(&self, expected: Option<&str>) -> Result<VaultMarker> {
        let marker = if let Some(marker) = self.marker().await? {
            marker
        } else {
            let identity = expected.map_or_else(random::identity, str::to_owned);
            let marker = VaultMarker::new(identity);
            match self.create_record(&self.keys.marker(), &marker).await {
                Ok(_) => marker,
                // Another writer was first; theirs counts.
                Err(error) if error.kind() == ErrorKind::Conflict => self.marker().await?.ok_or(error)?,
                Err(error) => return Err(error),
            }
        };
        self.check_identity(&marker, expected)?;
        Ok(marker)
    }

    /// Compares a marker with the identity seen before.
    pub fn check_identity(&self, marker: &VaultMarker, expected: Option<&str>) -> Result<()> {
        match expected {
            Some(expected) if expected != marker.vault => Err(Error::new(
                ErrorKind::Refused,
                "the remote holds another vault than before",
            )
            .on(self.describe(&self.keys.marker()))
            .because(format!("its identity is {} and was {expected}", marker.vault))
            .hint("check the bucket and prefix; to go on with this one, use a fresh local vault directory")),
            _ => Ok(()),
        }
    }

    /// Deletes keys in batches.
    pub async fn delete(&self, keys: Vec<String>) -> Result<()> {
        for batch in keys.chunks(1000) {
            self.store.delete(batch).await?;
        }
        Ok(())
    }

    /// Reads an object from end to end and digests it in parts of `part_size_bytes`.
    pub async fn digest_object(
        &self,
        key: &str,
        size_bytes: u64,
        part_size_bytes: u64,
    ) -> Result<Vec<PartDigest>> {
        let mut digests = Vec::new();
        if size_bytes == 0 {
            return Ok(vec![PartDigest::of(&[])]);
        }
        let mut hasher = stepvault_core::digest::PartHasher::default();
        let mut stream = self.store.read(key, None).await?;
        let (mut total, mut moved, mut breaks) = (0_u64, false, Breaks::default());
        while let Some(piece) = stream.next().await {
            let mut piece = match piece {
                Ok(piece) => piece,
                Err(error) if total < size_bytes => {
                    drop(stream);
                    breaks.wait(error, std::mem::take(&mut moved)).await?;
                    stream = self.store.read(key, Some(total..size_bytes)).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            moved = true;
            total += piece.len() as u64;
            while !piece.is_empty() {
                let room = part_size_bytes - hasher.size_bytes();
                let cut = piece.len().min(usize::try_from(room).unwrap_or(usize::MAX));
                hasher.update(&piece.split_to(cut));
                if hasher.size_bytes() == part_size_bytes {
                    digests.push(std::mem::take(&mut hasher).finish());
                }
            }
            if total > size_bytes {
                break;
            }
        }
        if hasher.size_bytes() > 0 {
            digests.push(hasher.finish());
        }
        Ok(digests)
    }
}
