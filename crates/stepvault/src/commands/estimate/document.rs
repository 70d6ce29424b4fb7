//! An estimate as a JSON document and as text. Sizes are in bytes.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::Result;
use stepvault_core::forecast::Taken;
use stepvault_diagnose::estimate::{Part, Payload, Saving, ShuffleBuffer, Written, of_steps};
use stepvault_formats::sizes::HeaderSizes;

use crate::output::table::fit;
use crate::output::{Report, human, table};

/// An estimate.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in crate::commands) struct EstimateDocument {
    /// The step, over all nodes.
    #[serde(flatten)]
    pub(super) step: StepDocument,
    /// The files at PATH; null for an estimate from numbers.
    pub(super) found: Option<FoundDocument>,
    /// Headers and tables of contents that give the sizes of files.
    pub(super) headers: Vec<HeaderSizes>,
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
    first_node: NodeDocument,
    /// Every other node's part; null with one node.
    other_nodes: Option<NodeDocument>,
    /// The files by kind.
    pub(super) parts: Vec<Part>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct NodeDocument {
    /// Bytes of files.
    pub(super) bytes: u64,
    /// Number of files.
    pub(super) files: u64,
    /// Number of files and directories.
    inodes: u64,
}

impl StepDocument {
    pub(super) fn of(step: Written) -> Result<Self> {
        let node = |size: Taken| NodeDocument { bytes: size.bytes, files: size.files, inodes: size.inodes() };
        Ok(Self {
            bytes: step.bytes()?,
            files: step.files()?,
            nodes: step.nodes,
            first_node: node(step.on_first_node()?),
            other_nodes: step.on_other_nodes()?.map(node),
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
    smaller: Option<Box<BufferDocument>>,
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
    peak_bytes: Option<u64>,
    /// `saving.peak_inodes`; null for a remote.
    peak_inodes: Option<u64>,
}

impl TierDocument {
    pub(super) fn of(tier: String, steps: u64, step: Taken, peak: Option<&Saving>) -> Result<Self> {
        let all = of_steps(step, steps)?;
        Ok(Self {
            tier,
            steps,
            bytes: all.bytes,
            inodes: all.inodes(),
            peak_bytes: peak.map(|peak| peak.peak_bytes),
            peak_inodes: peak.map(|peak| peak.peak_inodes),
        })
    }
}

impl Report for EstimateDocument {
    fn fitted(&self, width: usize) -> String {
        let mut blocks = Vec::new();
        blocks.extend(self.found.as_ref().map(found));
        blocks.extend(headers(&self.headers));
        blocks.extend(self.model.as_ref().map(|described| model(described, width)));
        blocks.extend(self.shuffle_buffer.as_ref().map(buffer));
        blocks.push(files(&self.step));
        blocks.extend(self.saving.as_ref().map(saving));
        blocks.extend(self.run.as_ref().map(run));
        let unread = self.unreadable_headers.iter();
        let mut notes: Vec<String> =
            unread.map(|header| format!("note: cannot read {}: {}", header.path, header.reason)).collect();
        notes.extend(self.notes.iter().map(|note| format!("note: {note}")));
        if !notes.is_empty() {
            blocks.push(fit(&notes.join("\n"), width));
        }
        blocks.join("\n\n")
    }
}

fn found(found: &FoundDocument) -> String {
    let path = found.path.display();
    let mut lines = vec![match &found.step {
        Some(step) => format!("{path}: step {step}"),
        None => path.to_string(),
    }];
    let directories = match found.directories {
        0 => String::new(),
        directories => format!(" in {}", human::count(directories, "directory")),
    };
    lines.push(format!(
        "{} ({} bytes), {}{directories}, {}",
        human::bytes(found.bytes),
        found.bytes,
        human::count(found.files, "file"),
        human::count(found.inodes, "inode"),
    ));
    if let Some(allocated) = found.allocated_bytes {
        lines.push(format!("{} on disk", human::bytes(allocated)));
    }
    lines.join("\n")
}

fn headers(headers: &[HeaderSizes]) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    let row = |header: &HeaderSizes| {
        let mut expected = header.files.iter().map(|file| file.expected_bytes);
        let expected = expected.try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?));
        let there = header.files.iter().filter_map(|file| file.real_bytes);
        let missing = header.files.iter().filter(|file| file.real_bytes.is_none());
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), human::bytes);
        [
            header.path.clone(),
            header.kind.to_string(),
            header.entries.to_string(),
            size(header.payload_bytes),
            header.files.len().to_string(),
            missing.count().to_string(),
            size(expected),
            human::bytes(there.fold(0, u64::saturating_add)),
        ]
    };
    let headings = ["header", "kind", "entries", "tensors", "files", "missing", "expected", "found"];
    Some(table::text(&headings, &[2, 3, 4, 5, 6, 7], headers.iter().map(row)))
}

