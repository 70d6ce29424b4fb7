//! Takes the checksums that the store keeps of a step's objects, instead of reading their bytes.
//!
//! Taken is only what the store has computed over a whole object, and what can be computed again from ranges of it, as a
//! restore reads them: a CRC-32C or a CRC-64/NVME. Entity tags, MD5 and checksums over those of parts are none of these.

use std::collections::BTreeMap;

use stepvault_core::digest::TrustedChecksum;
use stepvault_core::file_parts::FileParts;
use stepvault_core::remote_settings::ReadBack;
use stepvault_core::{DigestAlgorithm, Error, ErrorKind, RelativePath, Result};
use stepvault_remote::probe::probe;

use super::StepToImport;
use super::write::Imports;
use crate::blocking::in_order;
use crate::tier::measured::guarantees;
use crate::tier::run_remote::RunRemote;

const WHAT: &str = "cannot trust the store's checksums";
const HINT: &str = "import without --trust-store: every byte is read once";

/// The checksum of an object, and the version of the object that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrustedObject {
    pub(super) checksum: TrustedChecksum,
    pub(super) version: String,
}

/// The objects of a step that are not read, by their paths in it.
pub(super) type TrustedObjects = BTreeMap<RelativePath, TrustedObject>;

/// Checks that this kind of store keeps checksums that it has verified.
///
/// # Errors
/// [`ErrorKind::Usage`] for a kind that does not, and for a remote whose settings say not to rely on them.
pub(super) fn ensure_has_checksums(remote: &RunRemote) -> Result<()> {
    let why = if remote.settings.url.scheme.is_directory() {
        "a directory keeps none"
    } else if !remote.store.capabilities().checks_checksums {
        "this kind of store keeps none that it has verified itself"
    } else if remote.settings.read_back == ReadBack::Always {
        "read-back = \"always\" says not to rely on them"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Usage, WHAT).on(remote.store.url()).because(why).hint(HINT))
}

/// Checks that the store verifies the checksums of what is written to it, by a probe or one of the last day.
///
/// # Errors
/// [`ErrorKind::Usage`] when it does not.
pub(super) async fn ensure_verifies(imports: &Imports<'_>, archive: &str) -> Result<()> {
    // S3 keeps a CRC-64/NVME of what has BLAKE3 digests. Google Cloud Storage keeps the CRC-32C in any case.
    let (remote, algorithm) = (imports.remote, DigestAlgorithm::Blake3);
    let found = match imports.vault {
        Some(vault) => guarantees(remote, vault, archive, algorithm).await?,
        None => probe(remote.store.as_ref(), &remote.keys, algorithm).await?,
    };
    if found.returns_checksums && found.checks(algorithm, 1) && found.checks(algorithm, 2) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, WHAT)
        .on(remote.store.url())
        .because("a probe found that it accepts wrong ones, or returns none")
        .hint(HINT))
}

impl StepToImport {
    /// Finds out which objects need not be read: one HEAD for each.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(super) async fn trust_store(&mut self, remote: &RunRemote) -> Result<()> {
        let keys = self.source.imported.file_keys();
        let paths: Vec<RelativePath> =
            self.tree.files().map(|(path, _)| RelativePath::new(path)).collect::<Result<_>>()?;
        let heads = in_order(remote.settings.max_concurrent_requests.max(1), paths, |path| {
            let key = keys.key(&path);
            async move { Ok((path, remote.store.head(&key?).await?)) }
        });
        for (path, head) in heads.await? {
            let Some(head) = head else { continue };
            let Some((checksum, version)) = head.checksum.of_whole().zip(head.info.version) else { continue };
            self.requests = self.requests.saturating_sub(FileParts::of(head.info.size_bytes)?.count().into());
            self.trusted.insert(path, TrustedObject { checksum, version });
        }
        Ok(())
    }

    /// Returns how many of its bytes an import reads.
    pub fn read_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.trusted_bytes())
    }

    /// Returns the bytes of the files of which an import takes the store's checksum; it reads all others.
    pub fn trusted_bytes(&self) -> u64 {
        self.trusted.keys().filter_map(|path| self.tree.file_size_bytes(path.as_str())).sum()
    }

    /// Returns how many of its files are not read.
    pub fn trusted_files(&self) -> u64 {
        self.trusted.len() as u64
    }

    /// Returns the algorithm of its digests, if those of the run are by another one. A CRC-64/NVME comes with BLAKE3 alone.
    pub(super) fn algorithm(&self, of_run: DigestAlgorithm) -> DigestAlgorithm {
        let has_crc64 = |object: &TrustedObject| matches!(object.checksum, TrustedChecksum::Crc64Nvme(_));
        if self.trusted.values().any(has_crc64) { DigestAlgorithm::Blake3 } else { of_run }
    }
}
