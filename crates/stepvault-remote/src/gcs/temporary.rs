//! Uploads in parts through the JSON API: each part is a temporary object, and completion composes them to one.
//!
//! `<prefix>/.stepvault-uploads/<key>/<id>/begun` marks an upload, `…/<number>` holds a part, `…/join-<level>-<number>`
//! an intermediate composition where an upload has more parts than one request joins. All the names follow from key and
//! ID, so that a process needs only these to send a part, and a listing shows which uploads are pending.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use stepvault_core::digest::{FileDigest, PartDigest, is_hex};
use stepvault_core::keys::MAX_KEY_BYTES;
use stepvault_core::store_facts::LeftBytes;
use stepvault_core::{ErrorKind, Result};

use super::api::{Api, COMPLETE, PENDING};
use super::json::{MAXIMUM_SOURCES, REQUESTS_AT_ONCE, SourceObject, UPLOADS_DIRECTORY as DIRECTORY};
use super::resource::Described;
use crate::listed::{Listed, Marker, Page, pages};
use crate::payload::Payload;
use crate::store::{Created, PartReceipt, PendingUpload};

/// Distinguishes the IDs from those of XML multipart uploads, which a journal may still hold.
const ID_PREFIX: &str = "json-";
const BEGUN: &str = "begun";
const JOIN_PREFIX: &str = "join-";

/// The temporary objects of one upload.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Upload {
    /// Ends with a slash.
    directory: String,
}

impl Upload {
    fn new(key: &str, id: &str) -> Self {
        Self { directory: format!("{DIRECTORY}{key}/{id}/") }
    }

    /// Parses an ID. It may come from a damaged journal, or from a time when the remote used the XML API: any other text
    /// means that no such upload exists.
    fn parse(api: &Api, what: &str, key: &str, id: &str) -> Result<Self> {
        if is_id(id) {
            return Ok(Self::new(key, id));
        }
        Err(api.error(ErrorKind::NotFound, what, key, format!("there is no upload {id:?}")))
    }

    fn begun(&self) -> String {
        format!("{}{BEGUN}", self.directory)
    }

    fn part(&self, index: u32) -> String {
        format!("{}{:05}", self.directory, u64::from(index) + 1)
    }

    fn join(&self, level: usize, number: usize) -> String {
        format!("{}{JOIN_PREFIX}{level}-{number:05}", self.directory)
    }
}

fn is_id(text: &str) -> bool {
    text.strip_prefix(ID_PREFIX).is_some_and(|random| is_hex(random, 32))
}

/// Returns key, ID and last segment of a temporary object's key; `None` for one that stepvault did not write.
fn parse_name(temporary: &str) -> Option<(&str, &str, &str)> {
    let (above, last) = temporary.strip_prefix(DIRECTORY)?.rsplit_once('/')?;
    let (key, id) = above.rsplit_once('/')?;
    (is_id(id) && !key.is_empty()).then_some((key, id, last))
}

/// Begins an upload and returns its ID.
pub(super) async fn start(api: &Api, key: &str) -> Result<String> {
    const WHAT: &str = "cannot begin an upload";
    let id = format!("{ID_PREFIX}{}", crate::random::identity());
    let upload = Upload::new(key, &id);
    let longest = api.keys.full(&upload.join(0, 0))?;
    if longest.len() > MAX_KEY_BYTES {
        return Err(api.error(ErrorKind::Usage, WHAT, key, format!(
                "the names of its temporary objects would have {} bytes, and the store accepts at most {MAX_KEY_BYTES}",
                longest.len()
            ))
            .hint("shorten the remote's prefix or the run's name, or set transport = \"xml\" for this remote"));
    }
    let empty = PartDigest::of(b"");
    api.insert(WHAT, &upload.begun(), Payload::default(), &empty, false).await?;
    Ok(id)
}

/// Sends one part. It replaces an earlier attempt at the same part.
pub(super) async fn send_part(
    api: &Api,
    key: &str,
    id: &str,
    index: u32,
    body: Payload,
    digest: &PartDigest,
) -> Result<PartReceipt> {
    let what = format!("cannot upload part {}", index + 1);
    let upload = Upload::parse(api, &what, key, id)?;
    let written = api.insert(&what, &upload.part(index), body, digest, false).await?;
    let generation = written.and_then(|head| head.info.version).ok_or_else(|| {
        api.error(ErrorKind::Unreachable, &what, key, "the answer does not describe the object")
    })?;
    Ok(PartReceipt { index, tag: generation, digest: *digest })
}