fn model(model: &ModelDocument, width: usize) -> String {
    let master =
        model.master.as_ref().map_or_else(String::new, |dtype| format!(", a copy of them as {dtype}"));
    let head = format!(
        "{} parameters in {}: weights as {}{master}, {}; layout {}, {}, {}",
        model.parameters,
        human::count(model.tensors, "tensor"),
        model.weights,
        model.optimizer,
        model.layout,
        model.sharding,
        human::count(model.ranks, "rank"),
    );
    let rows = [
        ("weights", model.payload.weights_bytes),
        ("copy of the weights", model.payload.master_bytes),
        ("optimizer", model.payload.optimizer_bytes),
        ("other tensors", model.payload.extra_bytes),
        ("file format", model.format_bytes),
    ];
    let rows = rows.into_iter().filter(|(_, bytes)| *bytes > 0);
    let rows = rows.map(|(what, bytes)| [what.to_owned(), human::bytes(bytes)]);
    let tensors = table::text(&["tensors", "size"], &[1], rows);
    let copies = match model.copies {
        1 => String::new(),
        copies => format!("\nthe tensors are written {copies} times"),
    };
    format!("{}\n\n{tensors}{copies}", fit(&head, width))
}

fn buffer(buffer: &BufferDocument) -> String {
    let smaller = buffer.smaller.as_deref();
    let rows = std::iter::once(buffer).chain(smaller).map(|buffer| {
        [
            format!("{} of {}", buffer.samples, human::bytes(buffer.sample_bytes)),
            human::bytes(buffer.payload_bytes),
            human::bytes(buffer.bytes),
        ]
    });
    let second =
        smaller.map(|smaller| format!("\nthe second line is for a buffer of {} samples", smaller.samples));
    table::text(&["shuffle buffer", "samples", "on disk"], &[1, 2], rows) + &second.unwrap_or_default()
}

fn files(step: &StepDocument) -> String {
    let row = |what: &str, bytes, files: u64, on: &str| {
        [what.to_owned(), human::bytes(bytes), files.to_string(), on.to_owned()]
    };
    let parts = step.parts.iter().map(|part| {
        let on = match (step.nodes, part.on_all_nodes) {
            (1, _) => "",
            (_, true) => "all nodes",
            (_, false) => "the first node",
        };
        row(part.what, part.bytes, part.files, on)
    });
    let rows = parts.chain([row("total", step.bytes, step.files, "")]);
    let text = table::text(&["part", "size", "files", "on"], &[1, 2], rows);
    let others = match step.nodes.saturating_sub(1) {
        0 => return text,
        1 => "the other".to_owned(),
        others => format!("each of {others} others"),
    };
    let others = step.other_nodes.iter().map(|size| (others.as_str(), size));
    let nodes = std::iter::once(("the first", &step.first_node)).chain(others);
    let nodes = nodes.map(|(node, size)| [node.to_owned(), human::bytes(size.bytes), size.files.to_string()]);
    format!("{text}\n\n{}", table::text(&["node", "size", "files"], &[1, 2], nodes))
}

fn saving(document: &SavingDocument) -> String {
    let SavingDocument { vault, saving } = document;
    let mut rows = Vec::new();
    let mut add = |what: String, bytes: u64| rows.push([what, human::bytes(bytes)]);
    let in_both = match (*vault, saving.steps_in_both) {
        (_, 0) => String::new(),
        ("copy", both) => format!(", {both} of them in both"),
        (_, both) => format!(", {both} of them shared"),
    };
    let has_vault = *vault != "none";
    let in_vault =
        if has_vault { format!(", {} in the vault{in_both}", saving.vault_steps) } else { String::new() };
    add(format!("older steps: {} of the trainer{in_vault}", saving.trainer_steps), saving.old_bytes);
    add("the new step".to_owned(), saving.new_bytes);
    if has_vault {
        add(format!("its copy in the vault, by {vault}"), saving.vault_copy_bytes);
    }
    if saving.temporary_bytes > 0 {
        add("in TMPDIR".to_owned(), saving.temporary_bytes);
    }
    add(format!("peak, in {} inodes", saving.peak_inodes), saving.peak_bytes);
    table::text(&["local tier while a step is saved", "size"], &[1], rows)
}

fn run(run: &RunDocument) -> String {
    let tiers = run.tiers.iter().map(|tier| {
        [tier.tier.clone(), tier.steps.to_string(), human::bytes(tier.bytes), tier.inodes.to_string()]
    });
    let headings = ["tier after the run", "steps", "size", "inodes or objects"];
    let (saves, written) = (human::count(run.saves, "save"), human::bytes(run.written_bytes));
    format!("{}\n{saves}: {written} written in total", table::text(&headings, &[1, 2, 3], tiers))
}
