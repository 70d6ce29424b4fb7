//! Listings of incomplete uploads, page by page, with a bounded number of pages.

use std::future::Future;

use stepvault_core::{Error, ErrorKind, Result};

use crate::listed;
use crate::store::PendingUpload;

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
        listed.uploads.extend(listed::uploads(prefix, page.uploads));
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
    use super::*;

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
