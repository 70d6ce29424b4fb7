//! Copies inside the bucket, by the JSON API's rewrite.

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use stepvault_core::{ErrorKind, Result};

use super::api::Api;
use super::json::ONLY_IF_FREE;
use super::resource::number;
use crate::keys::percent_encode;
use crate::payload::Payload;
use crate::store::Created;

const WHAT: &str = "cannot copy the object";
/// Bytes moved per request, where the store has to move them: an answer arrives before the stall time.
const BYTES_IN_A_REQUEST: u64 = 1 << 30;

/// The fields of an answer that are used here. 64-bit numbers are text in this API, and numbers in some compatible
/// servers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    done: bool,
    rewrite_token: Option<String>,
    #[serde(default)]
    total_bytes_rewritten: Value,
}

impl Progress {
    fn bytes(&self) -> u64 {
        number(&self.total_bytes_rewritten).unwrap_or(0)
    }
}

impl Api {
    /// Copies an object to an unused key.
    pub(super) async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        let Some(source) = self.object(from).await? else {
            return Err(self.error(ErrorKind::NotFound, WHAT, from, "the object does not exist"));
        };
        if let Err(error) = self.rewrite(from, source.generation, to).await {
            // A failed condition concerns the target, or a source that changed meanwhile: the metadata shows which.
            if error.kind() == ErrorKind::Conflict && self.object(to).await?.is_some() {
                return Ok(Created::Exists);
            }
            return Err(error);
        }
        let head = self.head(to).await?;
        head.map(Created::Written).ok_or_else(|| {
            let why = "the store acknowledged it, but it does not exist";
            self.error(ErrorKind::Unreachable, WHAT, to, why)
        })
    }

    /// Copies `from`, in its generation `generation`, to an unused key.
    ///
    /// # Errors
    /// `Conflict` when the key is taken, or the source no longer has that generation.
    async fn rewrite(&self, from: &str, generation: i64, to: &str) -> Result<()> {
        let (mut token, mut moved_bytes) = (None, 0);
        loop {
            let progress = self.rewrite_some(from, generation, to, token).await?;
            if progress.done {
                return Ok(());
            }
            let fault = |why| self.error(ErrorKind::Unreachable, WHAT, to, why);
            if progress.bytes() <= moved_bytes {
                return Err(fault("the store makes no progress on it"));
            }
            moved_bytes = progress.bytes();
            token = progress.rewrite_token;
            if token.is_none() {
                return Err(fault("the answer says neither that the copy is done nor how to continue it"));
            }
        }
    }

    async fn rewrite_some(
        &self,
        from: &str,
        generation: i64,
        to: &str,
        token: Option<String>,
    ) -> Result<Progress> {
        let class = self.options.storage_class.as_deref();
        let body = class.map_or_else(Payload::default, |class| {
            Bytes::from(json!({ "storageClass": class }).to_string()).into()
        });
        // The target is what messages name.
        let call = self.json(WHAT, Method::POST, None)?.about(to);
        let target = format!("/b/{}/o/{}", percent_encode(&self.bucket, ""), self.encoded(to)?);
        let call = call
            .below(&format!("/o/{}/rewriteTo{target}", self.encoded(from)?))
            .query([ONLY_IF_FREE])
            .query([
                ("maxBytesRewrittenPerCall", BYTES_IN_A_REQUEST.to_string()),
                ("ifSourceGenerationMatch", generation.to_string()),
            ])
            .query(self.options.kms_key.clone().map(|key| ("destinationKmsKeyName", key)))
            .query(token.map(|token| ("rewriteToken", token)))
            .body("application/json", body);
        // When a successful answer cannot be read, the next attempt finds out the result.
        self.send(call).await?.json()
    }
}
