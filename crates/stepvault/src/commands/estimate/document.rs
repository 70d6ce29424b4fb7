//! The JSON document of an estimate. Sizes are in bytes.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::Result;
use stepvault_diagnose::estimate::{Part, Payload, Saving, ShuffleBuffer, StepSize, Written};

/// An estimate.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in crate::commands) struct EstimateDocument {
    /// The step, over all nodes.
    #[serde(flatten)]
    pub(super) step: StepDocument,
    /// The files at PATH; null for an estimate from numbers.
    pub(super) found: Option<FoundDocument>,
    /// Headers and tables of contents that give the sizes of files.
    pub(super) headers: Vec<HeaderDocument>,
    /// Files with the name of a header that cannot be parsed.
    pub(super) unreadable_headers: Vec<UnreadDocument>,
    /// The model; null for an estimate from a PATH.
    pub(super) model: Option<ModelDocument>,
    /// The data loader's buffer on one node; null if none was given.
    pub(super) shuffle_buffer: Option<BufferDocument>,
    /// The local tier of the first node while the last step is saved.
    pub(super) saving: Option<SavingDocument>,
    /// Every tier after all saves, with every step durable; null without `--steps`.
    pub(super) run: Option<RunDocument>,
    /// Assumptions of the estimate, and missing files.
    pub(super) notes: Vec<String>,
}

/// A step.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct StepDocument {
    /// Bytes of the step on all nodes; for a PATH, with the bytes that are missing by its headers.
    pub(super) bytes: u64,
    /// Number of its files on all nodes.
    pub(super) files: u64,
    /// Number of nodes that write it.
    pub(super) nodes: u64,
    /// The first node's part, which is the largest.
    pub(super) first_node: NodeDocument,
    /// Every other node's part; null with one node.
    pub(super) other_nodes: Option<NodeDocument>,
    /// The files by kind.
    pub(super) parts: Vec<Part>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct NodeDocument {
    /// Bytes of files.
    pub(super) bytes: u64,
    /// Number of files.
    pub(super) files: u64,
    /// Number of files and directories.
    inodes: u64,
}

impl StepDocument {
    pub(super) fn of(step: Written) -> Result<Self> {
        let node = |size: StepSize| {
            Ok(NodeDocument { bytes: size.bytes, files: size.files, inodes: size.inodes()? })
        };
        Ok(Self {
            bytes: step.bytes()?,
            files: step.files()?,
            nodes: step.nodes,
            first_node: node(step.on_first_node()?)?,
            other_nodes: step.on_other_nodes()?.map(node).transpose()?,
            parts: step.parts,
        })
    }
}

/// The files found at a path.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FoundDocument {
    /// PATH.
    pub(super) path: PathBuf,
    /// The chosen step if the path holds several; null if the path itself is the step.
    pub(super) step: Option<String>,
    /// Bytes of the existing files.
    pub(super) bytes: u64,
    /// Bytes that the filesystem has allocated to them; null if unknown.
    pub(super) allocated_bytes: Option<u64>,
    /// Number of existing files and links.
    pub(super) files: u64,
    /// Number of directories, including the step's own; 0 for a file.
    pub(super) directories: u64,
    /// The sum of both; a file with two names in the step counts twice.
    pub(super) inodes: u64,
}

/// A header and its contents.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HeaderDocument {
    /// Its path.
    pub(super) path: String,
    /// `safetensors`, `hf-index` or `dcp`.
    pub(super) kind: &'static str,
    /// Number of tensors; for `dcp`, number of tensor shards and other items.
    pub(super) entries: u64,
    /// Bytes of the tensors or items by the header; null if the header does not give them.
    pub(super) payload_bytes: Option<u64>,
    /// The files that it describes.
    pub(super) files: Vec<HeaderFileDocument>,
}

/// A file that a header describes.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HeaderFileDocument {
    /// Its path, even if it is missing.
    pub(super) path: String,
    /// Its complete size; null if no existing header gives it.
    pub(super) expected_bytes: Option<u64>,
    /// Its size; null if it is missing.
    pub(super) bytes: Option<u64>,
}

/// A header that could not be read.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct UnreadDocument {
    /// Its path.
    pub(super) path: String,
    /// Why it cannot be read.
    pub(super) reason: String,
}

/// A model by its numbers, and the bytes of its tensors.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ModelDocument {
    /// Number of parameters.
    pub(super) parameters: u64,
    /// Number of tensors.
    pub(super) tensors: u64,
    /// The weights' dtype.
    pub(super) weights: &'static str,
    /// The dtype of the optimizer's copy of the weights; null if none was given.
    pub(super) master: Option<&'static str>,
    /// The optimizer, with its states' dtype.
    pub(super) optimizer: String,
    /// The file layout.
    pub(super) layout: &'static str,
    /// `sharded`, `replicated` or `rank-zero`.
    pub(super) sharding: &'static str,
    /// Number of ranks on all nodes.
    pub(super) ranks: u64,
    /// How many times the tensors are written.
    pub(super) copies: u64,
    #[serde(flatten)]
    pub(super) payload: Payload,
    /// Bytes of the file format and of the framework's own files.
    pub(super) format_bytes: u64,
}

/// A data loader's buffer, on one node.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BufferDocument {
    /// Number of samples.
    pub(super) samples: u64,
    /// Bytes of one sample.
    pub(super) sample_bytes: u64,
    /// Bytes of all samples.
    pub(super) payload_bytes: u64,
    /// Bytes on disk, with `--buffer-overhead`.
    pub(super) bytes: u64,
    /// The same with 10,000 samples; null if the buffer has no more.
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
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SavingDocument {
    /// How steps get into the vault: `hard-link`, `reflink`, `copy` or `none`.
    pub(super) vault: &'static str,
    #[serde(flatten)]
    pub(super) saving: Saving,
}

/// A run at its end, with every step durable.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunDocument {
    /// Number of saves.
    pub(super) saves: u64,
    /// Bytes that all saves write.
    pub(super) written_bytes: u64,
    /// One entry for each tier; for `local`, one node's vault.
    pub(super) tiers: Vec<TierDocument>,
}

/// One tier at the end of the run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TierDocument {
    /// `local` or the remote's name.
    pub(super) tier: String,
    /// Number of steps that its rules keep.
    pub(super) steps: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Inodes of their data, or objects on a remote.
    pub(super) inodes: u64,
    /// `saving.peak_bytes`; null for a remote.
    pub(super) peak_bytes: Option<u64>,
    /// `saving.peak_inodes`; null for a remote.
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