/// Composes the parts to one object at an unused key, and deletes them.
pub(super) async fn complete(
    api: &Api,
    key: &str,
    id: &str,
    parts: &[PartReceipt],
    digest: &FileDigest,
) -> Result<Created> {
    let upload = Upload::parse(api, COMPLETE, key, id)?;
    let mut temporary = vec![upload.begun()];
    let composed = match compose_parts(api, key, &upload, parts, &mut temporary).await {
        Ok(composed) => composed,
        // The key is taken, or an earlier completion has deleted the parts: the metadata shows whether.
        Err(error)
            if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound)
                && api.object(key).await?.is_some() =>
        {
            return Ok(Created::Exists);
        }
        Err(error) => return Err(error),
    };
    let sent = (digest.size_bytes, digest.crc32c);
    let head = api.compare(COMPLETE, key, composed, sent, true).await?;
    // The object is complete; gc removes what is left.
    if let Err(error) = api.delete_objects(&temporary).await {
        tracing::warn!("{error}; 'stepvault gc' removes the parts later");
    }
    Ok(Created::Written(head))
}

/// Composes the parts, by way of intermediate objects where there are many, and adds all these to `temporary`.
async fn compose_parts(
    api: &Api,
    key: &str,
    upload: &Upload,
    parts: &[PartReceipt],
    temporary: &mut Vec<String>,
) -> Result<Described> {
    let fault = |kind, why: &str| api.error(kind, COMPLETE, key, why);
    if parts.is_empty() {
        return Err(fault(ErrorKind::Failed, "no part of it was sent"));
    }
    let mut sources = Vec::with_capacity(parts.len());
    for part in parts {
        // Entity tags of the XML API, from a journal.
        if part.tag.parse::<i64>().is_err() {
            return Err(fault(ErrorKind::NotFound, "a part is not one of this upload"));
        }
        sources.push(SourceObject { key: upload.part(part.index), generation: part.tag.clone() });
    }
    temporary.extend(sources.iter().map(|source| source.key.clone()));
    let mut level = 0;
    while sources.len() > MAXIMUM_SOURCES {
        sources = join_level(api, upload, level, sources).await?;
        temporary.extend(sources.iter().map(|source| source.key.clone()));
        level += 1;
    }
    api.compose(COMPLETE, key, &sources, true).await
}

/// Composes each 32 of the sources to one temporary object.
async fn join_level(
    api: &Api,
    upload: &Upload,
    level: usize,
    sources: Vec<SourceObject>,
) -> Result<Vec<SourceObject>> {
    let groups: Vec<(String, Vec<SourceObject>)> = sources
        .chunks(MAXIMUM_SOURCES)
        .enumerate()
        .map(|(number, group)| (upload.join(level, number), group.to_vec()))
        .collect();
    stream::iter(groups)
        .map(|(key, group)| async move {
            let composed = api.compose(COMPLETE, &key, &group, false).await?;
            Ok(SourceObject { key, generation: composed.generation.to_string() })
        })
        .buffered(REQUESTS_AT_ONCE)
        .try_collect()
        .await
}

/// Deletes all temporary objects of an upload, also those that it does not know of.
pub(super) async fn abort(api: &Api, key: &str, id: &str) -> Result<()> {
    const WHAT: &str = "cannot abort the upload";
    if !is_id(id) {
        return Ok(());
    }
    let prefix = api.keys.full_prefix(&Upload::new(key, id).directory);
    let mut token = None;
    // The mark goes last: until then the upload is pending.
    let mut last = Vec::new();
    loop {
        let page = api.objects_page(WHAT, &prefix, token.as_deref()).await?;
        let found = page.objects.iter().filter(|object| is_of(api, object, key, id));
        let names = found.filter_map(|object| api.keys.key_of(&object.name));
        let (begun, others): (Vec<String>, Vec<String>) =
            names.map(str::to_owned).partition(|name| name.ends_with(BEGUN));
        last.extend(begun);
        api.delete_objects(&others).await?;
        token = page.next;
        if token.is_none() {
            break;
        }
    }
    api.delete_objects(&last).await
}

