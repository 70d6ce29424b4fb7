//! Reads metrics that a trainer left in a JSON file inside its checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use stepvault_core::config::RunSettings;
use stepvault_core::{Error, ErrorKind, RelativePath, Result};
use stepvault_local::durable::read_bounded;

/// Maximum size of a metrics file that is read.
const MAX_METRICS_FILE_BYTES: u64 = 16 << 20;

/// Where metrics are found: a JSON file in the checkpoint, and a JSON pointer into it for each metric.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricsSource {
    /// Path inside the checkpoint.
    pub file: Option<RelativePath>,
    /// JSON pointers (RFC 6901) by metric name.
    pub pointers: BTreeMap<String, String>,
}

impl MetricsSource {
    /// Returns where the checkpoints of a run contain metrics.
    pub fn of(run: &RunSettings) -> Self {
        Self { file: run.metrics_file.clone(), pointers: run.metrics.clone() }
    }
}

/// Reads the metrics of the checkpoint at `root`. Missing and non-numeric values are left out: a step without the
/// metric is still a step, and retention reports that it lacks it.
pub(super) fn read_metrics(root: &Path, source: &MetricsSource) -> Result<BTreeMap<String, f64>> {
    let Some(file) = &source.file else {
        return Ok(BTreeMap::new());
    };
    let path = root.join(file);
    let Some(bytes) = read_bounded(&path, MAX_METRICS_FILE_BYTES)? else {
        return Ok(BTreeMap::new());
    };
    let document: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| {
        Error::new(ErrorKind::Failed, "cannot read the metrics file").on(path.display()).caused_by(error)
    })?;
    let number = |pointer: &String| document.pointer(pointer).and_then(serde_json::Value::as_f64);
    Ok(source
        .pointers
        .iter()
        .filter_map(|(metric, pointer)| {
            Some((metric.clone(), number(pointer).filter(|value| value.is_finite())?))
        })
        .collect())
}
