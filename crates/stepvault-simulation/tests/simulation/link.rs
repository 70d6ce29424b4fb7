//! One process's connection to one store, wrapped in the real retries.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _, iter, unfold};
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::payload::Payload;
use stepvault_remote::store::{
    Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore, StoreCapabilities,
};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::actor::Actor;
use crate::faults::{Course, Weather};
use crate::machine::Machine;
use crate::planted::{Bug, claimed};
use crate::store::Cloud;

#[derive(Debug, Clone)]
pub struct Link {
    pub cloud: Arc<Cloud>,
    pub weather: Arc<Weather>,
    pub machine: Arc<Machine>,
    pub actor: Actor,
    pub url: String,
    pub bug: Option<Bug>,
    /// The store whose objects it copies, if that is another one.
    pub copies_from: Option<Arc<Cloud>>,
    /// Deletions that a planted bug delays.
    pub held: Arc<Mutex<Vec<String>>>,
    /// Objects that a planted bug dropped, as they are reported.
    pub forgotten: Arc<Mutex<BTreeMap<String, ObjectHead>>>,
}

impl Link {
    /// Sends a request. From here it is independent: it may be executed although its sender is gone.
    async fn ask<T, Effect>(&self, key: &str, effect: Effect) -> Result<T>
    where
        T: Send + 'static,
        Effect: Fn(&Cloud, &Actor) -> Result<T> + Send + 'static,
    {
        self.machine.awake().await;
        let fate = self.weather.fate(self.actor.role, key);
        let power_cuts = self.machine.power_cuts();
        let (answer, answered) = oneshot::channel();
        let link = self.clone();
        tokio::spawn(async move {
            sleep(fate.before).await;
            let is_dead = link.machine.power_cuts() != power_cuts && !fate.outlives_its_sender;
            if is_dead || link.machine.is_cut_off() || fate.course == Course::RequestLost {
                return;
            }
            if link.cloud.is_away() {
                let _ = answer.send(Err(unreachable(&link.url, "it is away")));
                return;
            }
            if fate.course == Course::Refused {
                let _ = answer.send(Err(unreachable(&link.url, "503: slow down")));
                return;
            }
            let mut result = effect(&link.cloud, &link.actor);
            if fate.course == Course::Twice {
                result = effect(&link.cloud, &link.actor);
            }
            sleep(fate.after).await;
            if fate.course != Course::AnswerLost && !link.machine.is_cut_off() {
                let _ = answer.send(result);
            }
        });
        let result = if let Ok(result) = answered.await {
            result
        } else {
            sleep(fate.stall).await;
            Err(unreachable(&self.url, "no answer"))
        };
        self.machine.awake().await;
        result
    }

    /// Returns one page of a listing, the last key on it, and whether it is the last page.
    async fn page(&self, prefix: String, after: Option<String>) -> Result<Page> {
        let (most, bug, under) = (self.weather.page, self.bug, prefix.clone());
        let mut objects =
            self.ask("", move |cloud, actor| Ok(cloud.page(actor, &prefix, after.as_deref(), most))).await?;
        let (last, is_last) = (objects.last().map(|object| object.key.clone()), objects.len() < most);
        if let Some(bug) = bug {
            objects.retain(|object| !bug.hides(self.actor.role, &object.key));
        }
        if is_last {
            let forgotten = self.forgotten.lock().unwrap();
            let told = forgotten.values().map(|head| head.info.clone());
            objects.extend(told.filter(|object| object.key.starts_with(&under)));
        }
        Ok((objects, last, is_last))
    }
}

type Page = (Vec<ObjectInfo>, Option<String>, bool);

fn unreachable(url: &str, why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "the store does not serve the request").on(url).because(why)
}

/// Copies the body, so that the store does not keep the sender's memory alive.
fn copied(body: &Payload) -> Bytes {
    body.blocks().map(|block| block.unwrap()).collect::<Vec<_>>().concat().into()
}

