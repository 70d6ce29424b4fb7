//! Lines of a service's log as JSON objects. Their members have the same names whatever module they come from.

use std::fmt::{self, Debug};

use serde::Serialize;
use serde_json::{Map, Value};
use stepvault_core::document::StepIdMembers;
use stepvault_core::observe::{Operation, Tier, trace_id};
use stepvault_core::{Clock as _, NodeName, RemoteName, RunName, StepId};
use stepvault_local::SystemClock;
use tracing::Event;
use tracing::field::{Field, Visit};

use super::{Priority, write_record};

/// One line.
#[derive(Debug, Serialize)]
pub(crate) struct Record<'a> {
    /// In UTC.
    time: String,
    level: &'static str,
    message: &'a str,
    node: &'a NodeName,
    #[serde(flatten)]
    about: About,
}

/// What a line is about.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct About {
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RunName>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    step: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<RemoteName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Named {
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
}

impl About {
    /// A line about a step on a tier.
    pub(crate) fn step(tier: &Tier, id: StepId) -> Self {
        let remote = match tier {
            Tier::Local => None,
            Tier::Remote(remote) => Some(remote.clone()),
        };
        Self { run: None, step: Some(Named { id }), remote, trace_id: None }
    }

    /// A line about an operation.
    pub(crate) fn operation(operation: &Operation<'_>) -> Self {
        Self::step_of(operation.run, operation.tier, operation.id)
    }

    /// A line about a step of a run on a tier.
    pub(crate) fn step_of(run: &RunName, tier: &Tier, id: StepId) -> Self {
        Self { run: Some(run.clone()), trace_id: Some(trace_id(run, id)), ..Self::step(tier, id) }
    }
}

impl Priority {
    fn level(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl<'a> Record<'a> {
    pub(super) fn new(priority: Priority, text: &'a str, node: &'a NodeName, about: About) -> Self {
        // The level says it.
        let message = text.strip_prefix("warning: ").or_else(|| text.strip_prefix("error: ")).unwrap_or(text);
        Self { time: SystemClock.now().to_rfc3339(), level: priority.level(), message, node, about }
    }
}

/// Writes an event of the log as a line. Its own fields stand beside the other members; the error of a library may be one.
pub(crate) fn write_event(node: &NodeName, priority: Priority, event: &Event<'_>) {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let message = std::mem::take(&mut fields.message);
    let record = Record::new(priority, &message, node, About::default());
    let Ok(Value::Object(mut line)) = serde_json::to_value(&record) else { return };
    for (name, value) in fields.others {
        line.entry(name).or_insert(value);
    }
    line.insert("target".to_owned(), event.metadata().target().into());
    write_record(&line);
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record(field, fmt::format(format_args!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field, value.to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.others.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.insert(field.name().to_owned(), value.into());
    }
}

impl Fields {
    fn record(&mut self, field: &Field, text: String) {
        if field.name() == "message" {
            self.message = text;
        } else {
            self.others.insert(field.name().to_owned(), text.into());
        }
    }
}
