//! The key layout of a remote, relative to the remote's prefix.

use crate::digest::is_hex;
use crate::ids::RECORDS_DIRECTORY;
use crate::{Attempt, Error, ErrorKind, NodeName, RelativePath, Result, RunName, StepId};

/// Maximum length of an object key in bytes on S3 and GCS.
pub const MAX_KEY_BYTES: usize = 1024;

/// The directory of the commits; one LIST of them enumerates every step.
pub const COMMITS: &str = "commits";
/// The directory of the part manifests.
pub const PARTS: &str = "parts";
/// The directory of the claims.
pub const CLAIMS: &str = "attempts";
/// The directory of the launch records.
pub const LAUNCHES: &str = "launches";
/// The directory of the damaged records.
pub const DAMAGED: &str = "damaged";
/// The directory of the pins.
pub const PINS: &str = "pins";
/// The directory of the tombstones.
pub const TOMBSTONES: &str = "tombstones";
/// The directory of the records of retired steps.
pub const RETIRED: &str = "retired";
/// The directory of the leases of readers and pruners.
pub const LEASES: &str = "leases";
/// The directory of the leases of jobs that write the run exclusively.
pub const WRITER_LEASES: &str = "writers";
/// The directory of the records of drains, by node.
pub const DRAINS: &str = "drains";
/// The directory of the records of given-up steps, by node.
pub const GIVEN_UP: &str = "given-up";
/// The directory of the histories of starts, by node.
pub const STARTS: &str = "starts";

/// The key layout of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunKeys {
    run: RunName,
}

/// The kind of a key of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// `.stepvault/vault.json`
    Marker,
    /// A commit.
    Commit(StepId),
    /// A node's part manifest.
    Part(StepId, NodeName),
    /// A claim: the upload of this step was started.
    Claim(StepId),
    /// The launch that an attempt belongs to.
    Launch(Attempt),
    /// A node's record of the parts that it has sealed, in an attempt.
    Staged(Attempt, NodeName),
    /// A node's record that it follows the decision of an attempt.
    Follower(Attempt, NodeName),
    /// The step from which the nodes of an attempt resume.
    Resume(ResumePoint),
    /// A step that nodes agreed on and that one of them found damaged.
    Damaged(StepId),
    /// A pin.
    Pin(StepId),
    /// A tombstone: the name of the step is never used again.
    Tombstone(StepId),
    /// A record of removed steps whose tombstones are gone; each includes what lower-numbered records contain.
    Retired(u64),
    /// A reader's lease on a step, with the id of its holder.
    Lease(StepId, String),
    /// A pruner's lease.
    PruneLease(String),
    /// The lease of a job that writes the run exclusively, with the identity of its vault.
    WriterLease(String),
    /// The record of the last gc.
    GcRecord,
    /// The record of what a node's last drain did not finish.
    Drain(NodeName),
    /// The steps that a node gave up for lack of space.
    GivenUp(NodeName),
    /// A node's history of starts.
    Starts(NodeName),
    /// An object that was written to probe a store and was left behind.
    Probe(String),
    /// A data object: its step, the name of the checkpoint, and the path inside it.
    Data {
        /// The step.
        id: StepId,
        /// The checkpoint's directory or file name.
        name: String,
        /// The path inside the checkpoint.
        path: RelativePath,
    },
}

impl KeyKind {
    /// Returns the step that the object belongs to.
    pub fn step_id(&self) -> Option<StepId> {
        match self {
            Self::Commit(id)
            | Self::Part(id, _)
            | Self::Claim(id)
            | Self::Damaged(id)
            | Self::Pin(id)
            | Self::Tombstone(id)
            | Self::Lease(id, _)
            | Self::Data { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Returns the node whose record it is.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Self::Part(_, node)
            | Self::Staged(_, node)
            | Self::Follower(_, node)
            | Self::Drain(node)
            | Self::GivenUp(node)
            | Self::Starts(node) => Some(node),
            _ => None,
        }
    }
}

/// A decision of the nodes of a launch on the step from which they resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumePoint {
    /// The launch's attempt.
    pub attempt: Attempt,
    /// 0, increased when the decision before it turns out not to be possible: a node found the step damaged, or it is
    /// known what came of a step that still had to be uploaded.
    pub round: u32,
}

impl RunKeys {
    /// Returns the layout of `run`.
    pub fn new(run: RunName) -> Self {
        Self { run }
    }

    /// Returns the run.
    pub fn run(&self) -> &RunName {
        &self.run
    }

    /// Returns the prefix of all keys of the run.
    pub fn prefix(&self) -> String {
        format!("{}/", self.run)
    }

