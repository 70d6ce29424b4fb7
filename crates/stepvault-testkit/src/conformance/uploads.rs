//! Uploads in parts, digests that do not fit, copies.

use stepvault_core::ErrorKind;
use stepvault_core::digest::{DigestAlgorithm, PartDigest};
use stepvault_remote::store::Created;

use super::outcome::{Outcome, Store, text};
use crate::stores::{File, bytes, create, read, slice};

pub(super) async fn an_upload_in_parts_becomes_one_object(
    store: Store,
    algorithm: DigestAlgorithm,
) -> Outcome {
    let directory = &format!("parts/{algorithm}/");
    let key = &format!("{directory}model.safetensors");
    let file = File::by(algorithm, (16 << 20) + 5, 4);
    let upload = file.start(&*store, key).await.map_err(text)?;
    // Whether a store can tell may only show when it is asked.
    let pending = store.pending_uploads(directory).await.map_err(text)?;
    if store.capabilities().lists_pending_uploads {
        ensure!(
            pending.iter().any(|one| one.key == *key && one.upload == upload),
            "it is not pending: {pending:?}"
        );
        let others = store.pending_uploads("none/").await.map_err(text)?;
        ensure!(others.is_empty(), "another prefix has {others:?}");
    }
    let receipts = file.send(&*store, key, &upload).await.map_err(text)?;
    ensure!(store.head(key).await.map_err(text)?.is_none(), "it is visible before it is complete");
    let created = store.complete_upload(key, &upload, &receipts, &file.digest).await.map_err(text)?;
    let Created::Written(written) = created else {
        return Err("a free key was called taken".to_owned());
    };
    ensure!(written.info.size_bytes == file.digest.size_bytes, "the answer says {:?}", written.info);
    let head = store.head(key).await.map_err(text)?.ok_or("no head")?;
    let proven = head.checksum.proves(&file.digest, &file.part_digests());
    ensure!(proven != Some(false), "its own checksum disproves it: {:?}", head.checksum);
    ensure!(read(&*store, key, None).await.map_err(text)? == file.bytes, "other bytes came back");
    let range = (8 << 20) - 3..(8 << 20) + 3;
    let got = read(&*store, key, Some(range.clone())).await.map_err(text)?;
    ensure!(got == slice(&file.bytes, &range), "the seam of two parts is wrong");
    if store.capabilities().lists_pending_uploads {
        let pending = store.pending_uploads(directory).await.map_err(text)?;
        ensure!(pending.is_empty(), "still pending: {pending:?}");
    }
    Ok(())
}

pub(super) async fn an_empty_upload_becomes_an_empty_object(store: Store) -> Outcome {
    let file = File::new(0, 0);
    file.upload(&*store, "parts/empty").await.map_err(text)?;
    ensure!(read(&*store, "parts/empty", None).await.map_err(text)?.is_empty(), "it has bytes");
    Ok(())
}

pub(super) async fn an_upload_never_replaces(store: Store) -> Outcome {
    if !store.capabilities().multipart_is_create_only {
        return Ok(());
    }
    let (key, first, second) = ("parts/taken", bytes(30, 1), File::new((8 << 20) + 1, 2));
    create(&*store, key, &first).await.map_err(text)?;
    ensure!(
        second.upload(&*store, key).await.map_err(text)? == Created::Exists,
        "a taken key was called free"
    );
    ensure!(read(&*store, key, None).await.map_err(text)? == first, "the object was replaced");
    Ok(())
}

pub(super) async fn an_aborted_upload_leaves_nothing(store: Store) -> Outcome {
    let (key, file) = ("aborted/object", File::new((8 << 20) + 1, 5));
    let upload = file.start(&*store, key).await.map_err(text)?;
    let receipts = file.send(&*store, key, &upload).await.map_err(text)?;
    store.abort_upload(key, &upload).await.map_err(text)?;
    store.abort_upload(key, &upload).await.map_err(text)?;
    ensure!(store.head(key).await.map_err(text)?.is_none(), "the object is there");
    let completed = store.complete_upload(key, &upload, &receipts, &file.digest).await;
    ensure!(completed.is_err(), "it could be completed: {completed:?}");
    ensure!(store.head(key).await.map_err(text)?.is_none(), "the object is there after all");
    ensure!(store.pending_uploads("aborted/").await.map_err(text)?.is_empty(), "it is still pending");
    Ok(())
}

pub(super) async fn wrong_digests_are_refused(store: Store, algorithm: DigestAlgorithm) -> Outcome {
    if !store.capabilities().checks_checksums {
        return Ok(());
    }
    let (object, parts) = (&format!("wrong/{algorithm}/object"), &format!("wrong/{algorithm}/parts"));
    let body = bytes(1_000, 1);
    let wrong = PartDigest { size_bytes: body.len() as u64, ..PartDigest::by(algorithm, b"other bytes") };
    let error = store.create(object, body.clone().into(), &wrong).await.err().ok_or("it was accepted")?;
    ensure!(error.kind() == ErrorKind::Damaged, "it was refused as {}", text(error));
    ensure!(store.head(object).await.map_err(text)?.is_none(), "the damaged object is there");
    let upload = store.start_upload(parts, 1_000, algorithm).await.map_err(text)?;
    let sent = store.upload_part(parts, &upload, 0, body.into(), &wrong).await;
    let error = sent.err().ok_or("the part was accepted")?;
    ensure!(error.kind() == ErrorKind::Damaged, "the part was refused as {}", text(error));
    store.abort_upload(parts, &upload).await.map_err(text)
}