#[async_trait]
impl RemoteStore for Link {
    fn url(&self) -> &str {
        &self.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: true,
            creates_atomically: true,
            multipart_is_create_only: true,
            streams_bodies: false,
            checks_sha256_alone: false,
            deletes_in_batches: false,
            lists_pending_uploads: true,
            copies: true,
            copies_parts: true,
        }
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        let (name, key, body, digest) = (key, key.to_owned(), copied(&body), *digest);
        if self.bug.is_some_and(|bug| bug.forgets(self.actor.role, &key)) {
            let head = claimed(&key, &digest);
            self.forgotten.lock().unwrap().insert(key, head.clone());
            return Ok(Created::Written(head));
        }
        self.ask(name, move |cloud, actor| cloud.create(actor, &key, &body, &digest)).await
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        let (key, digest) = (key.to_owned(), *digest);
        self.ask("", move |cloud, actor| cloud.replace(actor, &key, &body, &digest)).await
    }

    async fn start_upload(&self, key: &str, _size_bytes: u64, _algorithm: DigestAlgorithm) -> Result<String> {
        let key = key.to_owned();
        self.ask("", move |cloud, actor| Ok(cloud.start_upload(actor, &key))).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let (key, upload, body, digest) = (key.to_owned(), upload.to_owned(), copied(&body), *digest);
        self.ask("", move |cloud, actor| cloud.upload_part(actor, &key, &upload, index, &body, &digest)).await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        let (key, upload, parts) = (key.to_owned(), upload.to_owned(), parts.to_vec());
        let digest = digest.clone();
        self.ask("", move |cloud, actor| cloud.complete_upload(actor, &key, &upload, &parts, &digest)).await
    }

    async fn abort_upload(&self, _key: &str, upload: &str) -> Result<()> {
        let upload = upload.to_owned();
        self.ask("", move |cloud, actor| {
            cloud.abort_upload(actor, &upload);
            Ok(())
        })
        .await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        let prefix = prefix.to_owned();
        self.ask("", move |cloud, actor| Ok(cloud.pending_uploads(actor, &prefix))).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        let key = key.to_owned();
        if self.bug.is_some_and(|bug| bug.hides(self.actor.role, &key)) {
            return Ok(None);
        }
        if let Some(head) = self.forgotten.lock().unwrap().get(&key) {
            return Ok(Some(head.clone()));
        }
        self.ask("", move |cloud, actor| Ok(cloud.head(actor, &key))).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        let key = key.to_owned();
        if self.bug.is_some_and(|bug| bug.hides(self.actor.role, &key)) {
            return Err(Error::new(ErrorKind::NotFound, "hidden").on(&key));
        }
        if self.bug == Some(Bug::OverlooksUnmounting)
            && key.ends_with("/.stepvault/vault.json")
            && let Some(marker) = self.cloud.objects().remove(&key)
        {
            return Ok(iter([Ok(marker.bytes)]).boxed());
        }
        let fate = self.weather.fate(self.actor.role, "");
        let breaks_off = fate.breaks_off;
        let is_data = !key.contains("/.stepvault/");
        let mut bytes = self
            .ask("", move |cloud, actor| {
                if fate.denies { cloud.deny(actor, &key) } else { cloud.read(actor, &key, range.clone()) }
            })
            .await?;
        if fate.damages && is_data && !bytes.is_empty() {
            self.weather.damaged();
            let mut damaged = bytes.to_vec();
            damaged[0] ^= 1;
            bytes = damaged.into();
        }
        let mut pieces = Vec::new();
        if breaks_off {
            bytes.truncate(bytes.len() / 2);
        }
        if !bytes.is_empty() {
            pieces.push(Ok(bytes));
        }
        if breaks_off {
            pieces.push(Err(unreachable(&self.url, "the body broke off")));
        }
        Ok(iter(pieces).boxed())
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        struct Listing {
            prefix: String,
            after: Option<String>,
            page: VecDeque<ObjectInfo>,
            is_last: bool,
        }
        let listing =
            Listing { prefix: prefix.to_owned(), after: None, page: VecDeque::new(), is_last: false };
        unfold(Some(listing), move |listing| async move {
            let mut listing = listing?;
            while listing.page.is_empty() && !listing.is_last {
                match self.page(listing.prefix.clone(), listing.after.clone()).await {
                    Ok((objects, last, is_last)) => {
                        listing.page = objects.into();
                        (listing.after, listing.is_last) = (last, is_last);
                    }
                    Err(error) => return Some((Err(error), None)),
                }
            }
            let next = listing.page.pop_front()?;
            Some((Ok(next), Some(listing)))
        })
        .boxed()
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let mut keys = keys.to_vec();
        if let Some(bug) = self.bug {
            keys = bug.deleted_by(self, keys);
        }
        self.ask("", move |cloud, actor| {
            cloud.delete(actor, &keys);
            Ok(())
        })
        .await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        let (from, to, other) = (from.to_owned(), to.to_owned(), self.copies_from.clone());
        self.ask("", move |cloud, actor| {
            let object = other.as_deref().unwrap_or(cloud).object(&from)?;
            Ok(cloud.put_copy(actor, &from, &to, object))
        })
        .await
    }

    async fn copy_part(
        &self,
        from: &str,
        key: &str,
        upload: &str,
        index: u32,
        start: u64,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let (from, key, upload, digest) = (from.to_owned(), key.to_owned(), upload.to_owned(), *digest);
        self.ask("", move |cloud, actor| {
            let part = cloud.range_of(&from, start, digest.size_bytes)?;
            cloud.upload_part(actor, &key, &upload, index, &part, &digest)
        })
        .await
    }
}
