//! Restores that take turns, and one restore for all ranks of a node: the first one restores, the others wait for it and
//! get its result.
//!
//! Each rank would otherwise read and hash the whole step again, one after another, and could find another step than the
//! rank before it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, Record, decode, encode};
use stepvault_core::starts::Process;
use stepvault_core::{Clock as _, Error, ErrorKind, Result, Sha256Digest, Timestamp};

use crate::clock::SystemClock;
use crate::durable;
use crate::lock::{self, Lock};
use crate::process;
use crate::vault::Vault;

const LOCK: &str = "rank-restore.lock";
const RESULT: &str = "rank-restore.json";
const MAX_RESULT_BYTES: u64 = 16 << 20;
/// How long a result counts for a rank that has not waited for it. Ranks of one start ask within seconds of each other; a
/// process that asks later may be another one, and finds what is newest then.
const COUNTS_FOR: Duration = Duration::from_mins(1);

/// The turn of one rank to restore, for as long as this value lives or until the process ends.
#[derive(Debug)]
pub struct RankTurn {
    _lock: Lock,
    result: PathBuf,
    request: Sha256Digest,
    /// The rank and its parent, which started all ranks of the node. `None` if the process that restores is no rank, or
    /// the system does not show them.
    rank: Option<(Process, Process)>,
}

/// What a rank has restored, and for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RankResult {
    document: String,
    finished_at: Timestamp,
    format: u32,
    launcher: Process,
    ranks: Vec<Process>,
    request: Sha256Digest,
}

impl Record for RankResult {
    const WHAT: &'static str = "result of a rank's restore";
}

/// Checks that a rank's process exists.
///
/// # Errors
/// [`ErrorKind::Usage`] when it does not.
pub fn check_rank(rank: u32) -> Result<()> {
    if Path::new(&format!("/proc/{rank}")).exists() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, "no such process")
        .on(rank)
        .hint("give the process ID of the rank that calls the restore"))
}

impl RankTurn {
    /// Takes the turn of a process, which is `rank` if it is one; `None` while another process has it. `request` is what
    /// is to be restored, and where. Blocks.
    ///
    /// # Errors
    /// When the vault cannot be written.
    pub fn take(vault: &Vault, request: &str, rank: Option<u32>) -> Result<Option<Self>> {
        let Some(lock) = lock::take(&vault.root().join(LOCK))? else {
            return Ok(None);
        };
        Ok(Some(Self {
            _lock: lock,
            result: vault.root().join(RESULT),
            request: Sha256Digest::of(request.as_bytes()),
            rank: rank.and_then(|rank| process::identify(rank).zip(process::parent(rank))),
        }))
    }

    /// Returns the result of another rank, if it is one for this rank too: the same request, from a process with the
    /// same parent, finished while this one `waited` or shortly before. All that have got it still run, and this rank is
    /// none of them: a later start of the job, and a rank that restores a second time, find what is newest then. Blocks.
    ///
    /// # Errors
    /// When the result cannot be read or written.
    pub fn result_of_another(&self, waited: Duration) -> Result<Option<String>> {
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
        let now = SystemClock.now();
        let is_recent = found.finished_at <= now
            && now.seconds_since(found.finished_at) <= (waited + COUNTS_FOR).as_secs();
        let is_for_this_rank = is_recent
            && (&found.request, &found.launcher) == (&self.request, launcher)
            && found.ranks.iter().all(|other| other != rank && process::is_running(other));
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
            finished_at: SystemClock.now(),
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
    use stepvault_testkit::process::TestProcess;

    use super::*;

    /// L4, and that it is the newest: what an earlier start restored may be older than what is durable now.
    #[test]
    fn a_result_is_for_the_other_ranks_of_the_same_start_alone() {
        let place = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(&place.path().join("vault")).unwrap();
        let (first_rank, second_rank, third_rank) =
            (TestProcess::idle(), TestProcess::idle(), TestProcess::idle());
        let [first, second, third] = [&first_rank, &second_rank, &third_rank].map(TestProcess::id);
        let take = |rank, request| RankTurn::take(&vault, request, Some(rank)).unwrap();

        let turn = take(first, "newest").unwrap();
        assert!(take(second, "newest").is_none(), "it waits");
        assert_eq!(turn.result_of_another(Duration::ZERO).unwrap(), None);
        turn.finish("step 1".to_owned()).unwrap();

        // Each of them gets it once.
        let result = |rank, request| {
            let turn = take(rank, request).unwrap();
            turn.result_of_another(Duration::ZERO).unwrap()
        };
        assert_eq!(result(second, "step 7"), None, "it asks for another step");
        assert_eq!(result(second, "newest").as_deref(), Some("step 1"));
        assert_eq!(result(second, "newest"), None);
        assert_eq!(result(first, "newest"), None);
        let no_rank = RankTurn::take(&vault, "newest", None).unwrap().unwrap();
        assert_eq!(no_rank.result_of_another(Duration::ZERO).unwrap(), None);
        drop(no_rank);
        // A process with another parent.
        assert_eq!(result(std::process::id(), "newest"), None);
        // One of the ranks has ended: what comes now is a later start.
        drop(second_rank);
        assert_eq!(result(third, "newest"), None);

        take(third, "newest").unwrap().finish("step 2".to_owned()).unwrap();
        assert_eq!(result(first, "newest").as_deref(), Some("step 2"));

        let path = vault.root().join(RESULT);
        let change_age = |seconds: i64| {
            let mut found: RankResult = decode(&std::fs::read(&path).unwrap(), RESULT).unwrap();
            found.finished_at = Timestamp::from(std::time::SystemTime::now());
            found.finished_at.seconds -= seconds;
            found.ranks.truncate(1);
            std::fs::write(&path, encode(&found).unwrap()).unwrap();
        };
        change_age(90);
        assert_eq!(result(first, "newest"), None, "it is from before");
        let turn = take(first, "newest").unwrap();
        let waited = turn.result_of_another(Duration::from_mins(1)).unwrap();
        drop(turn);
        assert_eq!(waited.as_deref(), Some("step 2"));
        change_age(-90);
        assert_eq!(result(first, "newest"), None, "the clock was set back");
        std::fs::write(&path, "{").unwrap();
        assert_eq!(result(first, "newest"), None, "it is no result");
        drop(first_rank);
        assert_eq!(check_rank(first).unwrap_err().kind(), ErrorKind::Usage);
        check_rank(std::process::id()).unwrap();
    }
}