pub(super) async fn a_wrong_digest_of_the_whole_is_noticed(
    store: Store,
    algorithm: DigestAlgorithm,
) -> Outcome {
    let key = &format!("wrong/{algorithm}/whole");
    let file = File::by(algorithm, (8 << 20) + 1, 6);
    let upload = file.start(&*store, key).await.map_err(text)?;
    let receipts = file.send(&*store, key, &upload).await.map_err(text)?;
    let mut wrong = file.digest.clone();
    let other = PartDigest::by(algorithm, b"other bytes");
    (wrong.content, wrong.crc32c, wrong.crc64nvme) = (other.content, other.crc32c, other.crc64nvme);
    match store.complete_upload(key, &upload, &receipts, &wrong).await {
        Ok(Created::Written(head)) => {
            let proven = head.checksum.proves(&wrong, &file.part_digests());
            ensure!(proven != Some(true), "a checksum proves what was not sent");
        }
        Ok(Created::Exists) => return Err("a free key was called taken".to_owned()),
        Err(error) => {
            ensure!(error.kind() == ErrorKind::Damaged, "it was refused as {}", text(error));
            store.abort_upload(key, &upload).await.map_err(text)?;
        }
    }
    Ok(())
}

pub(super) async fn copies_keep_bytes_and_proof(store: Store, algorithm: DigestAlgorithm) -> Outcome {
    if !store.capabilities().copies {
        return Ok(());
    }
    let key = |name: &str| format!("copy/{algorithm}/{name}");
    let (small_key, large_key) = (&key("small"), &key("large"));
    let small = File::by(algorithm, 3_000, 7);
    let (body, digest) = &small.parts[0];
    store.create(small_key, body.clone().into(), digest).await.map_err(text)?;
    let large = File::by(algorithm, (16 << 20) + 77, 8);
    large.upload(&*store, large_key).await.map_err(text)?;
    for (from, to, file) in [(small_key, &key("small-2"), &small), (large_key, &key("large-2"), &large)] {
        let created = store.copy(from, to).await.map_err(text)?;
        let Created::Written(written) = created else {
            return Err(format!("the free key {to} was called taken"));
        };
        ensure!(written.info.size_bytes == file.digest.size_bytes, "the answer says {:?}", written.info);
        ensure!(read(&*store, to, None).await.map_err(text)? == file.bytes, "{to} has other bytes");
        let original = store.head(from).await.map_err(text)?.ok_or("no head")?.checksum;
        let copy = store.head(to).await.map_err(text)?.ok_or("no head")?.checksum;
        ensure!(copy == original, "{to} has the checksum {copy:?} and not {original:?}");
    }
    ensure!(store.copy(small_key, large_key).await.map_err(text)? == Created::Exists, "a copy replaced");
    ensure!(read(&*store, large_key, None).await.map_err(text)? == large.bytes, "the object was replaced");
    Ok(())
}

pub(super) async fn copied_parts_are_what_was_asked_for(store: Store, algorithm: DigestAlgorithm) -> Outcome {
    if !store.capabilities().copies_parts {
        return Ok(());
    }
    let (from, key) = (&format!("copy/{algorithm}/parts"), &format!("copy/{algorithm}/parts-2"));
    let file = File::by(algorithm, (16 << 20) + 77, 9);
    file.upload(&*store, from).await.map_err(text)?;
    let upload = file.start(&*store, key).await.map_err(text)?;
    let (mut start, mut receipts) = (0, Vec::new());
    for (index, (body, digest)) in (0..).zip(&file.parts) {
        let other = PartDigest { size_bytes: digest.size_bytes, ..PartDigest::by(algorithm, b"other") };
        let copy = |from: String, digest: PartDigest| {
            let (store, upload) = (&store, &upload);
            async move { store.copy_part(&from, key, upload, index, start, &digest).await }
        };
        // What was copied wrongly, or from nowhere, is copied or sent again under the same number.
        let wrong = copy(from.clone(), other).await;
        ensure!(
            wrong.as_ref().is_err_and(|error| error.kind() == ErrorKind::Damaged),
            "a part with other bytes was taken: {wrong:?}"
        );
        let missing = copy("copy/none".to_owned(), *digest).await;
        ensure!(
            missing.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound),
            "a part was copied from nothing: {missing:?}"
        );
        let copied = if index == 1 {
            store.upload_part(key, &upload, index, body.clone().into(), digest).await
        } else {
            copy(from.clone(), *digest).await
        };
        receipts.push(copied.map_err(text)?);
        start += digest.size_bytes;
    }
    let completed = store.complete_upload(key, &upload, &receipts, &file.digest).await.map_err(text)?;
    ensure!(matches!(completed, Created::Written(_)), "the free key was called taken");
    ensure!(read(&*store, key, None).await.map_err(text)? == file.bytes, "it has other bytes");
    let original = store.head(from).await.map_err(text)?.ok_or("no head")?;
    let copy = store.head(key).await.map_err(text)?.ok_or("no head")?;
    ensure!(
        copy.checksum == original.checksum,
        "the copy has the checksum {:?} and not {:?}",
        copy.checksum,
        original.checksum
    );
    Ok(())
}
