//! Listings by the XML API: objects with their generations, and uploads that nobody has completed.
//!
//! Read here rather than by `object_store`, which drops the generation and refuses the whole page when somebody else's
//! object in the bucket has a name that it cannot hold.

use std::collections::VecDeque;
use std::time::SystemTime;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::Method;
use stepvault_core::{Error, ErrorKind, Result};

use super::api::{Answer, Api, Call};
use super::xml::Element;
use crate::payload::Payload;
use crate::store::{ObjectInfo, PendingUpload};

/// More pages of pending uploads than this are a fault, not a backlog.
const MAXIMUM_UPLOAD_PAGES: usize = 1000;

enum Next {
    First,
    After(String),
    End,
}

impl Api {
    /// All objects whose keys begin with `prefix`, page by page.
    pub(super) fn list(&self, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>> {
        let state = (
            self.clone(),
            self.keys.full_prefix(prefix),
            Next::First,
            VecDeque::new(),
        );
        stream::try_unfold(state, |(api, prefix, mut next, mut page)| async move {
            while page.is_empty() {
                let token = match &next {
                    Next::First => None,
                    Next::After(token) => Some(token.as_str()),
                    Next::End => return Ok(None),
                };
                (page, next) = api.list_page(&prefix, token).await?;
            }
            Ok(page.pop_front().map(|info| (info, (api, prefix, next, page))))
        })
        .boxed()
    }

    async fn list_page(&self, prefix: &str, token: Option<&str>) -> Result<(VecDeque<ObjectInfo>, Next)> {
        const WHAT: &str = "cannot list the objects";
        let mut query = vec![("list-type", "2"), ("prefix", prefix)];
        query.extend(token.map(|token| ("continuation-token", token)));
        let answer = self.get(WHAT, &query).await?;
        let list = answer.root("ListBucketResult")?;
        let mut page = VecDeque::new();
        for entry in list.children("Contents") {
            let name = entry.required("Key")?;
            if let Some(key) = self.keys.key_of(&name) {
                page.push_back(self.entry(WHAT, key, entry)?);
            }
        }
        let truncated = list.text("IsTruncated")?.as_deref() == Some("true");
        let next = match (list.text("NextContinuationToken")?, truncated) {
            // An endless listing is not a listing.
            (Some(next), true) if token != Some(next.as_str()) => Next::After(next),
            (_, true) => return Err(self.malformed(WHAT, "it says that more follows, but not where")),
            (_, false) => Next::End,
        };
        Ok((page, next))
    }

    fn entry(&self, what: &str, key: &str, entry: Element<'_>) -> Result<ObjectInfo> {
        let size = entry.required("Size")?;
        Ok(ObjectInfo {
            key: key.to_owned(),
            size_bytes: size
                .parse()
                .map_err(|_| self.malformed(what, "a size is not a number"))?,
            modified: self.time(what, &entry.required("LastModified")?)?,
            version: entry.text("Generation")?.or(entry.text("ETag")?),
        })
    }

    /// The multipart uploads under way to keys that begin with `prefix`.
    pub(super) async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        const WHAT: &str = "cannot list the pending uploads";
        let full_prefix = self.keys.full_prefix(prefix);
        let mut pending = Vec::new();
        let mut markers: Option<(String, String)> = None;
        for _ in 0..MAXIMUM_UPLOAD_PAGES {
            let mut query = vec![("uploads", ""), ("prefix", full_prefix.as_str())];
            if let Some((key, upload)) = &markers {
                query.extend([
                    ("key-marker", key.as_str()),
                    ("upload-id-marker", upload.as_str()),
                ]);
            }
            let answer = self.get(WHAT, &query).await?;
            let list = answer.root("ListMultipartUploadsResult")?;
            for entry in list.children("Upload") {
                let name = entry.required("Key")?;
                let initiated = entry
                    .text("Initiated")?
                    .map(|text| self.time(WHAT, &text))
                    .transpose()?;
                if let Some(key) = self.keys.key_of(&name) {
                    let upload = entry.required("UploadId")?;
                    pending.push(PendingUpload {
                        key: key.to_owned(),
                        upload,
                        initiated,
                    });
                }
            }
            if list.text("IsTruncated")?.as_deref() != Some("true") {
                return Ok(pending);
            }
            let next = (
                list.required("NextKeyMarker")?,
                list.text("NextUploadIdMarker")?.unwrap_or_default(),
            );
            if markers.as_ref() == Some(&next) {
                return Err(self.malformed(WHAT, "it says that more follows, but not where"));
            }
            markers = Some(next);
        }
        Err(self.malformed(WHAT, "there is no end to it"))
    }

    async fn get(&self, what: &str, query: &[(&str, &str)]) -> Result<Answer> {
        let call = Call {
            what,
            method: Method::GET,
            key: None,
            query,
            headers: Vec::new(),
            body: Payload::default(),
        };
        self.send(call).await
    }

    fn time(&self, what: &str, text: &str) -> Result<SystemTime> {
        let time: jiff::Timestamp = text
            .parse()
            .map_err(|_| self.malformed(what, "a time is not one"))?;
        Ok(time.into())
    }

    fn malformed(&self, what: &str, why: &str) -> Error {
        Error::new(ErrorKind::Failed, what)
            .on(self.subject(None))
            .because(format!("the store's listing is malformed: {why}"))
    }
}
