//! Derives evidence from measured facts and records.

use stepvault_core::disk_facts::{DirectoryAccess, DirectoryCondition, DirectoryRole};
use stepvault_core::forecast::Taken;
use stepvault_core::room::Room;
use stepvault_core::starts::{Ending, RestartLoopRule, Start, StartedProgram, restart_loop};
use stepvault_core::words;
use stepvault_core::{RunName, Timestamp};

use super::texts::Recogniser;
use super::{Cause, Evidence, Scanner};

/// Fewer free bytes than this count as none: the first blocks of a file and its directory need as much.
const NO_BYTES: u64 = 1 << 20;
/// Fewer free inodes than this count as none.
const NO_INODES: u64 = 8;
/// A file or a start that is this far ahead of the clock was dated by another clock.
const AHEAD_SECONDS: u64 = 120;
/// An upload without progress for this long is stalled.
const STALLED_SECONDS: u64 = 600;
/// Maximum number of starts, the latest ones, whose end is examined.
const MAXIMUM_ENDS: usize = 5;

/// Returns the evidence from a directory; `needs` is the size of the largest step.
pub fn from_place(facts: &DirectoryCondition, needs: Taken) -> Vec<Evidence> {
    let is_for_steps = matches!(facts.role, DirectoryRole::Checkpoints | DirectoryRole::Vault);
    let mut found = Vec::new();
    found.extend(from_access(facts, is_for_steps));
    if let Some(room) = facts.room {
        let needs = if is_for_steps { needs } else { Taken::default() };
        found.extend(from_room(facts, room, needs));
    }
    found
}

fn from_access(facts: &DirectoryCondition, is_for_steps: bool) -> Option<Evidence> {
    let path = &facts.path;
    let is_memory = facts.role == DirectoryRole::SharedMemory;
    let (cause, weight, text) = match facts.access {
        DirectoryAccess::Silent => {
            let text = format!("{path}: its filesystem does not answer");
            (Cause::FilesystemUnreachable, 70, text)
        }
        DirectoryAccess::Missing if facts.role == DirectoryRole::Checkpoints => {
            (Cause::DirectoryMissing, 60, format!("{path} does not exist"))
        }
        DirectoryAccess::Missing if facts.role == DirectoryRole::Temporary => {
            let text = format!("{path}, the directory for temporary files, does not exist");
            (Cause::DirectoryMissing, 30, text)
        }
        DirectoryAccess::ReadOnly if !is_memory => {
            let text = format!("{path} is on a filesystem that is mounted read-only");
            (Cause::ReadOnly, if is_for_steps { 65 } else { 40 }, text)
        }
        DirectoryAccess::Forbidden if !is_memory => {
            let owner = facts.owner.map(|owner| format!("; its owner is user {owner}"));
            let (user, owner) = (facts.user, owner.unwrap_or_default());
            let text = format!("user {user} has no permission to write to {path}{owner}");
            (Cause::PermissionDenied, 50, text)
        }
        DirectoryAccess::Writable
        | DirectoryAccess::Forbidden
        | DirectoryAccess::ReadOnly
        | DirectoryAccess::Missing => return None,
    };
    Some(Evidence::now(cause, weight, text))
}

fn from_room(facts: &DirectoryCondition, room: Room, needs: Taken) -> Vec<Evidence> {
    let path = &facts.path;
    let (bytes, inodes) = match facts.role {
        DirectoryRole::Checkpoints | DirectoryRole::Vault => (Cause::DiskFull, Cause::InodesFull),
        DirectoryRole::Temporary => (Cause::TemporaryDirectoryFull, Cause::TemporaryDirectoryFull),
        DirectoryRole::SharedMemory => (Cause::SharedMemoryFull, Cause::SharedMemoryFull),
    };
    let mut found = Vec::new();
    let free =
        format!("{path}: {} of {} free", words::bytes(room.free_bytes), words::bytes(room.total_bytes));
    // A pseudo filesystem has no bytes at all.
    if room.total_bytes > 0 && room.free_bytes < NO_BYTES.min(room.total_bytes / 10) {
        found.push(Evidence::now(bytes, 60, free));
    } else if room.total_bytes > 0 && room.free_bytes < needs.bytes {
        let text = format!("{free}; the largest step needs {}", words::bytes(needs.bytes));
        found.push(Evidence::now(bytes, 30, text));
    }
    let Some(free) = room.free_inodes else {
        return found;
    };
    let free_inodes = format!("{path}: {free} inodes free");
    if free < NO_INODES {
        found.push(Evidence::now(inodes, 60, free_inodes));
    } else if free < needs.inodes() {
        let text = format!("{free_inodes}; the largest step needs {}", needs.inodes());
        found.push(Evidence::now(inodes, 30, text));
    }
    found
}

