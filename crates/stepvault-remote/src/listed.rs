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

/// More pages than this indicate a fault, not a backlog.
pub(crate) const MAXIMUM_PAGES: usize = 1000;

/// The upload after which a listing continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) key: String,
    pub(crate) upload: String,
}

/// One page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) uploads: Vec<PendingUpload>,
    /// The next page; `None` at the end.
    pub(crate) next: Option<Marker>,
}

/// Incomplete uploads, as far as they were listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// In the store's order.
    pub uploads: Vec<PendingUpload>,
    /// Whether the list is complete.
    pub all: bool,
}

impl Listed {
    /// Returns all uploads, or an error if the listing did not end.
    pub(crate) fn whole(self, what: &str, url: &str) -> Result<Vec<PendingUpload>> {
        if self.all {
            return Ok(self.uploads);
        }
        Err(malformed(what, url, "it does not end"))
    }
}

/// Requests pages until there is no next one, or up to the given number, and keeps entries that begin with `prefix`.
pub(crate) async fn pages<Asked>(
    what: &str,
    url: &str,
    prefix: &str,
    most_pages: usize,
    mut ask: impl FnMut(Option<Marker>) -> Asked + Send,
) -> Result<Listed>
where
    Asked: Future<Output = Result<Page>> + Send,
{
    let mut listed = Listed::default();
    let mut after = None;
    for _ in 0..most_pages {
        let page = ask(after.clone()).await?;
        listed.uploads.extend(uploads(prefix, page.uploads));
        if page.next.is_none() {
            listed.all = true;
            break;
        }
        if page.next == after {
            return Err(malformed(what, url, "it is truncated but gives no continuation token"));
        }
        after = page.next;
    }
    Ok(listed)
}

/// Returns the error for a listing that breaks the rules of its API.
pub(crate) fn malformed(what: &str, url: &str, why: &str) -> Error {
    Error::new(ErrorKind::Failed, what).on(url).because(format!("the store's listing is malformed: {why}"))
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

    fn numbered(number: usize) -> Page {
        let upload = number.to_string();
        Page {
            uploads: vec![PendingUpload { key: "key".to_owned(), upload: upload.clone(), initiated: None }],
            next: Some(Marker { key: "key".to_owned(), upload }),
        }
    }

    #[tokio::test]
    async fn a_listing_ends_at_its_last_page_or_at_the_bound() {
        let mut asked = 0;
        let listed = pages("cannot list", "s3://b", "", 3, |_| {
            asked += 1;
            std::future::ready(Ok(numbered(asked)))
        })
        .await
        .unwrap();
        assert_eq!((listed.uploads.len(), listed.all), (3, false));
        assert_eq!(
            listed.whole("cannot list", "s3://b").unwrap_err().to_string(),
            "cannot list: s3://b: the store's listing is malformed: it does not end"
        );
        let last = |after: Option<Marker>| {
            let mut page = numbered(1);
            page.next = page.next.filter(|_| after.is_none());
            std::future::ready(Ok(page))
        };
        let listed = pages("cannot list", "s3://b", "", 3, last).await.unwrap();
        assert!(listed.all);
        assert_eq!(listed.whole("cannot list", "s3://b").unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_listing_that_goes_in_circles_is_an_error() {
        let error = pages("cannot list", "s3://b", "", 1000, |_| std::future::ready(Ok(numbered(1))))
            .await
            .unwrap_err();
        assert!(error.to_string().ends_with("it is truncated but gives no continuation token"), "{error}");
    }
}
