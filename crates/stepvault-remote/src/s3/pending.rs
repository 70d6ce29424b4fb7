//! Incomplete uploads and the sizes of their parts.

use std::sync::atomic::Ordering;

use aws_sdk_s3::types::Part;
use stepvault_core::Result;
use stepvault_core::store_facts::LeftBytes;

use super::errors::Fault;
use super::read::system_time;
use super::store::S3Store;
use crate::listed::check_parts;
use crate::pending::{Listed, Marker, Page, pages};
use crate::store::PendingUpload;

pub(super) const PENDING: &str = "cannot list pending uploads";

impl S3Store {
    /// Lists incomplete uploads, at most `most_pages` pages.
    pub(super) async fn listed_multiparts(&self, prefix: &str, most_pages: usize) -> Result<Listed> {
        pages(PENDING, &self.name(""), prefix, most_pages, |after| self.multiparts_page(prefix, after)).await
    }

    async fn multiparts_page(&self, prefix: &str, after: Option<Marker>) -> Result<Page> {
        let (key_marker, upload_marker) = after.map(|after| (after.key, after.upload)).unzip();
        let client = self.client().await?;
        let request = client
            .list_multipart_uploads()
            .bucket(&self.bucket)
            .prefix(self.full_key(prefix))
            .set_key_marker(key_marker)
            .set_upload_id_marker(upload_marker.filter(|marker| !marker.is_empty()));
        let answer = request.send().await;
        let Some(page) = self.unless(PENDING, "", answer, Fault::is_not_implemented)? else {
            self.lists_pending_uploads.store(false, Ordering::Relaxed);
            return Ok(Page::default());
        };
        let uploads = page.uploads().iter().filter_map(|upload| {
            Some(PendingUpload {
                key: self.relative_key(upload.key()?)?.to_owned(),
                upload: upload.upload_id()?.to_owned(),
                initiated: upload.initiated().map(|time| system_time(Some(time))),
            })
        });
        let next = page.next_key_marker().map(|key| Marker {
            key: key.to_owned(),
            upload: page.next_upload_id_marker().unwrap_or_default().to_owned(),
        });
        Ok(Page { uploads: uploads.collect(), next: next.filter(|_| page.is_truncated().unwrap_or(false)) })
    }

    /// Returns the size of the first page of an upload's parts, or `None` for an upload that no longer exists.
    pub(super) async fn parts_bytes(&self, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
        let client = self.client().await?;
        let request = client
            .list_parts()
            .bucket(&self.bucket)
            .key(self.full_key(&upload.key))
            .upload_id(&upload.upload);
        let what = "cannot list an upload's parts";
        let answer = request.send().await;
        let Some(page) = self.unless(what, &upload.key, answer, Fault::is_missing)? else {
            return Ok(None);
        };
        check_parts(
            &self.name(&upload.key),
            (&self.full_key(&upload.key), &upload.upload),
            (page.key(), page.upload_id()),
        )?;
        let sizes = page.parts().iter().filter_map(Part::size);
        let sizes = sizes.filter_map(|size| u64::try_from(size).ok());
        Ok(Some(LeftBytes {
            bytes: sizes.fold(0, u64::saturating_add),
            all: !page.is_truncated().unwrap_or(false),
        }))
    }
}
