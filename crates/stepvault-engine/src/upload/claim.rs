//! Begins a step on a remote by its claim, unless the remote has the same step already.

use std::collections::BTreeMap;

use stepvault_core::codec::{FORMAT, sha256_of};
use stepvault_core::commit::Commit;
use stepvault_core::launch::LaunchName;
use stepvault_core::manifest::FileEntry;
use stepvault_core::records::Claim;
use stepvault_core::{Error, ErrorKind, RelativePath, Result, Sha256Digest};
use stepvault_local::compare::has_bytes_of_entries;
use stepvault_local::seal_record::SealRecord;
use stepvault_local::sealed::{SealedStep, UploadState};

use super::origin::{Origin, SourceStep};
use super::session::UploadSession;
use crate::blocking::blocking;
use crate::content::record_matches_manifest;
use crate::outage::is_outage;
use crate::tier::catalog::{read_manifests, read_part_manifest};
use crate::tier::removed::ensure_likely_not_removed;
use crate::tier::step_state::is_durable_on;
use crate::verify::CommittedParts;

impl UploadSession {
    /// Begins a step on this remote: records which nodes make up the step and which launch it belongs to, or checks the
    /// claim of another node. Returns `false` if the step is durable there: it is committed with the same files.
    ///
    /// A claim is older than everything else of a step and is removed after its commit. Where the store refuses to
    /// overwrite, a step whose claim this call creates has no commit, so that one request is enough. A step that was
    /// removed meanwhile has a claim again then, until gc finds it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when this step was begun or committed by different nodes, under a different name, in a
    /// different launch or with different files; [`ErrorKind::Refused`] when it was removed.
    pub(super) async fn claim_unless_durable(&self, origin: &Origin) -> Result<bool> {
        let record = origin.record();
        let claim = Claim {
            format: FORMAT,
            run: record.run.clone(),
            id: record.id,
            name: record.name.clone(),
            nodes: record.nodes(),
            launch: record.launch.clone(),
        };
        let key = self.remote.keys.claim(record.id);
        let not_removed = ensure_likely_not_removed(&self.remote, record.id);
        let (written, committed, not_removed) = if self.guarantees.honours_create_only {
            let (written, not_removed) = tokio::join!(self.remote.write_record(&key, &claim), not_removed);
            let committed = match &written {
                Ok(written) if written.is_new() => Ok(false),
                // Nothing else would be answered either. A writer that has only read access still learns that the step is durable.
                Err(error) if error.kind() == ErrorKind::Unreachable => Err(error.clone()),
                _ => self.confirm_committed(origin).await,
            };
            (Some(written), committed, not_removed)
        } else {
            let (committed, not_removed) = tokio::join!(self.confirm_committed(origin), not_removed);
            (None, committed, not_removed)
        };
        match committed {
            Ok(true) => return Ok(false),
            Ok(false) => not_removed?,
            // Of a removed step, some objects may be gone before its commit.
            Err(error) => {
                return Err(not_removed.err().filter(|found| !is_outage(found)).unwrap_or(error));
            }
        }
        if let Origin::Sealed(sealed) = origin {
            self.warn_if_lost(sealed).await?;
        }
        let written = match written {
            Some(written) => written?,
            None => self.remote.write_record(&key, &claim).await?,
        };
        match self.prove_record(written).await {
            Ok(()) => Ok(true),
            Err(error) => Err(self.claim_fault(record, &key, &claim, error).await),
        }
    }

    /// Returns whether the step is committed on this remote with the same files: proves them again, and records it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the step and attempt hold different files; [`ErrorKind::Damaged`] when the files
    /// are no longer those that were committed.
    async fn confirm_committed(&self, origin: &Origin) -> Result<bool> {
        let key = self.remote.keys.commit(origin.id());
        let Some((commit, bytes)) = self.remote.read_record::<Commit>(&key).await? else {
            return Ok(false);
        };
        match origin {
            Origin::Sealed(sealed) => self.confirm_own_part(sealed, &commit, &bytes).await?,
            Origin::Remote(step) if self.is_copy_of(&commit, step).await? => {
                CommittedParts::all(&self.remote, &commit, &self.observer).ensure_durable().await?;
            }
            Origin::Remote(_) => {
                return Err(self.conflict(&key, origin.id(), "it has different files").name_taken());
            }
        }
        Ok(true)
    }