/// Returns the evidence from the history of starts. `runs` returns whether a start is still running.
///
/// A loop is detected as of the last start on each node, because it may already be over.
pub fn from_starts(
    history: &[Start],
    run: &RunName,
    rule: RestartLoopRule,
    now: Timestamp,
    scanner: &Scanner,
    runs: &dyn Fn(&Start) -> bool,
) -> Vec<Evidence> {
    let mut found = Vec::new();
    let mut last: Vec<&Start> = Vec::new();
    for start in history.iter().rev() {
        if !last.iter().any(|other| other.node == start.node && other.who == start.who) {
            last.push(start);
        }
    }
    for start in last {
        let looped = restart_loop(history, run, &start.node, start.who, rule, start.started_at);
        found.extend(looped.map(|looped| Evidence::left(Cause::RestartLoop, 60, looped.to_string())));
    }
    let trainers = history.iter().filter(|start| start.who == StartedProgram::Trainer).rev();
    for (age, start) in trainers.take(MAXIMUM_ENDS).enumerate() {
        let recency = 1000 - 200 * u32::try_from(age).unwrap_or(4);
        let ended = from_end(start, scanner, runs(start));
        found.extend(ended.into_iter().map(|piece| piece.earlier(recency)));
    }
    let ahead = history.iter().map(|start| start.started_at.seconds_since(now)).max();
    found.extend(ahead.filter(|ahead| *ahead > AHEAD_SECONDS).map(|ahead| {
        let text = format!("the record of a start is {ahead} s ahead of this machine's clock");
        Evidence::now(Cause::ClockWrong, 40, text)
    }));
    found
}

fn from_end(start: &Start, scanner: &Scanner, runs: bool) -> Vec<Evidence> {
    let at = start.started_at.to_rfc3339();
    let node = &start.node;
    let told = |cause: Cause, weight: u32, why: &str| {
        let text = format!("the trainer that was started at {at} on {node} ended with {why}");
        vec![Evidence::left(cause, weight, text)]
    };
    let Some(end) = &start.end else {
        if runs {
            return Vec::new();
        }
        let text = format!(
            "no record says how the trainer that was started at {at} on {node} ended: the machine, the container or \
             'stepvault run' was killed"
        );
        return vec![Evidence::left(Cause::TakenAway, 25, text)];
    };
    match &end.how {
        Ending::Exited(137) | Ending::Killed(9) => told(
            Cause::OutOfMemory,
            30,
            "SIGKILL, which 'stepvault run' had not sent: the OOM killer sends it, and so does a container that is \
             stopped",
        ),
        Ending::Exited(143) | Ending::Killed(15) => told(Cause::TakenAway, 25, "SIGTERM"),
        Ending::Killed(7) => told(
            Cause::SharedMemoryFull,
            25,
            "SIGBUS, as when shared memory, or the disk below a mapped file, is full",
        ),
        Ending::Exited(_) | Ending::Killed(_) => Vec::new(),
        Ending::Stopped(by) => told(Cause::TakenAway, 20, by),
        Ending::Failed(why) => {
            let what = format!("the trainer could not be started at {at} on {node}");
            recognised(&what, why, scanner)
        }
    }
}

/// Returns the evidence from the unfinished upload of `what`, a step to a remote, whose journal was last written
/// `quiet_seconds` ago and says that it has come as far as `progress`.
pub fn from_upload(what: &str, quiet_seconds: u64, progress: &str) -> Option<Evidence> {
    (quiet_seconds >= STALLED_SECONDS).then(|| {
        let minutes = quiet_seconds / 60;
        let text = format!("the upload of {what} has made no progress for {minutes} min: {progress}");
        Evidence::left(Cause::UploadStalled, 30, text)
    })
}

