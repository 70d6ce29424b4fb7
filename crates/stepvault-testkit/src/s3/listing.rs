//! Lists keys page by page.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use s3s::dto::{
    ChecksumAlgorithm, ChecksumType, CommonPrefix, ETag, EncodingType, ListObjectsV2Input,
    ListObjectsV2Output, Object, ObjectStorageClass, Timestamp,
};
use s3s::{S3Response, S3Result, s3_error};

use super::attributes::STORAGE_CLASS;
use super::checksums::{Algorithm, checksum_type};
use super::state::State;
use crate::objects::StoredObject;

/// One page of keys and, with a delimiter, of common prefixes.
#[derive(Debug)]
pub(crate) struct Page<'a, Entry> {
    pub(crate) entries: Vec<(&'a str, &'a Entry)>,
    pub(crate) prefixes: Vec<String>,
    /// Last key or common prefix of the page, if there is more.
    pub(crate) next: Option<String>,
}

impl<'a, Entry> Page<'a, Entry> {
    /// Selects up to `limit` of the `sorted` entries with `prefix` that come after `after`.
    pub(crate) fn of(
        sorted: impl Iterator<Item = (&'a str, &'a Entry)>,
        prefix: &str,
        delimiter: Option<&str>,
        after: &str,
        limit: usize,
    ) -> Self {
        let mut page = Self { entries: Vec::new(), prefixes: Vec::new(), next: None };
        if limit == 0 {
            return page;
        }
        let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty());
        let mut last = String::new();
        for (key, entry) in sorted {
            let Some(rest) = key.strip_prefix(prefix) else {
                continue;
            };
            if key <= after {
                continue;
            }
            let rolled_up = delimiter.and_then(|delimiter| {
                let end = prefix.len() + rest.find(delimiter)? + delimiter.len();
                key.get(..end)
            });
            if rolled_up
                .is_some_and(|common| common == after || page.prefixes.last().is_some_and(|p| p == common))
            {
                continue;
            }
            if page.entries.len() + page.prefixes.len() == limit {
                page.next = Some(last);
                break;
            }
            rolled_up.unwrap_or(key).clone_into(&mut last);
            match rolled_up {
                Some(common) => page.prefixes.push(common.to_owned()),
                None => page.entries.push((key, entry)),
            }
        }
        page
    }

    pub(crate) fn count(&self) -> usize {
        self.entries.len() + self.prefixes.len()
    }
}

/// Percent-encodes a key as `encoding-type=url` requires.
pub(crate) fn url_encode(key: &str) -> String {
    use std::fmt::Write as _;
    key.bytes().fold(String::with_capacity(key.len()), |mut text, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                text.push(char::from(byte));
            }
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
        text
    })
}

/// Returns a continuation token. It is opaque, so that a client cannot use a key as one.
pub(crate) fn token(key: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("token:{key}"))
}

/// Returns the key in a continuation token, if this server issued it.
pub(crate) fn key_of_token(token: &str) -> Option<String> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    text.strip_prefix("token:").map(str::to_owned)
}

pub(crate) fn list(state: &State, input: &ListObjectsV2Input) -> S3Result<S3Response<ListObjectsV2Output>> {
    let limit = state.page_size(input.max_keys)?;
    let after = match &input.continuation_token {
        Some(token) => key_of_token(token)
            .ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))?,
        None => input.start_after.clone().unwrap_or_default(),
    };
    let encoded = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == EncodingType::URL);
    let encode = |key: &str| if encoded { url_encode(key) } else { key.to_owned() };
    let prefix = input.prefix.clone().unwrap_or_default();
    let root = format!("{}/", input.bucket);
    let unlisted = state.buckets().get(&input.bucket).and_then(|bucket| bucket.unlisted.clone());
    state.objects.with(|table| {
        let sorted = table
            .range(format!("{root}{prefix}")..)
            .map_while(|(path, object)| Some((path.strip_prefix(&root)?, object)))
            .filter(|(key, _)| unlisted.as_ref().is_none_or(|text| !key.contains(text)));
        let page = Page::of(sorted, &prefix, input.delimiter.as_deref(), &after, limit);
        let common_prefixes =
            page.prefixes.iter().map(|common| CommonPrefix { prefix: Some(encode(common)) }).collect();
        let contents = page.entries.iter().map(|(key, object)| listed(state, encode(key), object)).collect();
        Ok(S3Response::new(ListObjectsV2Output {
            key_count: i32::try_from(page.count()).ok(),
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next.as_deref().map(token),
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            max_keys: i32::try_from(limit).ok(),
            prefix: Some(encode(&prefix)),
            delimiter: input.delimiter.as_deref().map(encode),
            start_after: input.start_after.as_deref().map(encode),
            name: Some(input.bucket.clone()),
            continuation_token: input.continuation_token.clone(),
            encoding_type: input.encoding_type.clone(),
            ..ListObjectsV2Output::default()
        }))
    })
}

fn listed(state: &State, key: String, object: &StoredObject) -> Object {
    let told = state.told(&object.checksums);
    let algorithms: Vec<_> = told
        .keys()
        .filter_map(|key| Some(ChecksumAlgorithm::from_static(Algorithm::from_key(key)?.name())))
        .collect();
    Object {
        key: Some(key),
        size: i64::try_from(object.body.len()).ok(),
        e_tag: Some(ETag::Strong(object.etag.clone())),
        last_modified: Some(Timestamp::from(object.modified)),
        storage_class: object.attributes.get(STORAGE_CLASS).cloned().map(ObjectStorageClass::from),
        checksum_type: checksum_type(&told).map(ChecksumType::from_static),
        checksum_algorithm: Some(algorithms),
        ..Object::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(keys: &[&str], prefix: &str, delimiter: Option<&str>, limit: usize) -> Vec<Vec<String>> {
        let (mut after, mut pages) = (String::new(), Vec::new());
        loop {
            let page = Page::of(keys.iter().map(|key| (*key, &())), prefix, delimiter, &after, limit);
            let mut names: Vec<String> = page.entries.iter().map(|(key, ())| (*key).to_owned()).collect();
            names.extend(page.prefixes.iter().cloned());
            pages.push(names);
            match page.next {
                Some(next) => after = next,
                None => return pages,
            }
        }
    }

    #[test]
    fn common_prefixes_count_as_one_key_and_are_told_once() {
        let keys = ["a/1", "a/2", "b", "c/1", "c/2", "d"];
        assert_eq!(pages(&keys, "", Some("/"), 1), [["a/"], ["b"], ["c/"], ["d"]]);
        assert_eq!(pages(&keys, "c/", Some("/"), 9), [["c/1", "c/2"]]);
        assert_eq!(pages(&keys, "", None, 4), [vec!["a/1", "a/2", "b", "c/1"], vec!["c/2", "d"]]);
    }
}