    fn record(&self, rest: &str) -> String {
        format!("{}/{RECORDS_DIRECTORY}/{rest}", self.run)
    }

    /// Returns the prefix of the records in a directory, such as [`COMMITS`].
    pub fn all(&self, directory: &str) -> String {
        self.record(&format!("{directory}/"))
    }

    /// Returns the key of the marker object.
    pub fn marker(&self) -> String {
        self.record("vault.json")
    }

    /// Returns the key of a step's commit.
    pub fn commit(&self, id: StepId) -> String {
        self.record(&format!("{COMMITS}/{}.json", id.label()))
    }

    /// Returns the prefix of the part manifests of one step.
    pub fn step_parts_prefix(&self, id: StepId) -> String {
        self.record(&format!("{PARTS}/{}/", id.label()))
    }

    /// Returns the key of a node's part manifest.
    pub fn part(&self, id: StepId, node: &NodeName) -> String {
        self.record(&format!("{PARTS}/{}/{node}.json", id.label()))
    }

    /// Returns the key of the claim on a step, which is written before its first byte.
    pub fn claim(&self, id: StepId) -> String {
        self.record(&format!("{CLAIMS}/{}.json", id.label()))
    }

    /// Returns the key of an attempt's launch record.
    pub fn launch(&self, attempt: Attempt) -> String {
        self.record(&format!("{LAUNCHES}/a{attempt}.json"))
    }

    /// Returns the prefix of the records of the nodes that start in an attempt.
    pub fn staged_prefix(&self, attempt: Attempt) -> String {
        self.record(&format!("staged/a{attempt}/"))
    }

    /// Returns the key of the record with which a node starts in an attempt, of the parts that it has sealed.
    pub fn staged(&self, attempt: Attempt, node: &NodeName) -> String {
        self.record(&format!("staged/a{attempt}/{node}.json"))
    }

    /// Returns the prefix of the records of the nodes that follow the decision of an attempt.
    pub fn followers_prefix(&self, attempt: Attempt) -> String {
        self.record(&format!("followers/a{attempt}/"))
    }

    /// Returns the key of the record with which a node follows the decision of an attempt.
    pub fn follower(&self, attempt: Attempt, node: &NodeName) -> String {
        self.record(&format!("followers/a{attempt}/{node}.json"))
    }

    /// Returns the key of the decision on the step from which the nodes of an attempt resume.
    pub fn resume(&self, point: ResumePoint) -> String {
        let ResumePoint { attempt, round } = point;
        self.record(&format!("resumes/a{attempt}/{round}.json"))
    }

    /// Returns the key of the damaged record of a step.
    pub fn damaged(&self, id: StepId) -> String {
        self.record(&format!("{DAMAGED}/{}.json", id.label()))
    }

    /// Returns the key of a step's pin.
    pub fn pin(&self, id: StepId) -> String {
        self.record(&format!("{PINS}/{}.json", id.label()))
    }

    /// Returns the key of a step's tombstone.
    pub fn tombstone(&self, id: StepId) -> String {
        self.record(&format!("{TOMBSTONES}/{}.json", id.label()))
    }

    /// Returns the key of a record of retired steps.
    pub fn retired(&self, number: u64) -> String {
        self.record(&format!("{RETIRED}/{number}.json"))
    }

    /// Returns the key of a reader's lease on a step. `holder` is one plain segment.
    pub fn lease(&self, id: StepId, holder: &str) -> String {
        self.record(&format!("{LEASES}/{}/{holder}.json", id.label()))
    }

    /// Returns the key of a pruner's lease. `holder` is one plain segment.
    pub fn prune_lease(&self, holder: &str) -> String {
        self.record(&format!("{LEASES}/prune/{holder}.json"))
    }

    /// Returns the key of the lease of a job that writes the run exclusively. `vault` is the identity under which its
    /// vault holds leases.
    pub fn writer_lease(&self, vault: &str) -> String {
        self.record(&format!("{WRITER_LEASES}/{vault}.json"))
    }

    /// Returns the key of the record of the last gc.
    pub fn gc_record(&self) -> String {
        self.record("gc/last.json")
    }

    /// Returns the key of the record of a node's last drain.
    pub fn drain(&self, node: &NodeName) -> String {
        self.record(&format!("{DRAINS}/{node}.json"))
    }

    /// Returns the key of the record of the steps that a node gave up.
    pub fn given_up(&self, node: &NodeName) -> String {
        self.record(&format!("{GIVEN_UP}/{node}.json"))
    }

