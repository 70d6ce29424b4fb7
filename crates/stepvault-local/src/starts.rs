//! The history of starts of a run, stored in the vault so that it outlives the recorded processes.

use std::time::Duration;

use stepvault_core::codec::{decode, encode};
use stepvault_core::starts::{Start, StartHistory, merged};
use stepvault_core::{Error, ErrorKind, Result, RunName};

use crate::lock::{self, Lock};
use crate::vault::Vault;

const KEY: &str = "starts.json";
const LOCK: &str = "starts.lock";
const TRAINER_LOCK: &str = "trainer.lock";
/// How often a held lock is retried. Its holder writes one small file durably, which takes seconds while a checkpoint
/// is being written to the same disk.
const TRIES: u32 = 400;
const PAUSE: Duration = Duration::from_millis(25);

/// The right to run the trainer of a run beside a vault, held until dropped or until the process ends.
#[derive(Debug)]
pub struct TrainerLock {
    _lock: Lock,
}

impl Vault {
    /// Takes the right to run the trainer of a run. Process numbers do not show a trainer in another container; a lock on
    /// the vault that both see does.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] while another process has it.
    pub fn lock_trainer(&self, run: &RunName) -> Result<TrainerLock> {
        let directory = self.run_directory(run).join("notes");
        self.create_directories(&directory)?;
        let path = directory.join(TRAINER_LOCK);
        let lock = lock::take(&path)?.ok_or_else(|| {
            lock::held("cannot start a second trainer", &path).hint(
                "end the 'stepvault run' that holds it, here or in another container with this vault; two trainers would \
                 write into the same directory",
            )
        })?;
        Ok(TrainerLock { _lock: lock })
    }

    /// Returns the recorded starts, latest last.
    pub fn starts(&self, run: &RunName) -> Result<Vec<Start>> {
        let Some(bytes) = self.read_note(run, KEY)? else {
            return Ok(Vec::new());
        };
        let history: StartHistory = decode(&bytes, KEY)
            .map_err(|error| error.hint("it is ignored, and the next start replaces it"))?;
        Ok(history.starts)
    }

    /// Records a start durably and returns the history.
    pub fn note_start(&self, run: &RunName, start: &Start) -> Result<Vec<Start>> {
        self.change_starts(run, |starts| starts.push(start.clone()))
    }

    /// Updates the record of a start. A start that is no longer recorded is not added again.
    pub fn change_start(
        &self,
        run: &RunName,
        id: &str,
        change: impl FnOnce(&mut Start),
    ) -> Result<Vec<Start>> {
        self.change_starts(run, |starts| {
            if let Some(start) = starts.iter_mut().find(|start| start.id == id) {
                change(start);
            }
        })
    }

    /// Adds earlier starts recorded elsewhere, for a vault on a new disk.
    pub fn adopt_starts(&self, run: &RunName, earlier: Vec<Start>) -> Result<Vec<Start>> {
        self.change_starts(run, |starts| {
            *starts = merged(earlier, std::mem::take(starts));
        })
    }

    /// Several processes may update the history at once, so it has its own lock.
    fn change_starts(&self, run: &RunName, change: impl FnOnce(&mut Vec<Start>)) -> Result<Vec<Start>> {
        let directory = self.run_directory(run).join("notes");
        self.create_directories(&directory)?;
        let path = directory.join(LOCK);
        let mut held = lock::take(&path)?;
        for _ in 0..TRIES {
            if held.is_some() {
                break;
            }
            std::thread::sleep(PAUSE);
            held = lock::take(&path)?;
        }
        let Some(_held) = held else {
            return Err(lock::held("cannot record the start", &path));
        };
        let before = match self.starts(run) {
            Ok(starts) => starts,
            // An unreadable history counts as empty; one that a newer version wrote is not overwritten.
            Err(error) if error.kind() == ErrorKind::Damaged => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut starts = before.clone();
        change(&mut starts);
        let history = StartHistory::of(starts);
        if history.starts != before {
            let bytes = encode(&history)?;
            // Writing a history that cannot be read back would lose all records.
            decode::<StartHistory>(&bytes, KEY)
                .map_err(|error| Error::new(ErrorKind::Failed, "cannot record the start").caused_by(error))?;
            self.write_note(run, KEY, &bytes)?;
        }
        Ok(history.starts)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test damages what it wrote")]
mod tests {
    use stepvault_core::ids::NodeName;
    use stepvault_core::starts::{End, Ending, StartedProgram};
    use stepvault_core::timestamp::Timestamp;

    use super::*;

    fn start(id: &str) -> Start {
        Start {
            id: id.to_owned(),
            who: StartedProgram::Trainer,
            node: NodeName::new("node-0").unwrap(),
            started_at: Timestamp::from_seconds(100),
            launch: None,
            restored: None,
            process: None,
            trainer: None,
            end: None,
        }
    }

    #[test]
    fn starts_are_remembered_in_order_with_their_ends() {
        let place = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(&place.path().join("vault")).unwrap();
        let run = RunName::new("a/b").unwrap();
        assert!(vault.starts(&run).unwrap().is_empty());
        vault.note_start(&run, &start("one")).unwrap();
        vault.note_start(&run, &start("two")).unwrap();
        let end = End { lasted_seconds: 4, how: Ending::Exited(1) };
        vault.change_start(&run, "one", |start| start.end = Some(end)).unwrap();
        let again = Vault::open(vault.root()).unwrap().unwrap();
        let endings: Vec<String> = again.starts(&run).unwrap().iter().map(Start::ending).collect();
        assert_eq!(endings, ["exit 1", "unknown"]);
        let adopted = again.adopt_starts(&run, vec![start("zero"), start("one")]).unwrap();
        let ids: Vec<&str> = adopted.iter().map(|start| start.id.as_str()).collect();
        assert_eq!(ids, ["zero", "one", "two"]);
        assert_eq!(adopted[1].ending(), "exit 1");
    }

    #[test]
    fn a_run_has_one_trainer_and_another_run_its_own() {
        let place = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(&place.path().join("vault")).unwrap();
        let (run, other) = (RunName::new("a").unwrap(), RunName::new("b").unwrap());
        let held = vault.lock_trainer(&run).unwrap();
        assert_eq!(vault.lock_trainer(&run).unwrap_err().kind(), ErrorKind::Held);
        vault.lock_trainer(&other).unwrap();
        drop(held);
        vault.lock_trainer(&run).unwrap();
    }

    #[test]
    fn an_unreadable_history_is_begun_anew_and_a_newer_one_is_left() {
        let place = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(&place.path().join("vault")).unwrap();
        let run = RunName::new("a").unwrap();
        vault.note_start(&run, &start("one")).unwrap();
        vault.write_note(&run, KEY, b"{\"format\":1,").unwrap();
        assert_eq!(vault.starts(&run).unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(vault.note_start(&run, &start("two")).unwrap().len(), 1);
        let newer = b"{\"format\":2,\"starts\":[]}";
        vault.write_note(&run, KEY, newer).unwrap();
        let error = vault.note_start(&run, &start("three")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NewerFormat);
        assert_eq!(vault.read_note(&run, KEY).unwrap().unwrap(), newer);
    }

    #[test]
    fn several_at_once_lose_nothing() {
        let place = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(&place.path().join("vault")).unwrap();
        let run = RunName::new("a").unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (vault, run) = (&vault, &run);
                scope.spawn(move || {
                    for number in 0..5 {
                        vault.note_start(run, &start(&format!("{writer} {number}"))).unwrap();
                    }
                });
            }
        });
        assert_eq!(vault.starts(&run).unwrap().len(), 20);
    }
}
