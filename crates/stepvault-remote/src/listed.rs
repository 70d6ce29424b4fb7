//! Filters the listings of a store by the requested prefix: the only module that decides which entries are passed on.
//!
//! Retention deletes listed objects and `gc` aborts listed uploads. A server that ignores a prefix or renames keys must
//! not cause objects of others to be treated as the run's.

use std::future::Future;

use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use stepvault_core::{Error, ErrorKind, Result};

use crate::store::{ObjectInfo, PendingUpload};

/// Returns the objects whose keys begin with `prefix`; other entries of the listing are dropped.
pub(crate) fn objects<'a>(
    prefix: &str,
    listed: BoxStream<'a, Result<ObjectInfo>>,
) -> BoxStream<'a, Result<ObjectInfo>> {
    let mut requested = RequestedPrefix::new(prefix);
    listed
        .filter(move |entry| {
            let is_requested = entry.as_ref().map_or(true, |info| requested.covers(&info.key));
            std::future::ready(is_requested)
        })
        .boxed()
}

/// A page of a listing.
pub(crate) struct ObjectPage {
    pub(crate) objects: Vec<ObjectInfo>,
    /// The token of the next page; `None` at the end.
    pub(crate) next: Option<String>,
}

/// Lists page by page. `ask` gets the token of the page, `None` for the first one.
pub(crate) fn paged<'a, Asked>(
    ask: impl Fn(Option<String>) -> Asked + Send + 'a,
) -> BoxStream<'a, Result<ObjectInfo>>
where
    Asked: Future<Output = Result<ObjectPage>> + Send + 'a,
{
    let pages = stream::try_unfold((ask, Some(None)), |(ask, token)| async move {
        let Some(token) = token else { return Ok(None) };
        let page = ask(token).await?;
        let objects = stream::iter(page.objects.into_iter().map(Ok));
        Ok(Some((objects, (ask, page.next.map(Some)))))
    });
    pages.try_flatten().boxed()
}

/// Returns the uploads to keys that begin with `prefix`; other entries of the listing are dropped.
pub(crate) fn uploads(prefix: &str, mut listed: Vec<PendingUpload>) -> Vec<PendingUpload> {
    let mut requested = RequestedPrefix::new(prefix);
    listed.retain(|upload| requested.covers(&upload.key));
    listed
}

/// Refuses a listing of parts that belongs to another upload than the requested one. A store need not repeat the
/// request in its answer.
pub(crate) fn check_parts(
    url: &str,
    (key, upload): (&str, &str),
    answered: (Option<&str>, Option<&str>),
) -> Result<()> {
    let is_same = |asked: &str, answered: Option<&str>| answered.is_none_or(|answered| answered == asked);
    if is_same(key, answered.0) && is_same(upload, answered.1) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Failed, "cannot list an upload's parts")
        .on(url)
        .because("the store listed the parts of a different upload"))
}

struct RequestedPrefix {
    prefix: String,
    has_warned: bool,
}

impl RequestedPrefix {
    fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), has_warned: false }
    }

    fn covers(&mut self, key: &str) -> bool {
        let is_requested = !key.is_empty() && key.starts_with(&self.prefix);
        if !is_requested && !self.has_warned {
            self.has_warned = true;
            let prefix = &self.prefix;
            tracing::warn!(
                ?key,
                ?prefix,
                "ignoring objects that the store listed outside the requested prefix"
            );
        }
        is_requested
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use futures::{TryStreamExt as _, stream};

    use super::*;

    #[tokio::test]
    async fn only_what_was_asked_for_is_passed_on() {
        let info = |key: &str| {
            Ok(ObjectInfo {
                key: key.to_owned(),
                size_bytes: 0,
                modified: SystemTime::UNIX_EPOCH,
                version: None,
            })
        };
        let listed = ["run/a", "runFa", "", "run/", "other/run/a"].map(info);
        let passed: Vec<ObjectInfo> =
            objects("run/", stream::iter(listed).boxed()).try_collect().await.unwrap();
        let keys: Vec<&str> = passed.iter().map(|info| info.key.as_str()).collect();
        assert_eq!(keys, ["run/a", "run/"]);
    }

    #[tokio::test]
    async fn an_error_is_passed_on() {
        let listed = stream::iter([Err(Error::new(ErrorKind::Unreachable, "cannot list"))]).boxed();
        let passed: Result<Vec<ObjectInfo>> = objects("run/", listed).try_collect().await;
        assert_eq!(passed.unwrap_err().kind(), ErrorKind::Unreachable);
    }

    #[test]
    fn parts_of_another_upload_are_refused() {
        let check = |answered| check_parts("s3://b", ("p/run/a", "1"), answered);
        check((None, None)).unwrap();
        check((Some("p/run/a"), Some("1"))).unwrap();
        check((Some("p/run/b"), Some("1"))).unwrap_err();
        check((Some("p/run/a"), Some("2"))).unwrap_err();
    }
}