/// Returns the evidence from a text that the failure left behind, such as an agent's last error; if no text of the
/// table matches, it is evidence of a stalled upload. `what` describes the source of the text.
pub fn from_record(what: &str, text: &str, scanner: &Scanner) -> Vec<Evidence> {
    let mut found = recognised(what, text, scanner);
    if found.is_empty() {
        found.push(Evidence {
            quote: Some(text.to_owned()),
            ..Evidence::left(Cause::UploadStalled, 30, what)
        });
    }
    found
}

/// Returns the evidence from a text of the table that the failure left behind.
fn recognised(what: &str, text: &str, scanner: &Scanner) -> Vec<Evidence> {
    let of_text = |recogniser: &Recogniser| Evidence {
        open: recogniser.open,
        quote: Some(text.to_owned()),
        ..Evidence::left(recogniser.cause, recogniser.weight, what)
    };
    scanner.recognise(text).into_iter().map(of_text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepvault_core::ids::{NodeName, StepId};
    use stepvault_core::starts::End;

    fn start(id: &str, node: &str, at: i64, restored: Option<StepId>) -> Start {
        Start {
            id: id.to_owned(),
            who: StartedProgram::Trainer,
            node: NodeName::new(node).unwrap(),
            started_at: Timestamp::from_seconds(at),
            launch: None,
            restored,
            process: None,
            trainer: None,
            end: None,
        }
    }

    fn ended(start: Start, lasted_seconds: u64, how: Ending) -> Start {
        let end = Some(End { lasted_seconds, how });
        Start { end, ..start }
    }

    const ROOM: Room =
        Room { free_bytes: 10 << 30, total_bytes: 100 << 30, free_inodes: None, total_inodes: None };

    fn place(role: DirectoryRole, room: Room) -> DirectoryCondition {
        DirectoryCondition {
            role,
            path: "/out".to_owned(),
            access: DirectoryAccess::Writable,
            room: Some(room),
            user: 1000,
            owner: Some(0),
        }
    }

    fn told(facts: &DirectoryCondition) -> Vec<(Cause, String)> {
        let needs = Taken { bytes: 1 << 30, files: 19, directories: 1 };
        let found = from_place(facts, needs);
        found.into_iter().map(|piece| (piece.cause, piece.text)).collect()
    }

    fn only(cause: Cause, text: &str) -> Vec<(Cause, String)> {
        vec![(cause, text.to_owned())]
    }

    #[test]
    fn a_place_with_room_speaks_for_nothing() {
        assert_eq!(told(&place(DirectoryRole::Checkpoints, ROOM)), []);
        // /dev/shm may be read-only and small where nobody needs it.
        let shared = DirectoryCondition {
            access: DirectoryAccess::ReadOnly,
            ..place(DirectoryRole::SharedMemory, ROOM)
        };
        assert_eq!(told(&shared), []);
    }

    #[test]
    fn bytes_and_inodes_are_told_apart_on_each_disk() {
        let full = Room { free_bytes: 4096, ..ROOM };
        let no_inodes = Room { free_inodes: Some(0), ..ROOM };
        assert_eq!(
            told(&place(DirectoryRole::Checkpoints, full)),
            only(Cause::DiskFull, "/out: 4.0 KiB of 100.0 GiB free")
        );
        assert_eq!(
            told(&place(DirectoryRole::Vault, no_inodes)),
            only(Cause::InodesFull, "/out: 0 inodes free")
        );
        for room in [full, no_inodes] {
            assert_eq!(told(&place(DirectoryRole::Temporary, room))[0].0, Cause::TemporaryDirectoryFull);
            assert_eq!(told(&place(DirectoryRole::SharedMemory, room))[0].0, Cause::SharedMemoryFull);
        }
        let tight = Room { free_bytes: 1 << 29, free_inodes: Some(10), ..ROOM };
        assert_eq!(
            told(&place(DirectoryRole::Checkpoints, tight)),
            [
                (
                    Cause::DiskFull,
                    "/out: 512.0 MiB of 100.0 GiB free; the largest step needs 1.0 GiB".to_owned()
                ),
                (Cause::InodesFull, "/out: 10 inodes free; the largest step needs 20".to_owned()),
            ]
        );
        assert_eq!(told(&place(DirectoryRole::Temporary, tight)), [], "no step is written there");
    }

    #[test]
    fn rights_and_mounts_are_told_apart() {
        let good = place(DirectoryRole::Checkpoints, ROOM);
        let read_only = DirectoryCondition { access: DirectoryAccess::ReadOnly, ..good.clone() };
        assert_eq!(
            told(&read_only),
            only(Cause::ReadOnly, "/out is on a filesystem that is mounted read-only")
        );
        let foreign = DirectoryCondition { access: DirectoryAccess::Forbidden, ..good.clone() };
        assert_eq!(
            told(&foreign),
            only(
                Cause::PermissionDenied,
                "user 1000 has no permission to write to /out; its owner is user 0"
            )
        );
        let missing = DirectoryCondition { access: DirectoryAccess::Missing, ..good.clone() };
        assert_eq!(told(&missing), only(Cause::DirectoryMissing, "/out does not exist"));
        let hung = DirectoryCondition { access: DirectoryAccess::Silent, ..good };
        assert_eq!(told(&hung), only(Cause::FilesystemUnreachable, "/out: its filesystem does not answer"));
    }

    fn of_starts(history: &[Start], now: i64) -> Vec<(Cause, String)> {
        let rule = RestartLoopRule { starts: 3, within_seconds: 600 };
        let now = Timestamp::from_seconds(now);
        let run = RunName::new("grpo").unwrap();
        let found =
            from_starts(history, &run, rule, now, &Scanner::default(), &|start| start.id == "running");
        found.into_iter().map(|piece| (piece.cause, piece.text)).collect()
    }

    #[test]
    fn a_loop_is_told_also_when_it_is_over() {
        let history: Vec<Start> = (0..3)
            .map(|number| {
                let start = start(&number.to_string(), "node-0", 1000 + 17 * number, None);
                ended(start, 1, Ending::Exited(128))
            })
            .collect();
        let found = of_starts(&history, 1_000_000);
        assert_eq!(
            found,
            only(
                Cause::RestartLoop,
                "restart loop: the trainer of 'grpo' was started 3 times within 10 min on node-0; the last starts \
                 ended with: exit 128, exit 128, exit 128"
            )
        );
    }

    #[test]
    fn ends_speak_for_themselves() {
        let end = |how| of_starts(&[ended(start("a", "node-0", 1000, None), 60, how)], 2000);
        let causes = |how| -> Vec<Cause> { end(how).into_iter().map(|(cause, _)| cause).collect() };
        assert_eq!(causes(Ending::Killed(9)), [Cause::OutOfMemory]);
        assert_eq!(causes(Ending::Exited(137)), [Cause::OutOfMemory]);
        assert_eq!(causes(Ending::Killed(7)), [Cause::SharedMemoryFull]);
        assert_eq!(causes(Ending::stopped("an EC2 spot notice")), [Cause::TakenAway]);
        assert_eq!(causes(Ending::failed("no space is left on its filesystem")), [Cause::DiskFull]);
        assert_eq!(causes(Ending::Exited(0)), []);
        assert_eq!(causes(Ending::Exited(1)), []);
        let gone = of_starts(&[start("a", "node-0", 1000, None)], 2000);
        assert_eq!(gone[0].0, Cause::TakenAway);
        assert_eq!(of_starts(&[start("running", "node-0", 1000, None)], 2000), []);
    }

    #[test]
    fn a_start_in_the_future_tells_of_a_clock() {
        let early = ended(start("a", "node-0", 5000, None), 1, Ending::Exited(0));
        let ahead = "the record of a start is 3000 s ahead of this machine's clock";
        assert_eq!(of_starts(std::slice::from_ref(&early), 2000), only(Cause::ClockWrong, ahead));
        assert_eq!(of_starts(&[early], 4950), []);
    }

    #[test]
    fn an_upload_that_is_quiet_is_stalled() {
        let of = |quiet_seconds| from_upload("step 5 to main", quiet_seconds, "1 of 3 files is there");
        assert_eq!(of(500), None);
        assert_eq!(
            of(720).unwrap().text,
            "the upload of step 5 to main has made no progress for 12 min: 1 of 3 files is there"
        );
    }

    #[test]
    fn a_record_says_why_or_at_least_that_nothing_goes_on() {
        let cause = |text| from_record("the agent's last error", text, &Scanner::default())[0].cause;
        assert_eq!(cause("cannot write: the credentials have expired"), Cause::CredentialsExpired);
        assert_eq!(cause("no answer within 30 seconds"), Cause::UploadStalled);
    }
}
