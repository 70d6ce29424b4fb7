//! Operations that are the same on every store of `object_store`: head, read, list, delete, copy.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use http::HeaderMap;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _};
use stepvault_core::{Error, ErrorKind, Result};

use super::errors::{causes, store_error};
use super::keys::KeySpace;
use super::pieces::{Expected, watched};
use super::transport::AnswerHeaders;
use crate::store::ObjectInfo;

/// The objects under one prefix of a store.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    /// The remote's URL, for messages.
    pub(crate) url: String,
    pub(crate) keys: KeySpace,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) stall_timeout: Duration,
}

impl Objects {
    /// Returns the URL of an object, for messages.
    pub(crate) fn subject(&self, key: &str) -> String {
        format!("{}/{key}", self.url)
    }

    /// Returns size, time and version, or `None` when the object does not exist.
    pub(crate) async fn info(&self, key: &str) -> Result<Option<ObjectInfo>> {
        Ok(self.look_up(key).await?.map(|(info, _)| info))
    }

    /// Like [`Self::info`], with the headers of the answer; empty where the store does not use HTTP.
    pub(crate) async fn look_up(&self, key: &str) -> Result<Option<(ObjectInfo, HeaderMap)>> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        match self.store.get_opts(&self.keys.path(key)?, options).await {
            Ok(got) => {
                let headers = got
                    .extensions
                    .get::<AnswerHeaders>()
                    .map(|headers| headers.0.clone());
                Ok(Some((info_of(key, got.meta), headers.unwrap_or_default())))
            }
            Err(error) => match store_error("cannot read the object's metadata", &self.subject(key), error) {
                missing if missing.kind() == ErrorKind::NotFound => Ok(None),
                error => Err(error),
            },
        }
    }

    /// See [`RemoteStore::read`](crate::store::RemoteStore::read).
    pub(crate) async fn read(
        &self,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        const WHAT: &str = "cannot read the object";
        let path = self.keys.path(key)?;
        let subject = self.subject(key);
        if let Some(range) = range.as_ref().filter(|range| range.is_empty()) {
            return self.read_nothing(key, range).await;
        }
        let options = GetOptions {
            range: range.clone().map(GetRange::Bounded),
            ..GetOptions::default()
        };
        let got = self.store.get_opts(&path, options).await.map_err(|error| {
            // Its type is private.
            let is_short =
                causes(&error).any(|cause| cause.to_string().starts_with("Wanted range starting at"));
            let error = store_error(WHAT, &subject, error);
            if is_short {
                error.with_kind(ErrorKind::Damaged)
            } else {
                error
            }
        })?;
        let wanted = range.unwrap_or(0..got.meta.size);
        if got.range != wanted {
            return Err(shorter_than_asked(&subject, got.meta.size, &wanted));
        }
        let expected = Expected {
            subject: subject.clone(),
            size_bytes: wanted.end - wanted.start,
            stall_timeout: self.stall_timeout,
        };
        let pieces = got
            .into_stream()
            .map_err(move |error| match store_error(WHAT, &subject, error) {
                // A body that ends early was not refused, so a retry may succeed.
                error if error.kind() == ErrorKind::Failed => error.with_kind(ErrorKind::Unreachable),
                error => error,
            });
        Ok(watched(pieces.boxed(), expected))
    }

    /// Returns no bytes of an object. Existence and length are checked by its metadata, since stores reject empty
    /// ranges.
    async fn read_nothing(&self, key: &str, range: &Range<u64>) -> Result<BoxStream<'static, Result<Bytes>>> {
        let info = self.info(key).await?;
        no_bytes(&self.subject(key), info.map(|info| info.size_bytes), range)
    }

    /// See [`RemoteStore::list`](crate::store::RemoteStore::list).
    pub(crate) fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        const WHAT: &str = "cannot list the objects";
        let directory = match self.keys.directory_of(prefix) {
            Ok(directory) => directory,
            Err(error) => return stream::once(async { Err(error) }).boxed(),
        };
        let subject = self.subject(prefix);
        let beginning = self.keys.full_prefix(prefix);
        let found = self.store.list(directory.as_ref());
        stream::try_unfold((found, subject), move |(mut found, subject)| async move {
            let next = tokio::time::timeout(self.stall_timeout, found.next()).await;
            let next = next.map_err(|_| {
                Error::new(ErrorKind::Unreachable, WHAT)
                    .on(&subject)
                    .because(format!(
                        "no answer within {} seconds",
                        self.stall_timeout.as_secs()
                    ))
            })?;
            match next
                .transpose()
                .map_err(|error| store_error(WHAT, &subject, error))?
            {
                Some(meta) => Ok(Some((meta, (found, subject)))),
                None => Ok(None),
            }
        })
        .try_filter_map(move |meta| {
            let full = meta.location.to_string();
            let key = self.keys.key_of(&full).filter(|_| full.starts_with(&beginning));
            let info = key.map(|key| info_of(key, meta));
            async move { Ok(info) }
        })
        .boxed()
    }

    /// See [`RemoteStore::delete`](crate::store::RemoteStore::delete).
    pub(crate) async fn delete(&self, keys: &[String]) -> Result<()> {
        let paths = keys
            .iter()
            .map(|key| self.keys.path(key))
            .collect::<Result<Vec<_>>>()?;
        let count = paths.len();
        // Results arrive in the order of the keys. A missing object is an error for the store, but not here.
        let mut results = self.store.delete_stream(stream::iter(paths).map(Ok).boxed());
        let mut answered = 0;
        while let Some(result) = results.next().await {
            let subject = keys
                .get(answered)
                .map_or_else(|| self.url.clone(), |key| self.subject(key));
            answered += 1;
            if let Err(error) = result {
                match store_error("cannot delete the object", &subject, error) {
                    gone if gone.kind() == ErrorKind::NotFound => {}
                    error => return Err(error),
                }
            }
        }
        if answered == count {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Failed, "cannot delete all objects")
            .on(&self.url)
            .because(format!("the store answered for {answered} of {count}")))
    }

    /// Copies to an unused key. Returns false when it is taken.
    pub(crate) async fn copy(&self, from: &str, to: &str) -> Result<bool> {
        let (source, target) = (self.keys.path(from)?, self.keys.path(to)?);
        match self.store.copy_if_not_exists(&source, &target).await {
            Ok(()) => Ok(true),
            Err(error) => {
                match store_error(
                    "cannot copy the object",
                    &format!("{} to {}", self.subject(from), to),
                    error,
                ) {
                    taken if taken.kind() == ErrorKind::Conflict => Ok(false),
                    error => Err(error),
                }
            }
        }
    }
}

fn info_of(key: &str, meta: ObjectMeta) -> ObjectInfo {
    ObjectInfo {
        key: key.to_owned(),
        size_bytes: meta.size,
        modified: meta.last_modified.into(),
        version: meta.version.or(meta.e_tag),
    }
}

/// Returns no bytes of an object of `size_bytes` for an empty range; `None` where the object does not exist.
pub(crate) fn no_bytes(
    subject: &str,
    size_bytes: Option<u64>,
    range: &Range<u64>,
) -> Result<BoxStream<'static, Result<Bytes>>> {
    match size_bytes {
        None => Err(Error::new(ErrorKind::NotFound, "cannot read the object")
            .on(subject)
            .because("it does not exist")),
        Some(size_bytes) if size_bytes < range.end => Err(shorter_than_asked(subject, size_bytes, range)),
        Some(_) => Ok(stream::empty().boxed()),
    }
}

pub(crate) fn shorter_than_asked(subject: &str, size_bytes: u64, wanted: &Range<u64>) -> Error {
    Error::new(ErrorKind::Damaged, "cannot read the object")
        .on(subject)
        .because(format!(
            "it has {size_bytes} bytes, and bytes {} to {} were asked for",
            wanted.start, wanted.end
        ))
}
