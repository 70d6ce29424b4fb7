//! `estimate`: how large a checkpoint is or will be, and what each tier holds of a run.

#![expect(clippy::doc_markdown, reason = "the comments are the help texts")]

mod document;
mod model;
mod text;
mod there;
mod tiers;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use stepvault_core::estimate::{Dtype, Layout, Optimizer, Overhead, Sharding, ShuffleBuffer, VaultCopy};
use stepvault_core::{Error, ErrorKind, Result};

use self::document::{BufferDocument, EstimateDocument};
use super::Session;
use crate::arguments::values;
use crate::context::Settings;
use crate::exit_code::ExitCode;

/// Say how large a checkpoint is or will be, what the local tier takes while it is saved, and each tier over a run
///
/// Of PATH it takes what is there: a step, the newest step of a directory, or the header of a safetensors file, DCP's
/// .metadata or an index of weights, which say how large their files are when they are whole. No tensor is read. Without
/// PATH it reckons from a model's numbers. Counts are written as 250000, 30e9, 7B or 1.5T, sizes with their unit.
#[derive(Debug, Args)]
pub(crate) struct EstimateArguments {
    /// A step, a directory of steps, or a file
    #[arg(value_name = "PATH", conflicts_with = "params")]
    path: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    buffer: BufferArguments,
    #[command(flatten)]
    tiers: TierArguments,
}

/// A model by its numbers.
#[derive(Debug, Args)]
#[command(next_help_heading = "From a model's numbers")]
struct ModelArguments {
    /// How many parameters the model has
    #[arg(long, value_name = "N", value_parser = values::count)]
    params: Option<u64>,
    /// How many tensors they are in; it counts for tiny models and for thousands of ranks [default: 500]
    #[arg(long, value_name = "N", requires = "params", value_parser = values::count)]
    tensors: Option<u64>,
    /// What the weights are saved as: fp64, fp32, fp16, bf16, fp8, int8 or int4 [default: bf16]
    #[arg(long, value_name = "DTYPE", requires = "params", value_parser = values::checked::<Dtype>)]
    weights: Option<Dtype>,
    /// none, sgd, sgd-momentum, adam, adamw, adamw-8bit, adafactor, lion or muon; with its states' dtype: adamw-bf16
    /// [default: adamw-fp32]
    #[arg(long, value_name = "NAME", requires = "params", value_parser = values::checked::<Optimizer>)]
    optimizer: Option<Optimizer>,
    /// A second copy of the weights that the optimizer keeps and saves: fp32
    #[arg(long, value_name = "DTYPE", requires = "params", value_parser = values::checked::<Dtype>)]
    master: Option<Dtype>,
    /// With muon: the parameters that AdamW updates (embeddings, head, norms)
    #[arg(long, value_name = "N", requires = "params", value_parser = values::count)]
    adamw_params: Option<u64>,
    /// Bytes of other tensors in the step
    #[arg(long, value_name = "SIZE", requires = "params", value_parser = values::size)]
    extra: Option<u64>,
    /// Whose files: torch, torch-legacy, cycling-utils, lightning, safetensors, hf-trainer, accelerate, dcp, dcp-hf,
    /// megatron, deepspeed, deepspeed-zero3, fsdp-files or orbax [default: dcp with several ranks, else torch]
    #[arg(long, value_name = "NAME", requires = "params", value_parser = values::checked::<Layout>)]
    layout: Option<Layout>,
    /// Who writes what: sharded (each rank its share), replicated (each node all of it), rank-zero [default: as the
    /// layout is written]
    #[arg(long, value_name = "HOW", requires = "params", value_parser = values::checked::<Sharding>)]
    sharding: Option<Sharding>,
    /// How many ranks each of --nodes has [default: 1]
    #[arg(long, value_name = "N", requires = "params", value_parser = values::count)]
    ranks_per_node: Option<u64>,
    /// Where weights in safetensors are split into another file [default: 50 GB]
    #[arg(long, value_name = "SIZE", requires = "params", value_parser = values::size)]
    max_file_size: Option<u64>,
}

