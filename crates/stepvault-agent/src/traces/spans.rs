//! The spans of steps, made from events.
//!
//! The trace of a step has the number that its log lines have. `save-to-durable` is its root on each node: from the
//! trainer's last write until the step is durable on every required remote. Below it are `seal`, and for each remote
//! `upload` with `send` and `commit`. The root's id follows from the step and the node, because the spans below it may be
//! sent by an earlier process than the root. `restore` is a root of its own: it may come days later.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use stepvault_core::config::Config;
use stepvault_core::observe::{Event, Operation, OperationKind, Saved, Tier, trace_id};
use stepvault_core::{Error, NodeName, RunName, Sha256Digest, StepId, Timestamp};
use stepvault_local::clock;
use uuid::Uuid;

/// Maximum number of steps of each kind that are remembered. When there are more, all are forgotten.
const REMEMBERED: usize = 1024;

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attribute {
    Text(String),
    Number(u64),
}

/// One span.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) trace_id: String,
    pub(super) id: String,
    pub(super) parent_id: Option<String>,
    pub(super) name: &'static str,
    /// Since 1970.
    pub(super) start_nanoseconds: u64,
    pub(super) end_nanoseconds: u64,
    pub(super) attributes: Vec<(&'static str, Attribute)>,
    /// Why what it describes failed.
    pub(super) error: Option<String>,
}

impl Span {
    fn new(name: &'static str, run: &RunName, id: StepId, start: u64, end: u64) -> Self {
        let attributes = vec![
            ("stepvault.run", Attribute::Text(run.to_string())),
            ("stepvault.step", Attribute::Number(id.step.number())),
            ("stepvault.attempt", Attribute::Number(u64::from(id.attempt.number()))),
        ];
        Self {
            trace_id: trace_id(run, id),
            // It is never 0.
            id: format!("{:016x}", Uuid::new_v4().as_u64_pair().1),
            parent_id: None,
            name,
            start_nanoseconds: start.min(end),
            end_nanoseconds: end,
            attributes,
            error: None,
        }
    }

    /// A span of an operation, or of a part of it.
    fn of(name: &'static str, operation: &Operation<'_>, start: u64, end: u64) -> Self {
        let mut span = Self::new(name, operation.run, operation.id, start, end);
        span.attributes.push(("stepvault.tier", Attribute::Text(operation.tier.to_string())));
        span
    }

    fn below(self, parent_id: String) -> Self {
        Self { parent_id: Some(parent_id), ..self }
    }
}

/// Makes spans from events.
#[derive(Debug)]
pub(super) struct StepSpans {
    node: NodeName,
    config: Config,
    /// When the bytes of steps were sent that are not committed yet.
    sent: Mutex<BTreeMap<(RunName, Tier, StepId), u64>>,
    /// The steps whose root was made.
    rooted: Mutex<BTreeSet<(RunName, StepId)>>,
}

impl StepSpans {
    pub(super) fn new(node: NodeName, config: Config) -> Self {
        Self { node, config, sent: Mutex::default(), rooted: Mutex::default() }
    }

