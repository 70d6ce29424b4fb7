//! Where everything stands on a remote, relative to the remote's own prefix.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Attempt, NodeName, RECORDS_DIRECTORY, RunName, StepId};
use crate::path::RelativePath;

/// Longest object key in bytes that S3 and GCS take.
pub const MAX_KEY_BYTES: usize = 1024;

/// The key layout of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunKeys {
    run: RunName,
}

/// What a key of our layout is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// `.stepvault/vault.json`
    Marker,
    /// A commit.
    Commit(StepId),
    /// A node's part manifest.
    Part(StepId, NodeName),
    /// A claim: somebody began to upload this step.
    Claim(StepId),
    /// Which launch an attempt belongs to.
    Launch(Attempt),
    /// A node's word on the parts that it has sealed, in an attempt.
    Staged(Attempt, NodeName),
    /// What the nodes of an attempt go on from.
    Resume(ResumePoint),
    /// A step that nodes agreed on and one found damaged.
    Unfit(StepId),
    /// A pin.
    Pin(StepId),
    /// A tombstone: the name is spent.
    Tombstone(StepId),
    /// A lease on a step (a reader) under an id of its holder's.
    Lease(StepId, String),
    /// The lease of whoever prunes.
    PruneLease(String),
    /// The record of the last sweep for orphans.
    Sweep,
    /// What a node's last drain left behind.
    Drain(NodeName),
    /// A node's history of starts.
    Starts(NodeName),
    /// An object that tested a store's honesty and was left behind.
    Probe(String),
    /// A data object: step directory and attempt number as they stand in the key, and the path inside.
    Data {
        /// The step's directory or file name.
        name: String,
        /// The attempt.
        attempt: u32,
        /// The path inside the checkpoint.
        path: RelativePath,
    },
}

/// One moment at which the nodes of a launch decide what they go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumePoint {
    /// The launch's attempt.
    pub attempt: Attempt,
    /// The newest step that it has committed; none at its beginning. A job that is restarted in place decides anew.
    pub after: Option<StepId>,
    /// 0, and one more each time that a node found the step damaged that was agreed on.
    pub round: u32,
}

impl RunKeys {
    /// The layout of `run`.
    pub fn new(run: RunName) -> Self {
        Self { run }
    }

    /// The run.
    pub fn run(&self) -> &RunName {
        &self.run
    }

    /// Everything of the run begins with this.
    pub fn prefix(&self) -> String {
        format!("{}/", self.run)
    }

    fn record(&self, rest: &str) -> String {
        format!("{}/{RECORDS_DIRECTORY}/{rest}", self.run)
    }

    /// Everything that is a record rather than data begins with this.
    pub fn records_prefix(&self) -> String {
        self.record("")
    }

    /// The marker object.
    pub fn marker(&self) -> String {
        self.record("vault.json")
    }

    /// One LIST of this enumerates every step.
    pub fn commits_prefix(&self) -> String {
        self.record("commits/")
    }

    /// The commit of a step.
    pub fn commit(&self, id: StepId) -> String {
        self.record(&format!("commits/{}.json", id.label()))
    }

    /// The part manifests of all steps.
    pub fn parts_prefix(&self) -> String {
        self.record("parts/")
    }

    /// The part manifests of one step.
    pub fn step_parts_prefix(&self, id: StepId) -> String {
        self.record(&format!("parts/{}/", id.label()))
    }

    /// A node's manifest.
    pub fn part(&self, id: StepId, node: &NodeName) -> String {
        self.record(&format!("parts/{}/{node}.json", id.label()))
    }

    /// All claims.
    pub fn claims_prefix(&self) -> String {
        self.record("attempts/")
    }

    /// The claim on a step, written before its first byte.
    pub fn claim(&self, id: StepId) -> String {
        self.record(&format!("attempts/{}.json", id.label()))
    }

    /// All launch records.
    pub fn launches_prefix(&self) -> String {
        self.record("launches/")
    }

    /// The launch record of an attempt.
    pub fn launch(&self, attempt: Attempt) -> String {
        self.record(&format!("launches/a{attempt}.json"))
    }

    /// A node's word on the parts that it has sealed.
    pub fn staged(&self, attempt: Attempt, node: &NodeName) -> String {
        self.record(&format!("staged/a{attempt}/{node}.json"))
    }

    /// What the nodes of an attempt go on from.
    pub fn resume(&self, point: ResumePoint) -> String {
        let ResumePoint {
            attempt,
            after,
            round,
        } = point;
        let after = after.map_or_else(|| "start".to_owned(), StepId::label);
        self.record(&format!("resumes/a{attempt}/{after}/{round}.json"))
    }

    /// All records of unfit steps.
    pub fn unfit_prefix(&self) -> String {
        self.record("unfit/")
    }

    /// The record of an unfit step.
    pub fn unfit(&self, id: StepId) -> String {
        self.record(&format!("unfit/{}.json", id.label()))
    }

    /// All pins.
    pub fn pins_prefix(&self) -> String {
        self.record("pins/")
    }

