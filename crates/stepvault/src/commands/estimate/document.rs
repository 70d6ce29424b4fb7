//! The JSON document of an estimate. Sizes are in bytes.

use std::path::PathBuf;

use serde::{Serialize, Serializer};
use stepvault_core::Result;
use stepvault_diagnose::estimate::{Part, Saving, ShuffleBuffer, Spread, StepSize, Written};

/// An estimate.
#[derive(Debug, Serialize)]
pub(super) struct EstimateDocument {
    /// The step, over all nodes.
    #[serde(flatten, serialize_with = "step_members")]
    pub(super) step: Written,
    /// The measured files; null for an estimate from numbers.
    pub(super) found: Option<FoundDocument>,
    /// The headers that were read.
    pub(super) headers: Vec<HeaderDocument>,
    /// Headers that could not be read.
    pub(super) unreadable_headers: Vec<UnreadDocument>,
    /// The model; null for an estimate from files.
    pub(super) model: Option<ModelDocument>,
    /// The data loader's buffer; null if none was given.
    pub(super) shuffle_buffer: Option<BufferDocument>,
    /// The local tier of the first node while a step is saved.
    pub(super) saving: Option<SavingDocument>,
    /// Every tier after all saves; null if no run was given.
    pub(super) run: Option<RunDocument>,
    /// Assumptions and limitations of the estimate.
    pub(super) notes: Vec<String>,
}

impl EstimateDocument {
    pub(super) fn new(step: Written) -> Self {
        Self {
            step,
            found: None,
            headers: Vec::new(),
            unreadable_headers: Vec::new(),
            model: None,
            shuffle_buffer: None,
            saving: None,
            run: None,
            notes: Vec::new(),
        }
    }
}

/// The members that describe a step.
#[derive(Serialize)]
struct StepMembers {
    bytes: u64,
    files: u64,
    nodes: u64,
    first_node: NodeDocument,
    other_nodes: Option<NodeDocument>,
    parts: Vec<PartDocument>,
}

#[derive(Serialize)]
struct NodeDocument {
    bytes: u64,
    files: u64,
    inodes: u64,
}

#[derive(Serialize)]
struct PartDocument {
    part: &'static str,
    bytes: u64,
    files: u64,
    /// Whether every node has a share of it; else the first node has all of it.
    on_all_nodes: bool,
}

fn step_members<S: Serializer>(step: &Written, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    members_of(step)
        .map_err(serde::ser::Error::custom)?
        .serialize(serializer)
}

fn members_of(step: &Written) -> Result<StepMembers> {
    let node = |size: StepSize| {
        Ok(NodeDocument {
            bytes: size.bytes,
            files: size.files,
            inodes: size.inodes()?,
        })
    };
    let part = |part: &Part| PartDocument {
        part: part.what,
        bytes: part.bytes,
        files: part.files,
        on_all_nodes: part.spread == Spread::AllNodes,
    };
    Ok(StepMembers {
        bytes: step.bytes()?,
        files: step.files()?,
        nodes: step.nodes,
        first_node: node(step.on_first_node()?)?,
        other_nodes: step.on_other_nodes()?.map(node).transpose()?,
        parts: step.parts.iter().map(part).collect(),
    })
}

/// The files found at a path.
#[derive(Debug, Serialize)]
pub(super) struct FoundDocument {
    pub(super) path: PathBuf,
    /// The chosen step if the path holds several; null if the path itself is the step.
    pub(super) step: Option<String>,
    pub(super) bytes: u64,
    /// Bytes that the filesystem has allocated.
    pub(super) allocated_bytes: Option<u64>,
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) inodes: u64,
}

/// A header and its contents.
#[derive(Debug, Serialize)]
pub(super) struct HeaderDocument {
    pub(super) path: String,
    pub(super) kind: &'static str,
    /// Number of tensors, or of their shards.
    pub(super) entries: u64,
    pub(super) payload_bytes: Option<u64>,
    pub(super) files: Vec<HeaderFileDocument>,
}

/// A file that a header describes.
#[derive(Debug, Serialize)]
pub(super) struct HeaderFileDocument {
    pub(super) path: String,
    /// Null if no header gives it.
    pub(super) expected_bytes: Option<u64>,
    /// Null if the file is missing.
    pub(super) bytes: Option<u64>,
}

/// A header that could not be read.
#[derive(Debug, Serialize)]
pub(super) struct UnreadDocument {
    pub(super) path: String,
    pub(super) reason: String,
}

/// A model by its numbers, and the bytes of its tensors.
#[derive(Debug, Serialize)]
pub(super) struct ModelDocument {
    pub(super) parameters: u64,
    pub(super) tensors: u64,
    pub(super) weights: &'static str,
    pub(super) master: Option<&'static str>,
    pub(super) optimizer: String,
    pub(super) layout: &'static str,
    pub(super) sharding: &'static str,
    pub(super) ranks: u64,
    /// How many times the tensors are written.
    pub(super) copies: u64,
    pub(super) weights_bytes: u64,
    pub(super) master_bytes: u64,
    pub(super) optimizer_bytes: u64,
    pub(super) extra_bytes: u64,
    /// Bytes of the file format and of the framework's own files.
    pub(super) format_bytes: u64,
}

/// A data loader's buffer, on one node.
#[derive(Debug, Serialize)]
pub(super) struct BufferDocument {
    pub(super) samples: u64,
    pub(super) sample_bytes: u64,
    /// The samples alone.
    pub(super) payload_bytes: u64,
    /// Bytes on disk, with the framework's overhead.
    pub(super) bytes: u64,
    /// The same with fewer samples; null if the buffer is no larger than that.
    pub(super) smaller: Option<Box<BufferDocument>>,
}

impl BufferDocument {
    pub(super) fn of(buffer: &ShuffleBuffer) -> Result<Self> {
        let smaller = buffer.smaller().map(|smaller| Self::of(&smaller)).transpose()?;
        Ok(Self {
            samples: buffer.samples,
            sample_bytes: buffer.sample_bytes,
            payload_bytes: buffer.payload_bytes()?,
            bytes: buffer.bytes()?,
            smaller: smaller.map(Box::new),
        })
    }
}

/// The local tier while a step is saved.
#[derive(Debug, Serialize)]
pub(super) struct SavingDocument {
    /// How steps get into the vault.
    pub(super) vault: &'static str,
    #[serde(flatten)]
    pub(super) saving: Saving,
}

/// A run at its end, with every step durable.
#[derive(Debug, Serialize)]
pub(super) struct RunDocument {
    pub(super) saves: u64,
    /// Bytes that all saves write.
    pub(super) written_bytes: u64,
    pub(super) tiers: Vec<TierDocument>,
}

/// One tier at the end of the run.
#[derive(Debug, Serialize)]
pub(super) struct TierDocument {
    pub(super) tier: String,
    pub(super) steps: u64,
    pub(super) bytes: u64,
    /// Inodes of the steps' data, or objects on a remote.
    pub(super) inodes: u64,
    /// The peak, including the trainer's own steps; null for a remote.
    pub(super) peak_bytes: Option<u64>,
    pub(super) peak_inodes: Option<u64>,
}

impl TierDocument {
    pub(super) fn of(tier: String, steps: u64, step: StepSize, peak: Option<&Saving>) -> Result<Self> {
        let all = step.of_steps(steps)?;
        Ok(Self {
            tier,
            steps,
            bytes: all.bytes,
            inodes: all.inodes()?,
            peak_bytes: peak.map(|peak| peak.peak_bytes),
            peak_inodes: peak.map(|peak| peak.peak_inodes),
        })
    }
}