/// Returns the pending uploads to keys that begin with `prefix`, of at most `most_pages` pages of temporary objects.
pub(super) async fn listed(api: &Api, prefix: &str, most_pages: usize) -> Result<Listed> {
    let full_prefix = api.keys.full_prefix(&format!("{DIRECTORY}{prefix}"));
    let mut listed = pages(PENDING, &api.subject(None), prefix, most_pages, |after| {
        let full_prefix = full_prefix.clone();
        async move {
            let token = after.map(|marker: Marker| marker.key);
            let page = api.objects_page(PENDING, &full_prefix, token.as_deref()).await?;
            let mut uploads = Vec::new();
            for object in &page.objects {
                if let Some(upload) = upload_of(api, object) {
                    add(&mut uploads, upload);
                }
            }
            let next = page.next.map(|key| Marker { key, upload: String::new() });
            Ok(Page { uploads, next })
        }
    })
    .await?;
    // An upload whose objects are on several pages is listed by each.
    let mut merged = Vec::new();
    for upload in std::mem::take(&mut listed.uploads) {
        add(&mut merged, upload);
    }
    listed.uploads = merged;
    Ok(listed)
}

fn upload_of(api: &Api, object: &Described) -> Option<PendingUpload> {
    let (key, id, _) = parse_name(api.keys.key_of(&object.name)?)?;
    Some(PendingUpload { key: key.to_owned(), upload: id.to_owned(), initiated: Some(object.modified) })
}

/// Returns whether an object belongs to the upload `id` of `key`.
fn is_of(api: &Api, object: &Described, key: &str, id: &str) -> bool {
    let parts = api.keys.key_of(&object.name).and_then(parse_name);
    parts.is_some_and(|(of, at, _)| of == key && at == id)
}

/// Adds an upload, or what one more of its objects says of its beginning. The objects of an upload follow each other.
fn add(uploads: &mut Vec<PendingUpload>, upload: PendingUpload) {
    match uploads.last_mut() {
        Some(last) if last.key == upload.key && last.upload == upload.upload => {
            last.initiated = last.initiated.min(upload.initiated);
        }
        _ => uploads.push(upload),
    }
}

/// Returns the size of the parts on the first page of an upload's objects, or `None` for an upload that no longer exists.
pub(super) async fn uploaded_bytes(api: &Api, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
    const WHAT: &str = "cannot list an upload's parts";
    if !is_id(&upload.upload) {
        return Ok(None);
    }
    let prefix = api.keys.full_prefix(&Upload::new(&upload.key, &upload.upload).directory);
    let page = api.objects_page(WHAT, &prefix, None).await?;
    let ours = page.objects.iter().filter(|object| is_of(api, object, &upload.key, &upload.upload));
    let sizes: Vec<u64> = ours.map(|object| object.size_bytes).collect();
    Ok((!sizes.is_empty()).then(|| LeftBytes {
        bytes: sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size)),
        all: page.next.is_none(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "json-0123456789abcdef0123456789abcdef";

    #[test]
    fn key_and_id_follow_from_a_temporary_objects_name() {
        let upload = Upload::new("run/a b/json-1/x.pt", ID);
        for (name, last) in [
            (upload.begun(), "begun"),
            (upload.part(0), "00001"),
            (upload.part(9_999), "10000"),
            (upload.join(1, 2), "join-1-00002"),
        ] {
            assert_eq!(parse_name(&name), Some(("run/a b/json-1/x.pt", ID, last)));
            assert!(name.starts_with(DIRECTORY));
        }
    }

    #[test]
    fn other_names_are_no_uploads() {
        for name in [
            format!("run/{ID}/begun"),
            format!("{DIRECTORY}{ID}/begun"),
            format!("{DIRECTORY}/{ID}/begun"),
            format!("{DIRECTORY}a/json-short/begun"),
            format!("{DIRECTORY}a/{}/begun", ID.to_uppercase()),
            format!("{DIRECTORY}a"),
            String::new(),
        ] {
            assert_eq!(parse_name(&name), None, "{name}");
        }
    }

    #[test]
    fn the_objects_of_an_upload_are_one_upload_that_began_with_the_first() {
        let at = |seconds| std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let object = |key: &str, seconds| PendingUpload {
            key: key.to_owned(),
            upload: ID.to_owned(),
            initiated: Some(at(seconds)),
        };
        let mut uploads = Vec::new();
        for one in [object("a", 5), object("a", 3), object("b", 4), object("b", 9)] {
            add(&mut uploads, one);
        }
        assert_eq!(uploads, [object("a", 3), object("b", 4)]);
    }
}