    /// The pin of a step.
    pub fn pin(&self, id: StepId) -> String {
        self.record(&format!("pins/{}.json", id.label()))
    }

    /// All tombstones.
    pub fn tombstones_prefix(&self) -> String {
        self.record("tombstones/")
    }

    /// The tombstone of a step.
    pub fn tombstone(&self, id: StepId) -> String {
        self.record(&format!("tombstones/{}.json", id.label()))
    }

    /// All leases.
    pub fn leases_prefix(&self) -> String {
        self.record("leases/")
    }

    /// The leases on a step.
    pub fn step_leases_prefix(&self, id: StepId) -> String {
        self.record(&format!("leases/{}/", id.label()))
    }

    /// A reader's lease on a step. `holder` is one plain segment.
    pub fn lease(&self, id: StepId, holder: &str) -> String {
        format!("{}{holder}.json", self.step_leases_prefix(id))
    }

    /// The lease of a pruner. `holder` is one plain segment.
    pub fn prune_lease(&self, holder: &str) -> String {
        self.record(&format!("leases/prune/{holder}.json"))
    }

    /// What the last sweep for orphans saw.
    pub fn sweep(&self) -> String {
        self.record("sweeps/last.json")
    }

    /// What the last drains left behind, by node.
    pub fn drains_prefix(&self) -> String {
        self.record("drains/")
    }

    /// What a node's last drain left behind.
    pub fn drain(&self, node: &NodeName) -> String {
        self.record(&format!("drains/{node}.json"))
    }

    /// The histories of starts of all nodes.
    pub fn starts_prefix(&self) -> String {
        self.record("starts/")
    }

    /// A node's history of starts.
    pub fn starts(&self, node: &NodeName) -> String {
        self.record(&format!("starts/{node}.json"))
    }

    /// Where objects that test a store's honesty are put; nothing is left there.
    pub fn probe(&self, name: &str) -> String {
        self.record(&format!("probes/{name}"))
    }

    /// All data objects of one attempt of a step directory.
    pub fn data_prefix(&self, name: &str, id: StepId) -> String {
        format!("{}/{name}/a{}/", self.run, id.attempt)
    }

    /// The data object of a file.
    pub fn data(&self, name: &str, id: StepId, path: &RelativePath) -> Result<String> {
        let key = format!("{}{path}", self.data_prefix(name, id));
        if key.len() <= MAX_KEY_BYTES {
            return Ok(key);
        }
        Err(Error::new(ErrorKind::Usage, "an object key would be too long")
            .on(&key)
            .because(format!(
                "it has {} bytes and stores take {MAX_KEY_BYTES}",
                key.len()
            ))
            .hint("shorten the run's name"))
    }

    /// What `key` is in this run's layout; `None` for anything that is not ours, which is never deleted.
    pub fn classify(&self, key: &str) -> Option<KeyKind> {
        let rest = key.strip_prefix(self.run.as_str())?.strip_prefix('/')?;
        let (first, inner) = rest.split_once('/')?;
        if first == RECORDS_DIRECTORY {
            return classify_record(inner);
        }
        check_step_name(first).ok()?;
        let (attempt, path) = inner.split_once('/')?;
        Some(KeyKind::Data {
            name: first.to_owned(),
            attempt: attempt_of(attempt)?.number(),
            path: RelativePath::new(path).ok()?,
        })
    }
}

/// The objects of one probe, by the last word of their names; before it stand 32 hexadecimal digits.
const PROBES: [&str; 5] = ["wrong", "whole", "parts", "dropped", "rate"];

fn classify_record(inner: &str) -> Option<KeyKind> {
    if inner == "vault.json" {
        return Some(KeyKind::Marker);
    }
    if inner == "sweeps/last.json" {
        return Some(KeyKind::Sweep);
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
        "commits" => StepId::from_label(stem).map(KeyKind::Commit),
        "attempts" => StepId::from_label(stem).map(KeyKind::Claim),
        "pins" => StepId::from_label(stem).map(KeyKind::Pin),
        "tombstones" => StepId::from_label(stem).map(KeyKind::Tombstone),
        "launches" => attempt_of(stem).map(KeyKind::Launch),
        "resumes" => resume_point(stem).map(KeyKind::Resume),
        "unfit" => StepId::from_label(stem).map(KeyKind::Unfit),
        "drains" => NodeName::new(stem).ok().map(KeyKind::Drain),
        "starts" => NodeName::new(stem).ok().map(KeyKind::Starts),
        "parts" => {
            let (label, node) = stem.split_once('/')?;
            Some(KeyKind::Part(
                StepId::from_label(label)?,
                NodeName::new(node).ok()?,
            ))
        }
        "staged" => {
            let (attempt, node) = stem.split_once('/')?;
            Some(KeyKind::Staged(attempt_of(attempt)?, NodeName::new(node).ok()?))
        }
        "leases" => match stem.split_once('/')? {
            (_, holder) if holder.contains('/') => None,
            ("prune", holder) => Some(KeyKind::PruneLease(holder.to_owned())),
            (label, holder) => Some(KeyKind::Lease(StepId::from_label(label)?, holder.to_owned())),
        },
        _ => None,
    }
}

