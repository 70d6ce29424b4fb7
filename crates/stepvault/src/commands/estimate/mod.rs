//! `estimate`: computes the size of a checkpoint, and the space that a run needs on each tier.

pub(super) mod document;
mod tiers;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_diagnose::estimate::{
    Dtype, Layout, Model, Named, Optimizer, Overhead, Ranks, Sharding, ShuffleBuffer, VaultCopy, Written,
    written,
};

use self::document::{BufferDocument, EstimateDocument, ModelDocument, StepDocument};
use crate::arguments::values;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::session::Session;

/// Estimate the size of a checkpoint, and the space that saving it and a whole run need on each tier
///
/// With PATH, measure a step, the newest step of a directory, or the files that the header of a safetensors file, DCP's
/// .metadata or an index of weights describes, at their complete size. No tensor is read. Without PATH, compute the
/// size from a model's numbers. Give counts as 250000, 30e9, 7B or 1.5T, and sizes with their unit.
#[derive(Debug, Args)]
pub(crate) struct EstimateArguments {
    /// Step, directory of steps, or file
    #[arg(value_name = "PATH", conflicts_with = "params")]
    path: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    buffer: BufferArguments,
    #[command(flatten)]
    tiers: TierArguments,
}

/// Arguments that describe a model.
#[expect(clippy::doc_markdown, reason = "the comments are the help texts")]
#[derive(Debug, Args)]
#[command(next_help_heading = "From a model's numbers")]
struct ModelArguments {
    /// Number of parameters of the model
    #[arg(long, value_name = "N", value_parser = values::count)]
    params: Option<u64>,
    /// Number of tensors; matters for tiny models and for thousands of ranks [default: 500]
    #[arg(long, value_name = "N", requires = "params", value_parser = values::count)]
    tensors: Option<u64>,
    /// Data type of the weights: fp64, fp32, fp16, bf16, fp8, int8 or int4 [default: bf16]
    #[arg(long, value_name = "DTYPE", requires = "params", value_parser = values::named::<Dtype>)]
    weights: Option<Dtype>,
    /// Optimizer: none, sgd, sgd-momentum, adam, adamw, adamw-8bit, adafactor, lion or muon; append the data type of
    /// its states, as in adamw-bf16 [default: adamw-fp32]
    #[arg(long, value_name = "NAME", requires = "params", value_parser = values::checked::<Optimizer>)]
    optimizer: Option<Optimizer>,
    /// Data type of a second copy of the weights that the optimizer saves, such as fp32
    #[arg(long, value_name = "DTYPE", requires = "params", value_parser = values::named::<Dtype>)]
    master: Option<Dtype>,
    /// With muon: number of parameters that AdamW updates (embeddings, head, norms)
    #[arg(long, value_name = "N", requires = "params", value_parser = values::count)]
    adamw_params: Option<u64>,
    /// Size of other tensors in the step
    #[arg(long, value_name = "SIZE", requires = "params", value_parser = values::size)]
    extra: Option<u64>,
    /// File layout: torch, torch-legacy, cycling-utils, lightning, safetensors, hf-trainer, accelerate, dcp, dcp-hf,
    /// megatron, deepspeed, deepspeed-zero3, fsdp-files or orbax [default: dcp with several ranks, else torch]
    #[arg(long, value_name = "NAME", requires = "params", value_parser = values::named::<Layout>)]
    layout: Option<Layout>,
    /// Which ranks write: sharded (each rank its share), replicated (each node everything), rank-zero [default: the
    /// usual one for the layout]
    #[arg(long, value_name = "HOW", requires = "params", value_parser = values::named::<Sharding>)]
    sharding: Option<Sharding>,
    /// Number of ranks on each of --nodes [default: 1]
    #[arg(long, value_name = "N", requires = "params", value_parser = values::count)]
    ranks_per_node: Option<u64>,
    /// Maximum size of one safetensors file of weights [default: 50 GB]
    #[arg(long, value_name = "SIZE", requires = "params", value_parser = values::size)]
    max_file_size: Option<u64>,
}

/// Arguments that describe a buffer of samples saved with each step.
#[derive(Debug, Args)]
#[command(next_help_heading = "A data loader's shuffle buffer")]
struct BufferArguments {
    /// Number of samples in each node's shuffle buffer, which the data loader saves with every step
    #[arg(long, value_name = "N", requires = "sample", value_parser = values::count)]
    shuffle_buffer: Option<u64>,
    /// Size of one sample
    #[arg(long, value_name = "SIZE", requires = "shuffle_buffer", value_parser = values::size)]
    sample: Option<u64>,
    /// Ratio of a sample's bytes on disk to its size; 1.5 was measured with TensorFlow and a buffer of 125 GB
    #[arg(long, value_name = "FACTOR", default_value = "1.5", value_parser = values::checked::<Overhead>)]
    buffer_overhead: Overhead,
}

