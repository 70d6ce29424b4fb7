//! One restore for all ranks of a node: the first one restores, the others wait for it and take over its result.
//!
//! Each rank would otherwise read and hash the whole step again, one after another, and could find another step than the
//! rank before it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, Record, decode, encode};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::starts::Process;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::lock::{self, Lock};
use crate::process;
use crate::vault::Vault;

const LOCK: &str = "rank-restore.lock";
const RESULT: &str = "rank-restore.json";
const MAX_RESULT_BYTES: u64 = 16 << 20;

/// The turn of one rank to restore, for as long as this value lives or until the process ends.
#[derive(Debug)]
pub struct RankTurn {
    _lock: Lock,
    result: PathBuf,
    request: Sha256Digest,
    /// The rank and its parent, which started all ranks of the node. `None` if the system does not show them.
    rank: Option<(Process, Process)>,
}

/// What a rank has restored, and for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RankResult {
    document: String,
    format: u32,
    launcher: Process,
    ranks: Vec<Process>,
    request: Sha256Digest,
}

impl Record for RankResult {
    const WHAT: &'static str = "result of a rank's restore";

    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl RankTurn {
    /// Takes the turn of the rank with this process ID; `None` while another rank has it. `request` is what is to be
    /// restored, and where. Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when there is no such process.
    pub fn take(vault: &Vault, request: &str, rank: u32) -> Result<Option<Self>> {
        if !Path::new(&format!("/proc/{rank}")).exists() {
            return Err(Error::new(ErrorKind::Usage, "no such process")
                .on(rank)
                .hint("give the process ID of the rank that calls the restore"));
        }
        let Some(lock) = lock::take(&vault.root().join(LOCK))? else {
            return Ok(None);
        };
        Ok(Some(Self {
            _lock: lock,
            result: vault.root().join(RESULT),
            request: Sha256Digest::of(request.as_bytes()),
            rank: process::identify(rank).zip(process::parent(rank)),
        }))
    }

    /// Returns the result of another rank, if it is one for this rank too: the same request, from a process with the
    /// same parent. All that took it over still run, and this rank is none of them: a later start of the job, and a rank
    /// that restores a second time, find what is newest then. Blocks.
    ///
    /// # Errors
    /// When the result cannot be read or written.
    pub fn result_of_another(&self) -> Result<Option<String>> {
        let Some((rank, launcher)) = &self.rank else {
            return Ok(None);
        };
        let Some(bytes) = durable::read_bounded(&self.result, MAX_RESULT_BYTES)? else {
            return Ok(None);
        };
        // One of another version is none.
        let Ok(mut found) = decode::<RankResult>(&bytes, RESULT) else {
            return Ok(None);
        };
        let is_for_this_rank = (&found.request, &found.launcher) == (&self.request, launcher)
            && found
                .ranks
                .iter()
                .all(|other| other != rank && process::is_running(other));
        if !is_for_this_rank {
            return Ok(None);
        }
        found.ranks.push(rank.clone());
        durable::replace(&self.result, &encode(&found)?)?;
        Ok(Some(found.document))
    }

    /// Keeps the result for the other ranks. Blocks.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(self, document: String) -> Result<()> {
        let Some((rank, launcher)) = self.rank else {
            return Ok(());
        };
        let result = RankResult {
            document,
            format: FORMAT,
            launcher,
            ranks: vec![rank],
            request: self.request,
        };
        durable::replace(&self.result, &encode(&result)?)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn rank() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    /// L4, and that it is the newest: what an earlier start restored may be older than what is durable now.
    #[test]
    fn a_result_is_for_the_other_ranks_of_the_same_start_alone() {
        let place = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(&place.path().join("vault")).unwrap();
        let mut ranks = [rank(), rank(), rank()];
        let [first, second, third] = [ranks[0].id(), ranks[1].id(), ranks[2].id()];
        let take = |rank, request| RankTurn::take(&vault, request, rank).unwrap();

        let turn = take(first, "newest").unwrap();
        assert!(take(second, "newest").is_none(), "it waits");
        assert_eq!(turn.result_of_another().unwrap(), None);
        turn.finish("step 1".to_owned()).unwrap();

        // Each of them may take it over once.
        let result = |rank, request| take(rank, request).unwrap().result_of_another().unwrap();
        assert_eq!(result(second, "step 7"), None, "it asks for another step");
        assert_eq!(result(second, "newest").as_deref(), Some("step 1"));
        assert_eq!(result(second, "newest"), None);
        assert_eq!(result(first, "newest"), None);
        // A process with another parent.
        assert_eq!(result(std::process::id(), "newest"), None);
        // One of the ranks has ended: what comes now is a later start.
        ranks[1].kill().unwrap();
        ranks[1].wait().unwrap();
        assert_eq!(result(third, "newest"), None);

        take(third, "newest")
            .unwrap()
            .finish("step 2".to_owned())
            .unwrap();
        assert_eq!(result(first, "newest").as_deref(), Some("step 2"));
        std::fs::write(vault.root().join(RESULT), "{").unwrap();
        assert_eq!(result(first, "newest"), None, "it is no result");
        for rank in &mut ranks {
            let _ = rank.kill();
            rank.wait().unwrap();
        }
        let error = RankTurn::take(&vault, "newest", first).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
