//! Listings: by the XML API objects with their generations and incomplete uploads, by the JSON API objects.
//!
//! Not done by `object_store`, which drops the generation and rejects the whole page when any object in the bucket has
//! a name that it does not support.

use std::collections::VecDeque;
use std::time::SystemTime;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::Method;
use stepvault_core::store_facts::LeftBytes;
use stepvault_core::{Error, ErrorKind, Result};

use super::api::{Answer, Api, Call};
use super::temporary::is_temporary;
use super::xml::Element;
use crate::listed::check_parts;
use crate::pending::{Listed, MAXIMUM_PAGES, Marker, Page, pages};
use crate::store::{ObjectInfo, PendingUpload};

const PENDING: &str = "cannot list the pending uploads";
const OBJECTS: &str = "cannot list the objects";

enum Next {
    First,
    After(String),
    End,
}

/// Lists all objects whose keys begin with `prefix` by the JSON API, page by page.
pub(super) fn by_json(api: &Api, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>> {
    let state = (
        api.clone(),
        api.keys.full_prefix(prefix),
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
            let answer = api.objects_page(OBJECTS, &prefix, token).await?;
            let kept = answer.objects.into_iter().filter_map(|object| {
                let key = api.keys.key_of(&object.name).filter(|key| !is_temporary(key));
                let key = key.map(str::to_owned)?;
                Some(object.into_head(&key).info)
            });
            page.extend(kept);
            next = answer.next.map_or(Next::End, Next::After);
        }
        Ok(page.pop_front().map(|info| (info, (api, prefix, next, page))))
    })
    .boxed()
}

impl Api {
    /// Lists all objects whose keys begin with `prefix`, page by page.
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
        let mut query = vec![("list-type", "2"), ("prefix", prefix)];
        query.extend(token.map(|token| ("continuation-token", token)));
        let answer = self.get(OBJECTS, None, &query).await?;
        let list = answer.root("ListBucketResult")?;
        let mut page = VecDeque::new();
        for entry in list.children("Contents") {
            let name = entry.required("Key")?;
            if let Some(key) = self.keys.key_of(&name).filter(|key| !is_temporary(key)) {
                page.push_back(self.entry(OBJECTS, key, entry)?);
            }
        }
        let truncated = list.text("IsTruncated").as_deref() == Some("true");
        let next = match (list.text("NextContinuationToken"), truncated) {
            // A listing whose token repeats would never end.
            (Some(next), true) if token != Some(next.as_str()) => Next::After(next),
            (_, true) => {
                return Err(self.malformed(OBJECTS, "it is truncated but gives no continuation token"));
            }
            (_, false) => Next::End,
        };
        Ok((page, next))
    }

    fn entry(&self, what: &str, key: &str, entry: &Element) -> Result<ObjectInfo> {
        let size = entry.required("Size")?;
        Ok(ObjectInfo {
            key: key.to_owned(),
            size_bytes: size
                .parse()
                .map_err(|_| self.malformed(what, "a size is not a number"))?,
            modified: self.time(what, &entry.required("LastModified")?)?,
            version: entry.text("Generation").or(entry.text("ETag")),
        })
    }

    /// Returns the incomplete multipart uploads to keys that begin with `prefix`.
    pub(super) async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        let listed = self.listed_uploads(prefix, MAXIMUM_PAGES).await?;
        listed.whole(PENDING, &self.subject(None))
    }

    /// Like [`Self::pending_uploads`], for at most `most_pages` pages.
    pub(super) async fn listed_uploads(&self, prefix: &str, most_pages: usize) -> Result<Listed> {
        let full_prefix = self.keys.full_prefix(prefix);
        pages(PENDING, &self.subject(None), prefix, most_pages, |after| {
            self.uploads_page(&full_prefix, after)
        })
        .await
    }

    async fn uploads_page(&self, prefix: &str, after: Option<Marker>) -> Result<Page> {
        let mut query = vec![("uploads", ""), ("prefix", prefix)];
        if let Some(Marker { key, upload }) = &after {
            query.extend([
                ("key-marker", key.as_str()),
                ("upload-id-marker", upload.as_str()),
            ]);
        }
        let answer = self.get(PENDING, None, &query).await?;
        let list = answer.root("ListMultipartUploadsResult")?;
        let mut page = Page::default();
        for entry in list.children("Upload") {
            let name = entry.required("Key")?;
            let initiated = entry
                .text("Initiated")
                .map(|text| self.time(PENDING, &text))
                .transpose()?;
            if let Some(key) = self.keys.key_of(&name) {
                let upload = entry.required("UploadId")?;
                page.uploads.push(PendingUpload {
                    key: key.to_owned(),
                    upload,
                    initiated,
                });
            }
        }
        if list.text("IsTruncated").as_deref() == Some("true") {
            page.next = Some(Marker {
                key: list.required("NextKeyMarker")?,
                upload: list.text("NextUploadIdMarker").unwrap_or_default(),
            });
        }
        Ok(page)
    }

    /// Returns the size of the first page of an upload's parts, or `None` for an upload that no longer exists.
    pub(super) async fn uploaded_bytes(&self, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
        const WHAT: &str = "cannot list an upload's parts";
        let query = [("uploadId", upload.upload.as_str())];
        let answer = match self.get(WHAT, Some(&upload.key), &query).await {
            Err(gone) if gone.kind() == ErrorKind::NotFound => return Ok(None),
            answer => answer?,
        };
        let list = answer.root("ListPartsResult")?;
        let asked = self.keys.full(&upload.key)?;
        let (key, id) = (list.text("Key"), list.text("UploadId"));
        check_parts(
            &self.subject(Some(&upload.key)),
            (&asked, &upload.upload),
            (key.as_deref(), id.as_deref()),
        )?;
        let mut bytes = 0_u64;
        for part in list.children("Part") {
            let size = part.required("Size")?;
            let size: u64 = size
                .parse()
                .map_err(|_| self.malformed(WHAT, "a size is not a number"))?;
            bytes = bytes.saturating_add(size);
        }
        Ok(Some(LeftBytes {
            bytes,
            all: list.text("IsTruncated").as_deref() != Some("true"),
        }))
    }

    async fn get(&self, what: &str, key: Option<&str>, query: &[(&str, &str)]) -> Result<Answer> {
        self.send(Call {
            query,
            ..Call::new(what, Method::GET, key)
        })
        .await
    }

    fn time(&self, what: &str, text: &str) -> Result<SystemTime> {
        let time: jiff::Timestamp = text
            .parse()
            .map_err(|_| self.malformed(what, "a time is malformed"))?;
        Ok(time.into())
    }

    fn malformed(&self, what: &str, why: &str) -> Error {
        Error::new(ErrorKind::Failed, what)
            .on(self.subject(None))
            .because(format!("the store's listing is malformed: {why}"))
    }
}
