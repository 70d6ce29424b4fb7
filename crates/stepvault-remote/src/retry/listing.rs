//! A listing that continues after an error.
//!
//! A store cannot resume a listing in the middle, and keys come in any order. So the listing is restarted, and entries
//! that the caller already has are skipped.

use std::collections::HashSet;

use futures::stream::{BoxStream, StreamExt as _, unfold};
use stepvault_core::Result;
use stepvault_core::digest::Sha256Digest;

use super::store::RetryStore;
use crate::store::ObjectInfo;

type Entries<'a> = BoxStream<'a, Result<ObjectInfo>>;

struct Listing<'a> {
    store: &'a RetryStore,
    prefix: String,
    entries: Option<Entries<'a>>,
    /// Truncated digests of the returned keys: a key is skipped only when it is certainly the same.
    seen: HashSet<[u8; 16]>,
    ended: bool,
}

pub(super) fn list<'a>(store: &'a RetryStore, prefix: &str) -> Entries<'a> {
    let listing =
        Listing { store, prefix: prefix.to_owned(), entries: None, seen: HashSet::new(), ended: false };
    unfold(listing, |mut listing| async move {
        if listing.ended {
            return None;
        }
        let next = listing.next().await.transpose()?;
        listing.ended = next.is_err();
        Some((next, listing))
    })
    .boxed()
}

impl Listing<'_> {
    async fn next(&mut self) -> Result<Option<ObjectInfo>> {
        if let Some(entries) = &mut self.entries {
            match entries.next().await.transpose() {
                Ok(Some(info)) => {
                    self.seen.insert(short_digest(&info.key));
                    return Ok(Some(info));
                }
                Ok(None) => return Ok(None),
                Err(error) if !error.is_transient() => return Err(error),
                Err(_) => self.entries = None,
            }
        }
        let (store, prefix, seen) = (self.store, self.prefix.as_str(), &self.seen);
        // Each attempt must get past the known entries: a page that always fails must not be requested forever.
        let (first, entries) = store
            .retries
            .run(|_| async move {
                let mut entries = store.inner.list(prefix);
                loop {
                    match entries.next().await.transpose()? {
                        Some(info) if seen.contains(&short_digest(&info.key)) => {}
                        first => return Ok((first, entries)),
                    }
                }
            })
            .await?;
        self.entries = Some(entries);
        if let Some(info) = &first {
            self.seen.insert(short_digest(&info.key));
        }
        Ok(first)
    }
}

fn short_digest(key: &str) -> [u8; 16] {
    let mut short = [0_u8; 16];
    short.copy_from_slice(&Sha256Digest::of(key.as_bytes()).as_bytes()[..16]);
    short
}