    /// Returns the spans that end with an event.
    pub(super) fn of_event(&self, event: &Event<'_>) -> Vec<Span> {
        match event {
            Event::Sent { run, tier, id } => {
                let mut sent = self.sent.lock();
                if sent.len() >= REMEMBERED {
                    sent.clear();
                }
                sent.insert(((*run).clone(), (*tier).clone(), *id), now());
                Vec::new()
            }
            Event::Finished { operation, seconds, .. } => self.of_operation(operation, *seconds, None),
            Event::Failed { operation, seconds, error } => {
                self.of_operation(operation, *seconds, Some(error))
            }
            Event::Durable { run, id, saved: Some(saved), .. } => {
                self.root(run, *id, saved).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn of_operation(&self, operation: &Operation<'_>, seconds: f64, error: Option<&Error>) -> Vec<Span> {
        let Operation { kind, run, tier, id, files, bytes, .. } = *operation;
        let name = match kind {
            OperationKind::Seal => "seal",
            OperationKind::Upload => "upload",
            OperationKind::Restore => "restore",
            OperationKind::Removal => return Vec::new(),
        };
        let end = now();
        let mut span = Span::of(name, operation, end.saturating_sub(nanoseconds(seconds)), end);
        span.attributes.push(("stepvault.files", Attribute::Number(files)));
        span.attributes.push(("stepvault.bytes", Attribute::Number(bytes.unwrap_or_default())));
        if let Some(error) = error {
            span.attributes.push(("error.type", Attribute::Text(error.kind().name().to_owned())));
            span.error = Some(error.to_string());
        }
        if kind == OperationKind::Restore {
            return vec![span];
        }
        let span = span.below(self.root_id(run, id));
        let sent_at = self.sent.lock().remove(&(run.clone(), tier.clone(), id));
        let Some(sent_at) = sent_at.filter(|_| kind == OperationKind::Upload) else {
            return vec![span];
        };
        let part = |name, start, end| Span::of(name, operation, start, end).below(span.id.clone());
        let mut commit = part("commit", sent_at, end);
        commit.error.clone_from(&span.error);
        vec![part("send", span.start_nanoseconds, sent_at), commit, span]
    }

    /// Returns the root of a step, once it is durable on every remote that it has to be on.
    fn root(&self, run: &RunName, id: StepId, saved: &Saved<'_>) -> Option<Span> {
        let settings = self.config.run(run);
        let mut awaited = self.config.required_remotes_of(&settings);
        if awaited.is_empty() {
            let all = self.config.upload_remotes_of(&settings);
            awaited = all.into_iter().map(|remote| remote.name.clone()).collect();
        }
        let mut rooted = self.rooted.lock();
        let is_due = awaited.iter().all(|remote| saved.durable_on.contains(remote));
        if !is_due || rooted.contains(&(run.clone(), id)) {
            return None;
        }
        if rooted.len() >= REMEMBERED {
            rooted.clear();
        }
        rooted.insert((run.clone(), id));
        let mut span = Span::new("save-to-durable", run, id, since_1970(saved.written_at), now());
        span.attributes.push(("stepvault.bytes", Attribute::Number(saved.bytes)));
        Some(Span { id: self.root_id(run, id), ..span })
    }

    fn root_id(&self, run: &RunName, id: StepId) -> String {
        let mut digits =
            Sha256Digest::of(format!("{}\n{}", trace_id(run, id), self.node).as_bytes()).to_string();
        digits.truncate(16);
        digits
    }
}

fn now() -> u64 {
    since_1970(clock::now())
}

fn since_1970(time: Timestamp) -> u64 {
    let seconds = u64::try_from(time.seconds).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(time.nanoseconds.into())
}

fn nanoseconds(seconds: f64) -> u64 {
    let time = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use stepvault_core::ErrorKind;
    use stepvault_core::config::{FileText, Sources, load};

    use super::*;

    fn spans_of(text: &str) -> StepSpans {
        let file = FileText { path: "stepvault.toml".into(), text: text.to_owned() };
        let config = load(&Sources { file: Some(file), ..Sources::default() }).unwrap();
        StepSpans::new("node-0".parse().unwrap(), config)
    }

    fn id() -> StepId {
        StepId::from_label("000000000007.a2").unwrap()
    }

    #[test]
    fn a_failed_commit_is_told_apart_from_a_failed_upload() {
        let spans = spans_of("");
        let (run, tier) = ("demo/a".parse().unwrap(), Tier::Remote("main".parse().unwrap()));
        let operation = Operation {
            kind: OperationKind::Upload,
            run: &run,
            tier: &tier,
            id: id(),
            location: "",
            files: 2,
            bytes: Some(10),
        };
        let error = Error::new(ErrorKind::Unreachable, "cannot write the commit");
        let failed = || spans.of_event(&Event::Failed { operation, seconds: 2.5, error: &error });
        let [upload] = failed().try_into().unwrap();
        assert_eq!(upload.end_nanoseconds - upload.start_nanoseconds, 2_500_000_000);
        assert_eq!(upload.error.as_deref(), Some("cannot write the commit"));
        assert!(upload.attributes.contains(&("error.type", Attribute::Text("unreachable".to_owned()))));
        assert!(spans.of_event(&Event::Sent { run: &run, tier: &tier, id: id() }).is_empty());
        let [send, commit, upload] = failed().try_into().unwrap();
        assert_eq!((send.name, commit.name, upload.name), ("send", "commit", "upload"));
        assert!(send.error.is_none() && commit.error.is_some());
        assert_eq!(send.parent_id.as_ref(), Some(&upload.id));
        assert_eq!(failed().len(), 1, "what was sent is forgotten with the upload");
    }

    #[test]
    fn the_root_waits_for_the_required_remotes_and_is_made_once() {
        let remotes = ["a", "b", "c"].map(|name| {
            let required = if name == "c" { "required = false" } else { "" };
            format!("[remote.{name}]\nurl = \"memory://{name}\"\n{required}\n")
        });
        let spans = spans_of(&remotes.concat());
        let run = "demo/a".parse().unwrap();
        let roots = |durable_on: &[&str]| {
            let durable_on: Vec<_> = durable_on.iter().map(|name| name.parse().unwrap()).collect();
            let written_at = Timestamp::from_seconds(1_700_000_000);
            let saved = Saved { written_at, bytes: 5, durable_on: &durable_on };
            let tier = Tier::Remote("a".parse().unwrap());
            spans.of_event(&Event::Durable { run: &run, tier: &tier, id: id(), saved: Some(saved) })
        };
        assert!(roots(&["a"]).is_empty() && roots(&["a", "c"]).is_empty());
        let [root] = roots(&["a", "b"]).try_into().unwrap();
        assert_eq!((root.name, root.start_nanoseconds), ("save-to-durable", 1_700_000_000_000_000_000));
        assert_eq!((root.trace_id, root.parent_id), (trace_id(&run, id()), None));
        assert!(roots(&["a", "b", "c"]).is_empty());
    }
}