/// A buffer of samples that is saved with the step.
#[derive(Debug, Args)]
#[command(next_help_heading = "A data loader's shuffle buffer")]
struct BufferArguments {
    /// How many samples the data loader of each node keeps to shuffle, and saves with every step
    #[arg(long, value_name = "N", requires = "sample", value_parser = values::count)]
    shuffle_buffer: Option<u64>,
    /// Bytes of one sample
    #[arg(long, value_name = "SIZE", requires = "shuffle_buffer", value_parser = values::size)]
    sample: Option<u64>,
    /// How often a sample's bytes are on the disk; 1.5 is what TensorFlow took of a buffer of 125 GB
    #[arg(long, value_name = "FACTOR", default_value = "1.5", value_parser = values::checked::<Overhead>)]
    buffer_overhead: Overhead,
}

/// What is kept, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Over a run")]
struct TierArguments {
    /// How many steps the run has
    #[arg(long, value_name = "N", requires = "every", value_parser = values::count)]
    steps: Option<u64>,
    /// A save after every so many steps
    #[arg(long, value_name = "N", requires = "steps", value_parser = values::count)]
    every: Option<u64>,
    /// Time between two saves, for rules that go by time
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    save_interval: Option<Duration>,
    /// How many steps the vault keeps, instead of [keep.local]
    #[arg(long, value_name = "N")]
    keep: Option<u32>,
    /// How many steps each remote keeps, instead of [keep.remote]
    #[arg(long, value_name = "N")]
    keep_remote: Option<u32>,
    /// How many steps the trainer keeps in its own directory
    #[arg(long, value_name = "N", default_value_t = 1)]
    trainer_keep: u64,
    /// How steps get into the vault: hard-link, reflink, copy, or none [default: by local.links, where "auto" counts as
    /// hard-link, or as copy for steps at PATH that their framework may overwrite]
    #[arg(long, value_name = "HOW", value_parser = values::checked::<VaultCopy>)]
    vault: Option<VaultCopy>,
    /// The framework writes the whole step into TMPDIR first, as TensorFlow does for a bucket; torch.save does not
    #[arg(long)]
    through_tmpdir: bool,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: EstimateArguments) -> Result<ExitCode> {
    let is_given = arguments.path.is_some()
        || arguments.model.params.is_some()
        || arguments.buffer.shuffle_buffer.is_some();
    if !is_given {
        return Err(Error::new(ErrorKind::Usage, "there is nothing to estimate").hint(
            "give a PATH, a model as --params 30e9, or a buffer as --shuffle-buffer 250000 --sample 500KB",
        ));
    }
    let settings = Settings::load(session)?;
    let (mut document, overwritten_by) = match &arguments.path {
        Some(path) => there::document(path, &settings).await?,
        None => (model::document(&arguments.model, &settings)?, None),
    };
    add_buffer(&mut document, &arguments.buffer)?;
    tiers::add(
        &mut document,
        &arguments.tiers,
        &settings,
        overwritten_by.as_deref(),
    )?;
    session.output.result(&document)?;
    Ok(ExitCode::Done)
}

/// Adds the buffer that each node saves.
fn add_buffer(document: &mut EstimateDocument, arguments: &BufferArguments) -> Result<()> {
    let (Some(samples), Some(sample_bytes)) = (arguments.shuffle_buffer, arguments.sample) else {
        return Ok(());
    };
    let buffer = ShuffleBuffer {
        samples,
        sample_bytes,
        overhead: arguments.buffer_overhead,
    };
    document.shuffle_buffer = Some(BufferDocument::of(&buffer)?);
    // TensorFlow's bundle: the data and its index.
    document
        .step
        .add_on_each_node("shuffle buffer", 2, buffer.bytes()?)
}