    /// Returns the key of a node's history of starts.
    pub fn starts(&self, node: &NodeName) -> String {
        self.record(&format!("{STARTS}/{node}.json"))
    }

    /// Returns the key of an object that probes a store; probes remove their objects.
    pub fn probe(&self, name: &str) -> String {
        self.record(&format!("probes/{name}"))
    }

    /// Returns where stepvault writes the files of a step.
    pub fn files(&self, name: &str, id: StepId) -> FileKeys {
        FileKeys { prefix: self.data_prefix(name, id) }
    }

    /// Returns the prefix of all data objects of a step. No two steps share a prefix, whatever the names of their
    /// checkpoints: a trainer may save each step under the same name.
    pub fn data_prefix(&self, name: &str, id: StepId) -> String {
        format!("{}/{}/{name}/", self.run, id.label())
    }

    /// Returns the key of a file's data object.
    pub fn data(&self, name: &str, id: StepId, path: &RelativePath) -> Result<String> {
        self.files(name, id).key(path)
    }

    /// Returns the kind of `key` in this run's layout; `None` for a key outside the layout, which is never deleted.
    pub fn classify(&self, key: &str) -> Option<KeyKind> {
        let rest = key.strip_prefix(self.run.as_str())?.strip_prefix('/')?;
        let (first, inner) = rest.split_once('/')?;
        if first == RECORDS_DIRECTORY {
            return classify_record(inner);
        }
        let id = StepId::from_label(first)?;
        let (name, path) = inner.split_once('/')?;
        check_step_name(name).ok()?;
        Some(KeyKind::Data { id, name: name.to_owned(), path: RelativePath::new(path).ok()? })
    }
}

/// Where the files of one part of a step are on a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileKeys {
    /// The text before each file's path: empty, or with a slash at its end.
    prefix: String,
}

impl FileKeys {
    /// Returns the keys of files below a directory of the remote; `None` for the remote's own.
    pub(crate) fn below(directory: Option<&RelativePath>) -> Self {
        Self { prefix: directory.map_or_else(String::new, |directory| format!("{directory}/")) }
    }

    /// Returns the text with which every file's key begins.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key of a file.
    pub fn key(&self, path: &RelativePath) -> Result<String> {
        let key = format!("{}{path}", self.prefix);
        if key.len() <= MAX_KEY_BYTES {
            return Ok(key);
        }
        Err(Error::new(ErrorKind::Usage, "an object key would be too long")
            .on(&key)
            .because(format!("it has {} bytes, and stores accept at most {MAX_KEY_BYTES}", key.len()))
            .hint("shorten the run's name"))
    }
}

/// Returns whether stepvault may have written an object of this key: it has the directory of a run's records, or a step's
/// label, among its components.
pub fn is_in_layout(key: &str) -> bool {
    key.split('/').any(|component| component == RECORDS_DIRECTORY || StepId::from_label(component).is_some())
}

/// Returns the run that a key belongs to, and its kind in that run's layout; `None` for a key outside the layout of every
/// run.
pub fn run_of(key: &str) -> Option<(RunName, KeyKind)> {
    key.match_indices('/').find_map(|(end, _)| {
        let run = RunName::new(&key[..end]).ok()?;
        let kind = RunKeys::new(run.clone()).classify(key)?;
        Some((run, kind))
    })
}

/// The objects of one probe, by the last word of their names, which follows 32 hexadecimal digits.
const PROBES: [&str; 6] = ["wrong", "whole", PARTS_PROBE, "dropped", "rate", UNUSUAL_PROBE];
/// The end of the key of the probe that is sent in parts and never read.
pub const PARTS_PROBE: &str = "parts";
/// The end of a probe's name, with characters that some stores change.
pub const UNUSUAL_PROBE: &str = "a\\b %2F+é'";