fn resume_point(stem: &str) -> Option<ResumePoint> {
    let mut words = stem.split('/');
    let (attempt, after, round) = (words.next()?, words.next()?, words.next()?);
    let point = ResumePoint {
        attempt: attempt_of(attempt)?,
        after: match after {
            "start" => None,
            label => Some(StepId::from_label(label)?),
        },
        round: round.parse().ok()?,
    };
    // One spelling for each, and nothing behind it.
    (words.next().is_none() && point.round.to_string() == round).then_some(point)
}

/// The attempt of `a12`, with no leading zero.
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
        .because("it takes a single path component other than '.stepvault'"))
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
    fn the_layout_is_the_documented_one() {
        let node = NodeName::new("node-0").unwrap();
        let path = RelativePath::new("trainer/.metadata").unwrap();
        assert_eq!(keys().marker(), "grpo/checkpoints/.stepvault/vault.json");
        assert_eq!(
            keys().commit(id()),
            "grpo/checkpoints/.stepvault/commits/000000000100.a2.json"
        );
        assert_eq!(
            keys().part(id(), &node),
            "grpo/checkpoints/.stepvault/parts/000000000100.a2/node-0.json"
        );
        assert_eq!(
            keys().data("step_100", id(), &path).unwrap(),
            "grpo/checkpoints/step_100/a2/trainer/.metadata"
        );
    }

    #[test]
    fn every_key_we_write_is_recognised_and_nothing_else() {
        let keys = keys();
        let node = NodeName::new("node-0").unwrap();
        let path = RelativePath::new("a/b.pt").unwrap();
        let point = ResumePoint {
            attempt: id().attempt,
            after: None,
            round: 0,
        };
        let later = ResumePoint {
            after: Some(id()),
            round: 12,
            ..point
        };
        let kinds = [
            (keys.marker(), KeyKind::Marker),
            (keys.commit(id()), KeyKind::Commit(id())),
            (keys.part(id(), &node), KeyKind::Part(id(), node.clone())),
            (
                keys.staged(id().attempt, &node),
                KeyKind::Staged(id().attempt, node.clone()),
            ),
            (keys.launch(id().attempt), KeyKind::Launch(id().attempt)),
            (keys.resume(point), KeyKind::Resume(point)),
            (keys.resume(later), KeyKind::Resume(later)),
            (keys.unfit(id()), KeyKind::Unfit(id())),
            (keys.drain(&node), KeyKind::Drain(node.clone())),
            (keys.starts(&node), KeyKind::Starts(node)),
            (keys.claim(id()), KeyKind::Claim(id())),
            (keys.pin(id()), KeyKind::Pin(id())),
            (keys.tombstone(id()), KeyKind::Tombstone(id())),
            (keys.lease(id(), "h1"), KeyKind::Lease(id(), "h1".to_owned())),
            (keys.prune_lease("h1"), KeyKind::PruneLease("h1".to_owned())),
            (keys.sweep(), KeyKind::Sweep),
            (
                keys.probe("0123456789abcdef0123456789abcdef-whole"),
                KeyKind::Probe("0123456789abcdef0123456789abcdef-whole".to_owned()),
            ),
            (
                keys.probe("0123456789abcdef0123456789abcdef-rate"),
                KeyKind::Probe("0123456789abcdef0123456789abcdef-rate".to_owned()),
            ),
            (
                keys.data("step_100", id(), &path).unwrap(),
                KeyKind::Data {
                    name: "step_100".to_owned(),
                    attempt: 2,
                    path,
                },
            ),
        ];
        for (key, kind) in kinds {
            assert_eq!(keys.classify(&key), Some(kind), "{key}");
        }
        for foreign in [
            "grpo/checkpoints/readme.txt",
            "grpo/checkpoints/step_100/model.pt",
            "grpo/checkpoints/step_100/a0/model.pt",
            "grpo/checkpoints/step_100/a02/model.pt",
            "grpo/checkpoints/step_100/a1000000000/model.pt",
            "grpo/checkpoints/../a2/model.pt",
            "grpo/checkpoints//a2/model.pt",
            "grpo/checkpoints/.stepvault/commits/100.a1.json",
            "grpo/checkpoints/.stepvault/notes.txt",
            "grpo/checkpoints/.stepvault/launches/a0.json",
            "grpo/checkpoints/.stepvault/launches/2.json",
            "grpo/checkpoints/.stepvault/resumes/a1/100.a1/0.json",
            "grpo/checkpoints/.stepvault/resumes/a1/start/01.json",
            "grpo/checkpoints/.stepvault/resumes/a1/start/0/0.json",
            "grpo/checkpoints/.stepvault/drains/a/b.json",
            "grpo/checkpoints/.stepvault/starts/a/b.json",
            "grpo/checkpoints/.stepvault/probes/mine-whole",
            "grpo/checkpoints/.stepvault/probes/0123456789abcdef0123456789abcdef-other",
            "grpo/weights/step_100/a1/x",
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
