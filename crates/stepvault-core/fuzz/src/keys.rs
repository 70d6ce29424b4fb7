//! Keys as a store lists them: what is recognised as ours may be deleted.

use stepvault_core::ids::{Attempt, NodeName, RECORDS_DIRECTORY, RunName, Step, StepId};
use stepvault_core::keys::{KeyKind, ResumePoint, RunKeys, check_step_name};
use stepvault_core::path::RelativePath;

/// A run in the first line and a key in the second; and the key behind the run's own prefix.
pub fn check(text: &str) {
    let (run, key) = text.split_once('\n').unwrap_or(("grpo/checkpoints", text));
    let Ok(run) = RunName::new(run) else { return };
    let keys = RunKeys::new(run);
    check_one(&keys, key);
    check_one(&keys, &format!("{}{key}", keys.prefix()));
    check_one(&keys, &format!("{}{RECORDS_DIRECTORY}/{key}", keys.prefix()));
}

/// Whatever is recognised is spelled as we spell it.
fn check_one(keys: &RunKeys, key: &str) {
    let Some(kind) = keys.classify(key) else { return };
    let spelled = match kind {
        KeyKind::Marker => keys.marker(),
        KeyKind::Commit(id) => keys.commit(id),
        KeyKind::Part(id, node) => keys.part(id, &node),
        KeyKind::Claim(id) => keys.claim(id),
        KeyKind::Launch(attempt) => keys.launch(attempt),
        KeyKind::Staged(attempt, node) => keys.staged(attempt, &node),
        KeyKind::Follower(attempt, node) => keys.follower(attempt, &node),
        KeyKind::Resume(point) => keys.resume(point),
        KeyKind::Damaged(id) => keys.damaged(id),
        KeyKind::Pin(id) => keys.pin(id),
        KeyKind::Tombstone(id) => keys.tombstone(id),
        KeyKind::Lease(id, holder) => keys.lease(id, &holder),
        KeyKind::PruneLease(holder) => keys.prune_lease(&holder),
        KeyKind::WriterLease(vault) => keys.writer_lease(&vault),
        KeyKind::GcRecord => keys.gc_record(),
        KeyKind::Drain(node) => keys.drain(&node),
        KeyKind::GivenUp(node) => keys.given_up(&node),
        KeyKind::Starts(node) => keys.starts(&node),
        KeyKind::Probe(name) => keys.probe(&name),
        KeyKind::Retired(number) => keys.retired(number),
        KeyKind::Data { id, name, path } => {
            check_step_name(&name).unwrap();
            format!("{}{path}", keys.data_prefix(&name, id))
        }
    };
    assert_eq!(spelled, key);
    assert!(key.starts_with(&keys.prefix()));
}

/// One of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let keys = RunKeys::new(RunName::new("a/b").unwrap());
    let id = StepId::new(Attempt::new(2).unwrap(), Step::new(100).unwrap());
    let node = NodeName::new("node-0").unwrap();
    let point = ResumePoint { attempt: id.attempt, round: 3 };
    let path = RelativePath::new("x/model.pt").unwrap();
    [
        keys.marker(),
        keys.commit(id),
        keys.part(id, &node),
        keys.claim(id),
        keys.launch(id.attempt),
        keys.staged(id.attempt, &node),
        keys.resume(point),
        keys.damaged(id),
        keys.pin(id),
        keys.tombstone(id),
        keys.lease(id, "0a"),
        keys.prune_lease("0a"),
        keys.gc_record(),
        keys.drain(&node),
        keys.starts(&node),
        keys.probe("0123456789abcdef0123456789abcdef-whole"),
        keys.data("step_100", id, &path).unwrap(),
    ]
    .map(|key| format!("a/b\n{key}").into_bytes())
    .to_vec()
}