fn classify_record(inner: &str) -> Option<KeyKind> {
    if inner == "vault.json" {
        return Some(KeyKind::Marker);
    }
    if inner == "gc/last.json" {
        return Some(KeyKind::GcRecord);
    }
    let (directory, rest) = inner.split_once('/')?;
    if directory == "probes" {
        return PROBES
            .iter()
            .find_map(|probe| rest.strip_suffix(probe)?.strip_suffix('-'))
            .filter(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .map(|_| KeyKind::Probe(rest.to_owned()));
    }
    let stem = rest.strip_suffix(".json")?;
    match directory {
        COMMITS => StepId::from_label(stem).map(KeyKind::Commit),
        CLAIMS => StepId::from_label(stem).map(KeyKind::Claim),
        PINS => StepId::from_label(stem).map(KeyKind::Pin),
        TOMBSTONES => StepId::from_label(stem).map(KeyKind::Tombstone),
        RETIRED => stem.parse().ok().filter(|number: &u64| number.to_string() == stem).map(KeyKind::Retired),
        LAUNCHES => attempt_of(stem).map(KeyKind::Launch),
        "resumes" => resume_point(stem).map(KeyKind::Resume),
        DAMAGED => StepId::from_label(stem).map(KeyKind::Damaged),
        DRAINS => NodeName::new(stem).ok().map(KeyKind::Drain),
        GIVEN_UP => NodeName::new(stem).ok().map(KeyKind::GivenUp),
        STARTS => NodeName::new(stem).ok().map(KeyKind::Starts),
        WRITER_LEASES => is_hex(stem, 32).then(|| KeyKind::WriterLease(stem.to_owned())),
        PARTS => {
            let (label, node) = stem.split_once('/')?;
            Some(KeyKind::Part(StepId::from_label(label)?, NodeName::new(node).ok()?))
        }
        "staged" | "followers" => {
            let (attempt, node) = stem.split_once('/')?;
            let (attempt, node) = (attempt_of(attempt)?, NodeName::new(node).ok()?);
            Some(match directory {
                "staged" => KeyKind::Staged(attempt, node),
                _ => KeyKind::Follower(attempt, node),
            })
        }
        LEASES => match stem.split_once('/')? {
            (_, holder) if holder.contains('/') => None,
            ("prune", holder) => Some(KeyKind::PruneLease(holder.to_owned())),
            (label, holder) => Some(KeyKind::Lease(StepId::from_label(label)?, holder.to_owned())),
        },
        _ => None,
    }
}

fn resume_point(stem: &str) -> Option<ResumePoint> {
    let (attempt, round) = stem.split_once('/')?;
    let point = ResumePoint { attempt: attempt_of(attempt)?, round: round.parse().ok()? };
    // Each resume point has exactly one spelling.
    (point.round.to_string() == round).then_some(point)
}

/// Returns the attempt of `a12`; leading zeros are rejected.
fn attempt_of(text: &str) -> Option<Attempt> {
    let digits = text.strip_prefix('a')?;
    let canonical = !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
    Attempt::new(digits.parse().ok().filter(|_| canonical)?).ok()
}

/// Checks the name of a step's directory or file: one component that is not the records' own directory.
pub fn check_step_name(name: &str) -> Result<()> {
    let path = RelativePath::new(name)?;
    if path.components().count() == 1 && name != RECORDS_DIRECTORY {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, "not a step's directory name")
        .on(format!("{name:?}"))
        .because("it must be a single path component other than '.stepvault'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, Step};

    fn keys() -> RunKeys {
        RunKeys::new(RunName::new("grpo/checkpoints").unwrap())
    }

    fn id() -> StepId {
        StepId::new(Attempt::new(2).unwrap(), Step::new(100).unwrap())
    }

    #[test]
    fn a_key_tells_its_run() {
        let path = RelativePath::new("trainer/.metadata").unwrap();
        for key in [keys().marker(), keys().commit(id()), keys().data("step_100", id(), &path).unwrap()] {
            let (run, kind) = run_of(&key).unwrap();
            assert_eq!((run.as_str(), Some(kind)), ("grpo/checkpoints", keys().classify(&key)));
        }
        for other in ["", "/", "grpo", "grpo/model.bin", ".stepvault/vault.json", "a b/.stepvault/vault.json"]
        {
            assert_eq!(run_of(other), None, "{other}");
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let node = NodeName::new("node-0").unwrap();
        let path = RelativePath::new("trainer/.metadata").unwrap();
        assert_eq!(keys().marker(), "grpo/checkpoints/.stepvault/vault.json");
        assert_eq!(keys().commit(id()), "grpo/checkpoints/.stepvault/commits/000000000100.a2.json");
        assert_eq!(keys().part(id(), &node), "grpo/checkpoints/.stepvault/parts/000000000100.a2/node-0.json");
        assert_eq!(
            keys().data("step_100", id(), &path).unwrap(),
            "grpo/checkpoints/000000000100.a2/step_100/trainer/.metadata"
        );
    }

    #[test]
    fn every_key_we_write_is_recognised_and_nothing_else() {
        let keys = keys();
        let node = NodeName::new("node-0").unwrap();
        let path = RelativePath::new("a/b.pt").unwrap();
        let point = ResumePoint { attempt: id().attempt, round: 0 };
        let later = ResumePoint { round: 12, ..point };
        let kinds = [
            (keys.marker(), KeyKind::Marker),
            (keys.commit(id()), KeyKind::Commit(id())),
            (keys.part(id(), &node), KeyKind::Part(id(), node.clone())),
            (keys.staged(id().attempt, &node), KeyKind::Staged(id().attempt, node.clone())),
            (keys.follower(id().attempt, &node), KeyKind::Follower(id().attempt, node.clone())),
            (keys.launch(id().attempt), KeyKind::Launch(id().attempt)),
            (keys.resume(point), KeyKind::Resume(point)),
            (keys.resume(later), KeyKind::Resume(later)),
            (keys.damaged(id()), KeyKind::Damaged(id())),
            (keys.drain(&node), KeyKind::Drain(node.clone())),
            (keys.given_up(&node), KeyKind::GivenUp(node.clone())),
            (keys.starts(&node), KeyKind::Starts(node)),
            (keys.claim(id()), KeyKind::Claim(id())),
            (keys.pin(id()), KeyKind::Pin(id())),
            (keys.tombstone(id()), KeyKind::Tombstone(id())),
            (keys.retired(12), KeyKind::Retired(12)),
            (keys.lease(id(), "h1"), KeyKind::Lease(id(), "h1".to_owned())),
            (keys.prune_lease("h1"), KeyKind::PruneLease("h1".to_owned())),
            (
                keys.writer_lease("0123456789abcdef0123456789abcdef"),
                KeyKind::WriterLease("0123456789abcdef0123456789abcdef".to_owned()),
            ),
            (keys.gc_record(), KeyKind::GcRecord),
            (
                keys.probe("0123456789abcdef0123456789abcdef-whole"),
                KeyKind::Probe("0123456789abcdef0123456789abcdef-whole".to_owned()),
            ),
            (
                keys.probe("0123456789abcdef0123456789abcdef-rate"),
                KeyKind::Probe("0123456789abcdef0123456789abcdef-rate".to_owned()),
            ),
            (
                keys.probe(&format!("0123456789abcdef0123456789abcdef-{UNUSUAL_PROBE}")),
                KeyKind::Probe(format!("0123456789abcdef0123456789abcdef-{UNUSUAL_PROBE}")),
            ),
            (
                keys.data("step_100", id(), &path).unwrap(),
                KeyKind::Data { id: id(), name: "step_100".to_owned(), path },
            ),
        ];
        for (key, kind) in kinds {
            assert_eq!(keys.classify(&key), Some(kind), "{key}");
        }
        for foreign in [
            "grpo/checkpoints/readme.txt",
            "grpo/checkpoints/step_100/model.pt",
            "grpo/checkpoints/000000000100.a2/model.pt",
            "grpo/checkpoints/000000000100.a0/step_100/model.pt",
            "grpo/checkpoints/000000000100.a02/step_100/model.pt",
            "grpo/checkpoints/100.a2/step_100/model.pt",
            "grpo/checkpoints/000000000100.a1000000000/step_100/model.pt",
            "grpo/checkpoints/000000000100.a2/../model.pt",
            "grpo/checkpoints/000000000100.a2//model.pt",
            "grpo/checkpoints/000000000100.a2/.stepvault/model.pt",
            "grpo/checkpoints/.stepvault/commits/100.a1.json",
            "grpo/checkpoints/.stepvault/notes.txt",
            "grpo/checkpoints/.stepvault/launches/a0.json",
            "grpo/checkpoints/.stepvault/launches/2.json",
            "grpo/checkpoints/.stepvault/retired/01.json",
            "grpo/checkpoints/.stepvault/retired/-1.json",
            "grpo/checkpoints/.stepvault/resumes/a1/01.json",
            "grpo/checkpoints/.stepvault/resumes/a1/0/0.json",
            "grpo/checkpoints/.stepvault/drains/a/b.json",
            "grpo/checkpoints/.stepvault/given-up/a/b.json",
            "grpo/checkpoints/.stepvault/starts/a/b.json",
            "grpo/checkpoints/.stepvault/probes/mine-whole",
            "grpo/checkpoints/.stepvault/probes/0123456789abcdef0123456789abcdef-other",
            "grpo/weights/000000000100.a2/step_100/x",
            "grpo/checkpoints",
        ] {
            assert_eq!(keys.classify(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn step_names_are_single_components() {
        for good in ["step_100", "checkpoint-500", "epoch=1-step=2.ckpt", "100"] {
            check_step_name(good).unwrap();
        }
        for bad in ["", "a/b", "..", ".stepvault", "/a"] {
            check_step_name(bad).unwrap_err();
        }
    }
}
