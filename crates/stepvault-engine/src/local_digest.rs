//! Computes the digests of a sealed step from its own files.

use std::ops::Range;
use std::path::Path;

use stepvault_core::digest::PartHasher;
use stepvault_core::file_parts::FileParts;
use stepvault_core::manifest::{FileEntry, PartManifest};
use stepvault_core::{DigestAlgorithm, Error, Event, Observer, PartDigest, Result, Tier};
use stepvault_local::seal_record::SealedFile;
use stepvault_local::sealed::SealedStep;
use stepvault_local::source::SourceFile;

use crate::memory::Buffer;
use crate::outage::{is_outage, outage};

const SLICE_BYTES: usize = 256 << 10;

/// Returns the step's manifest; if no upload has hashed the sealed files yet, hashes them and stores the result. Only
/// their sizes and times then show that they are what was sealed.
pub fn ensure_manifest(step: &SealedStep, observer: &dyn Observer) -> Result<PartManifest> {
    if let Some(manifest) = step.manifest()? {
        return Ok(manifest);
    }
    let record = step.record();
    observer.warn(format!("{} was sealed here and never uploaded: computing its digests now", record.id));
    let entry = |file: &SealedFile| -> Result<FileEntry> {
        file.entry(&digest_parts(&step.file_path(&file.path), file, record.digest)?)
    };
    let files = record.own_files().into_iter().map(entry);
    let manifest = record.part_manifest(files.collect::<Result<_>>()?);
    match step.save_manifest(&manifest) {
        Ok(()) => {}
        // An upload was faster, or the vault's disk is full or read-only: the digests are valid all the same.
        Err(error) => tracing::debug!(%error, "cannot store the digests"),
    }
    Ok(manifest)
}

/// Returns the digests of the file at `path`, which must match `file`, part by part.
pub(crate) fn digest_parts(
    path: &Path,
    file: &SealedFile,
    algorithm: DigestAlgorithm,
) -> Result<Vec<PartDigest>> {
    let source = SourceFile::open(path, file)?;
    let cut = FileParts::of(file.size_bytes)?;
    let mut digests = Vec::with_capacity(cut.count() as usize);
    for index in 0..cut.count() {
        digests.push(digest_range(&source, cut.range(index), algorithm)?);
    }
    source.check_unchanged()?;
    Ok(digests)
}

/// Returns the digest of a range of an open file.
pub(crate) fn digest_range(
    source: &SourceFile,
    range: Range<u64>,
    algorithm: DigestAlgorithm,
) -> Result<PartDigest> {
    let mut slice = vec![0_u8; SLICE_BYTES];
    let mut hasher = PartHasher::new(algorithm);
    let mut position = range.start;
    while position < range.end {
        let length = usize::try_from(range.end - position).unwrap_or(SLICE_BYTES).min(SLICE_BYTES);
        source.read_at(position, &mut slice[..length])?;
        hasher.update(&slice[..length]);
        position += length as u64;
    }
    Ok(hasher.finish())
}

/// Reads a range of an open file into memory, and hashes it meanwhile.
pub(crate) fn read_and_digest(
    source: &SourceFile,
    offset: u64,
    mut buffer: Buffer,
    algorithm: DigestAlgorithm,
) -> Result<(Buffer, PartDigest)> {
    let mut hasher = PartHasher::new(algorithm);
    // Blocks are small enough to be in the cache when they are hashed.
    buffer.fill(|position, block| {
        source.read_at(offset + position, block)?;
        hasher.update(block);
        Ok(())
    })?;
    Ok((buffer, hasher.finish()))
}

/// Compares the sealed files with the manifest, byte for byte; returns the differences.
pub fn check_local(
    step: &SealedStep,
    manifest: &PartManifest,
    wanted: &dyn Fn(&FileEntry) -> bool,
    observer: &dyn Observer,
) -> Result<Vec<String>> {
    let mut reasons = Vec::new();
    for file in manifest.files.iter().filter(|file| wanted(file)) {
        let Some(sealed) = step.record().file(&file.path) else {
            reasons.push(format!("{} is not in the sealed step", file.path));
            continue;
        };
        match digest_parts(&step.file_path(&sealed.path), sealed, manifest.digest) {
            Ok(parts) => {
                if file.first_difference(&parts).is_some() {
                    reasons.push(format!("{} has different bytes than were saved", file.path));
                }
                observer.on_event(&Event::BytesMoved { tier: &Tier::Local, bytes: file.size_bytes });
            }
            Err(error) if is_outage(&error) => return Err(outage(error)),
            Err(error) => reasons.push(Error::to_string(&error)),
        }
    }
    Ok(reasons)
}
