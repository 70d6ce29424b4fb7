//! What is new since the content before, for a page that shows that one.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use stepvault_core::StepId;
use stepvault_core::document::StepIdMembers;

use super::snapshot::{DashboardDocument, RunView, StepView};

/// The difference between two contents with the same runs.
#[derive(Debug, Serialize)]
pub(super) struct Change<'a> {
    version: u64,
    /// The version that it applies to; null if the whole content has to be fetched.
    after: Option<u64>,
    /// The members of the document that have changed, without the runs.
    members: Map<String, Value>,
    /// The runs that have changed.
    runs: Vec<RunChange<'a>>,
}

#[derive(Debug, Serialize)]
struct RunChange<'a> {
    run: &'a str,
    /// The members that have changed, without the steps.
    members: Map<String, Value>,
    /// The steps that are new or have changed.
    steps: Vec<&'a StepView>,
    /// The steps that are not listed any more.
    gone: Vec<GoneStep>,
}

#[derive(Debug, Serialize)]
struct GoneStep(#[serde(with = "StepIdMembers")] StepId);

impl<'a> Change<'a> {
    /// Compares two contents.
    ///
    /// # Errors
    /// When one cannot be written as JSON.
    pub(super) fn between(
        before: Option<&DashboardDocument>,
        now: &'a DashboardDocument,
    ) -> serde_json::Result<Self> {
        let version = now.overview.version;
        let whole = Self { version, after: None, members: Map::new(), runs: Vec::new() };
        let Some(before) = before else { return Ok(whole) };
        let names = |document: &'a DashboardDocument| document.runs.iter().map(|run| &run.state.run);
        if !names(now).eq(before.runs.iter().map(|run| &run.state.run)) {
            return Ok(whole);
        }
        let mut runs = Vec::new();
        for (before, now) in before.runs.iter().zip(&now.runs) {
            let change = RunChange::between(before, now)?;
            runs.extend(Some(change).filter(|change| !change.is_empty()));
        }
        let members = differing(&before.overview, &now.overview)?;
        Ok(Self { after: Some(before.overview.version), members, runs, ..whole })
    }
}

impl<'a> RunChange<'a> {
    fn between(before: &RunView, now: &'a RunView) -> serde_json::Result<Self> {
        let members = differing(&before.state, &now.state)?;
        let mut change = Self { run: &now.state.run, members, steps: Vec::new(), gone: Vec::new() };
        if !Arc::ptr_eq(&before.steps, &now.steps) {
            let mut known: HashMap<StepId, &StepView> =
                before.steps.iter().map(|step| (step.id, step)).collect();
            let steps = now.steps.iter();
            change.steps = steps.filter(|step| known.remove(&step.id) != Some(*step)).collect();
            change.gone = known.into_keys().map(GoneStep).collect();
        }
        Ok(change)
    }

    fn is_empty(&self) -> bool {
        self.members.is_empty() && self.steps.is_empty() && self.gone.is_empty()
    }
}

/// Returns the members that have another value now. None of them is ever omitted.
fn differing(before: &impl Serialize, now: &impl Serialize) -> serde_json::Result<Map<String, Value>> {
    let (before, now) = (serde_json::to_value(before)?, serde_json::to_value(now)?);
    let Value::Object(mut changed) = now else { return Ok(Map::new()) };
    changed.retain(|name, value| before.get(name) != Some(value));
    Ok(changed)
}
