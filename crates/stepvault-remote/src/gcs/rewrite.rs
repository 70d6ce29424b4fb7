//! Copies inside the bucket by the JSON API's rewrite: the only copy with conditions on source and target. It continues
//! over several requests where the bytes have to be moved.

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::Value;
use stepvault_core::{Error, ErrorKind, Result};

use super::api::{Api, Call, encode};
use super::resource::number;
use crate::payload::Payload;
use crate::store::{Created, RemoteStore};

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

/// Copies an object of `store`, whose requests `api` sends, to an unused key.
pub(super) async fn copy(store: &dyn RemoteStore, api: &Api, from: &str, to: &str) -> Result<Created> {
    let fault = |kind, key: &str, why: &str| Error::new(kind, WHAT).on(api.subject(Some(key))).because(why);
    let Some(source) = store.head(from).await? else {
        return Err(fault(ErrorKind::NotFound, from, "the object does not exist"));
    };
    // Some servers use entity tags instead.
    let generation = source
        .info
        .version
        .filter(|version| version.parse::<i64>().is_ok());
    if let Err(error) = api.rewrite(from, generation.as_deref(), to).await {
        // A failed condition concerns the target, or a source that changed meanwhile: the metadata shows which.
        if error.kind() == ErrorKind::Conflict && store.head(to).await?.is_some() {
            return Ok(Created::Exists);
        }
        return Err(error);
    }
    let head = store.head(to).await?.ok_or_else(|| {
        let why = "the store acknowledged it, but it does not exist";
        fault(ErrorKind::Unreachable, to, why)
    })?;
    Ok(Created::Written(head))
}

impl Api {
    /// Copies `from`, in its generation `generation`, to an unused key.
    ///
    /// # Errors
    /// `Conflict` when the key is taken, or the source no longer has that generation.
    pub(super) async fn rewrite(&self, from: &str, generation: Option<&str>, to: &str) -> Result<()> {
        let path = self.rewrite_path(from, generation, to)?;
        let (mut token, mut moved_bytes) = (None, 0);
        loop {
            let rewritten = self.rewrite_some(&path, token.as_deref(), to).await?;
            if rewritten.done {
                return Ok(());
            }
            let fault = |why| {
                Error::new(ErrorKind::Unreachable, WHAT)
                    .on(self.subject(Some(to)))
                    .because(why)
            };
            if rewritten.bytes() <= moved_bytes {
                return Err(fault("the store makes no progress on it"));
            }
            moved_bytes = rewritten.bytes();
            token = rewritten.rewrite_token;
            if token.is_none() {
                return Err(fault(
                    "the answer says neither that the copy is done nor how to continue it",
                ));
            }
        }
    }

    fn rewrite_path(&self, from: &str, generation: Option<&str>, to: &str) -> Result<String> {
        let mut path = format!(
            "/o/{}/rewriteTo/b/{}/o/{}?ifGenerationMatch=0&maxBytesRewrittenPerCall={BYTES_IN_A_REQUEST}",
            encode(&self.keys.full(from)?),
            encode(&self.bucket),
            encode(&self.keys.full(to)?),
        );
        let key = self.options.kms_key.as_deref();
        for (name, value) in [
            ("ifSourceGenerationMatch", generation),
            ("destinationKmsKeyName", key),
        ] {
            if let Some(value) = value {
                path.push('&');
                path.push_str(name);
                path.push('=');
                path.push_str(&encode(value));
            }
        }
        Ok(path)
    }

    async fn rewrite_some(&self, path: &str, token: Option<&str>, to: &str) -> Result<Progress> {
        let path = match token {
            Some(token) => format!("{path}&rewriteToken={}", encode(token)),
            None => path.to_owned(),
        };
        let class = self.options.storage_class.as_deref();
        let body = class.map(|class| serde_json::json!({ "storageClass": class }).to_string());
        let call = Call {
            headers: vec![("content-type", "application/json".to_owned())],
            body: body.map_or_else(Payload::default, |body| Bytes::from(body).into()),
            ..Call::new(WHAT, Method::POST, Some(to))
        };
        let document = self.send_json(&path, call).await?;
        // When a successful answer cannot be read, the next attempt finds out the result.
        serde_json::from_str(&document).map_err(|error| {
            Error::new(ErrorKind::Unreachable, WHAT)
                .on(self.subject(Some(to)))
                .because(format!("the store's answer cannot be read ({error})"))
        })
    }
}