    /// Returns whether a step of this remote has the records that a copy of another one has here. A file that has only a
    /// checksum there has digests here.
    async fn is_copy_of(&self, commit: &Commit, step: &SourceStep) -> Result<bool> {
        if step.commit.trusted_files() == 0 {
            return Ok(step.commit == *commit);
        }
        let manifests = read_manifests(&self.remote, commit).await?;
        let files = manifests.iter().flat_map(|manifest| &manifest.files);
        let known: BTreeMap<&RelativePath, &FileEntry> = files.map(|file| (&file.path, file)).collect();
        let digests_of = |path: &RelativePath| known.get(path)?.digests().cloned();
        Ok(step.completed(digests_of).is_ok_and(|(completed, _)| *completed == *commit))
    }

    async fn confirm_own_part(&self, sealed: &SealedStep, commit: &Commit, bytes: &[u8]) -> Result<()> {
        let record = sealed.record();
        let key = self.remote.keys.commit(record.id);
        let conflict = |why: &str| self.conflict(&key, record.id, why).name_taken();
        let part = commit.parts.iter().find(|part| part.node == record.node).ok_or_else(|| {
            conflict("it was committed without this node's part").hint(
                "declare the nodes that write a step together, with --nodes or nodes = in the configuration",
            )
        })?;
        let manifest = read_part_manifest(&self.remote, commit, part).await?;
        if !record_matches_manifest(record, &manifest) {
            return Err(conflict("it has different files"));
        }
        // Equal sizes and times prove nothing: the digests decide.
        let (step, committed) = (sealed.clone(), part.manifest_sha256);
        let is_same = blocking(move || match step.manifest()? {
            Some(known) => Ok(sha256_of(&known)? == committed),
            None if has_bytes_of_entries(&manifest.files, &step.checkpoint_path(), manifest.shape)? => {
                step.save_manifest(&manifest).map(|()| true)
            }
            None => Ok(false),
        });
        if !is_same.await? {
            return Err(conflict("its files have different digests"));
        }
        // Each node proves its own part: if every node proved all parts, that would take far too many requests.
        CommittedParts::all(&self.remote, commit, &self.observer).only(part).ensure_durable().await?;
        self.save_state(sealed, UploadState::Durable, Some(Sha256Digest::of(bytes))).await.map(drop)
    }

    /// Warns of a step that the vault has recorded as durable here and that the remote does not have any more.
    async fn warn_if_lost(&self, sealed: &SealedStep) -> Result<()> {
        let (step, remote) = (sealed.clone(), self.remote.clone());
        if blocking(move || is_durable_on(&step, &remote)).await? {
            let (id, name) = (sealed.id(), self.remote.name());
            self.observer.warn(format!(
                    "{id} was durable on {name} and is gone from it; was it restored from an older copy? It is uploaded again"
                ));
        }
        Ok(())
    }

    /// Returns what is wrong with a step's claim on the remote: it is not the one of this node's step, if `error` is a
    /// conflict.
    async fn claim_fault(&self, record: &SealRecord, key: &str, claim: &Claim, error: Error) -> Error {
        if error.kind() != ErrorKind::Conflict {
            return error;
        }
        let found = match self.remote.read_record::<Claim>(key).await {
            Ok(Some((found, _))) => found,
            Ok(None) => return error,
            Err(error) => return error,
        };
        // Nodes that are declared differently would not agree on another attempt either.
        let is_declared_alike = found.nodes == claim.nodes || !record.is_one_of_several();
        let (why, hint) = if found.nodes != claim.nodes {
            (
                format!(
                    "it was begun as a step of {}, but on this node it is a step of {}",
                    found.nodes, claim.nodes
                ),
                "declare the same nodes everywhere, with --nodes or nodes = in the configuration",
            )
        } else if found.launch != claim.launch {
            let name = |launch: &Option<LaunchName>| {
                launch.as_ref().map_or_else(|| "no launch".to_owned(), |launch| format!("launch '{launch}'"))
            };
            (
                format!(
                    "it was begun in {}, but on this node it belongs to {}",
                    name(&found.launch),
                    name(&claim.launch)
                ),
                "set the same STEPVAULT_LAUNCH on all nodes, or push it as a new attempt",
            )
        } else {
            (
                format!(
                    "it was begun under the name '{}', but on this node its name is '{}'",
                    found.name, claim.name
                ),
                "push it as a new attempt with --attempt",
            )
        };
        let conflict = self.conflict(key, record.id, &why).hint(hint);
        if is_declared_alike { conflict.name_taken() } else { conflict }
    }
}