/// Arguments that describe a run and its retention.
#[derive(Debug, Args)]
#[command(next_help_heading = "Over a run")]
struct TierArguments {
    /// Number of training steps of the run
    #[arg(long, value_name = "N", requires = "every", value_parser = values::count)]
    steps: Option<u64>,
    /// Number of training steps between two saves
    #[arg(long, value_name = "N", requires = "steps", value_parser = values::count)]
    every: Option<u64>,
    /// Time between two saves, for keep rules based on time
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    save_interval: Option<Duration>,
    /// Number of steps that the vault keeps, instead of [keep.local]
    #[arg(long, value_name = "N")]
    keep: Option<u32>,
    /// Number of steps that each remote keeps, instead of [keep.remote]
    #[arg(long, value_name = "N")]
    keep_remote: Option<u32>,
    /// Number of steps that the trainer keeps in its own directory
    #[arg(long, value_name = "N", default_value_t = 1)]
    trainer_keep: u64,
    /// How steps get into the vault: hard-link, reflink, copy, or none [default: from local.links; "auto" means
    /// hard-link, or copy for steps at PATH whose framework may overwrite finished files]
    #[arg(long, value_name = "HOW", value_parser = values::named::<VaultCopy>)]
    vault: Option<VaultCopy>,
    /// The framework writes the whole step to TMPDIR first, as TensorFlow does for a bucket; torch.save does not
    #[arg(long)]
    through_tmpdir: bool,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: EstimateArguments) -> Result<ExitCode> {
    let is_given = arguments.path.is_some()
        || arguments.model.params.is_some()
        || arguments.buffer.shuffle_buffer.is_some();
    if !is_given {
        return Err(Error::new(ErrorKind::Usage, "nothing to estimate").hint(
            "give a PATH, a model with --params 30e9, or a buffer with --shuffle-buffer 250000 --sample 500KB",
        ));
    }
    let settings = Settings::load(session)?;
    let mut document = EstimateDocument::default();
    let (mut step, overwritten_by) = match &arguments.path {
        Some(path) => tiers::measured(path, &settings, &mut document).await?,
        None => (step(&arguments.model, &settings, &mut document)?, None),
    };
    if let (Some(samples), Some(sample_bytes)) = (arguments.buffer.shuffle_buffer, arguments.buffer.sample) {
        let buffer = ShuffleBuffer { samples, sample_bytes, overhead: arguments.buffer.buffer_overhead };
        document.shuffle_buffer = Some(BufferDocument::of(&buffer)?);
        // TensorFlow's bundle: the data and its index.
        step.add_on_each_node("shuffle buffer", 2, buffer.bytes()?)?;
    }
    tiers::add(&mut document, &step, &arguments.tiers, &settings, overwritten_by.as_deref())?;
    document.step = StepDocument::of(step)?;
    session.output.result(&document)?;
    Ok(ExitCode::Done)
}

/// Default maximum file size of `save_pretrained` in transformers 5: `max_shard_size` in `modeling_utils.py`. It was
/// 5 GB before.
const LARGEST_FILE_BYTES: u64 = 50_000_000_000;

/// Returns the step, without files if no model is given, and describes the model in the document.
fn step(arguments: &ModelArguments, settings: &Settings, document: &mut EstimateDocument) -> Result<Written> {
    let nodes = settings.config.nodes.as_ref().map_or(1, |nodes| nodes.count() as u64);
    let Some(parameters) = arguments.params else {
        return Ok(Written::nothing(nodes));
    };
    let ranks = Ranks::new(nodes, arguments.ranks_per_node.unwrap_or(1))?;
    let model = Model {
        parameters,
        tensors: arguments.tensors.unwrap_or(Model::USUAL_TENSORS.min(parameters)),
        weights: arguments.weights.unwrap_or(Dtype::Bf16),
        master: arguments.master,
        optimizer: arguments.optimizer.unwrap_or(Optimizer::Adam(Dtype::Fp32)),
        adamw_parameters: arguments.adamw_params.unwrap_or_default(),
        extra_bytes: arguments.extra.unwrap_or_default(),
    };
    let layout = arguments.layout.unwrap_or(match arguments.sharding {
        Some(Sharding::Sharded) => Layout::Dcp,
        None if ranks.count() > 1 => Layout::Dcp,
        Some(Sharding::Replicated | Sharding::RankZero) | None => Layout::Torch,
    });
    let sharding = arguments.sharding.unwrap_or(layout.usual_sharding());
    let largest_file_bytes = arguments.max_file_size.unwrap_or(LARGEST_FILE_BYTES);
    let step = written(&model, layout, sharding, ranks, largest_file_bytes)?;
    let payload = layout.payload(&model)?;
    // Every node writes a replicated step's tensors.
    let copies = if sharding == Sharding::Replicated { nodes } else { 1 };
    let tensor_bytes = payload.total_bytes()?.saturating_mul(copies);
    document.model = Some(ModelDocument {
        parameters,
        tensors: model.tensors,
        weights: model.weights.name(),
        master: model.master.map(Named::name),
        optimizer: model.optimizer.to_string(),
        layout: layout.name(),
        sharding: sharding.name(),
        ranks: ranks.count(),
        copies,
        payload,
        format_bytes: step.bytes()?.saturating_sub(tensor_bytes),
    });
    document.notes.extend(notes(arguments, &model, layout));
    let averages = step.parts.iter().filter_map(|part| part.bytes.checked_div(part.files));
    document.notes.extend(tiers::refusal_note(averages.max().unwrap_or(0)));
    Ok(step)
}

/// Returns the assumptions and limitations of the estimate.
fn notes(arguments: &ModelArguments, model: &Model, layout: Layout) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: &str| notes.push(text.to_owned());
    match model.optimizer {
        Optimizer::Adafactor => {
            note("adafactor: a row and a column of each tensor, assuming square matrices; no momentum");
        }
        Optimizer::Muon(_) if arguments.adamw_params.is_none() => {
            note(
                "muon: one momentum per parameter; give --adamw-params N for parameters that AdamW updates, which have two",
            );
        }
        Optimizer::Adam8Bit => {
            note("adamw-8bit: tensors of fewer than 4096 elements are kept as fp32, which is not counted");
        }
        _ => {}
    }
    match layout {
        Layout::Orbax => note("orbax compresses what it writes: this is an upper bound"),
        Layout::DeepSpeed | Layout::DeepSpeedZero3 if model.master.is_none() => {
            note(
                "DeepSpeed's optimizer always keeps a copy of the weights, as fp32 unless --master is given",
            );
        }
        _ => {}
    }
    notes
}
