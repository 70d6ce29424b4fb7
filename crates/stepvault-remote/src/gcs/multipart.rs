//! XML multipart uploads: parts in any order and from any process, each with a CRC-32C that the store checks.

use std::fmt::Write as _;

use bytes::Bytes;
use http::Method;
use stepvault_core::digest::PartDigest;
use stepvault_core::{Error, ErrorKind, Result};

use super::api::{Answer, Api, Call, crc32c_of};
use super::xml::escape;
use crate::payload::Payload;
use crate::store::PartReceipt;

impl Api {
    /// Begins an upload and returns its ID.
    pub(super) async fn start_upload(&self, key: &str) -> Result<String> {
        let mut headers = self.option_headers();
        headers.push(("content-type", "application/octet-stream".to_owned()));
        let call = Call {
            query: &[("uploads", "")],
            headers,
            ..Call::new("cannot begin an upload", Method::POST, Some(key))
        };
        self.send(call)
            .await?
            .root("InitiateMultipartUploadResult")?
            .required("UploadId")
    }

    /// Sends part `index`.
    pub(super) async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let what = format!("cannot upload part {}", index + 1);
        let number = (index + 1).to_string();
        let answer = self
            .send(Call {
                what: &what,
                method: Method::PUT,
                key: Some(key),
                query: &[("partNumber", &number), ("uploadId", upload)],
                headers: vec![("x-goog-hash", format!("crc32c={}", digest.crc32c.to_base64()))],
                body,
            })
            .await?;
        let fault = |kind, why: String| Error::new(kind, &what).on(self.subject(Some(key))).because(why);
        // A server that ignores the given checksum is detected by the one that it computed.
        if let Some(stored) = crc32c_of(&answer.headers).filter(|stored| *stored != digest.crc32c) {
            let why = format!("the store has CRC-32C {stored}; {} was sent", digest.crc32c);
            return Err(fault(ErrorKind::Damaged, why));
        }
        let tag = answer
            .headers
            .get(http::header::ETAG)
            .and_then(|tag| tag.to_str().ok());
        let tag =
            tag.ok_or_else(|| fault(ErrorKind::Unreachable, "the answer has no entity tag".to_owned()))?;
        Ok(PartReceipt {
            index,
            tag: tag.to_owned(),
            digest: *digest,
        })
    }

    /// Completes an upload and overwrites an existing object: this API supports no preconditions. The whole answer has
    /// been read when this returns.
    pub(super) async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
    ) -> Result<Answer> {
        let mut listed = String::from("<CompleteMultipartUpload>");
        for part in parts {
            let (number, tag) = (part.index + 1, escape(&part.tag));
            let _ = write!(
                listed,
                "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
            );
        }
        listed.push_str("</CompleteMultipartUpload>");
        let answer = self
            .send(Call {
                what: "cannot complete the upload",
                method: Method::POST,
                key: Some(key),
                query: &[("uploadId", upload)],
                headers: vec![("content-type", "application/xml".to_owned())],
                body: Bytes::from(listed).into(),
            })
            .await?;
        answer.root("CompleteMultipartUploadResult")?;
        Ok(answer)
    }

    /// Aborts an upload. A missing upload is not an error.
    pub(super) async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        let call = Call {
            query: &[("uploadId", upload)],
            ..Call::new("cannot abort the upload", Method::DELETE, Some(key))
        };
        match self.send(call).await {
            Err(gone) if gone.kind() == ErrorKind::NotFound => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }
}
