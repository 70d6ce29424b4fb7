//! Estimates a step from a model's numbers.

use stepvault_core::Result;
use stepvault_diagnose::estimate::{
    Dtype, Layout, Model, Named, Optimizer, Ranks, Sharding, Written, written,
};

use super::ModelArguments;
use super::document::{EstimateDocument, ModelDocument};
use crate::context::Settings;

/// Default maximum file size of `save_pretrained` in transformers 5: `max_shard_size` in `modeling_utils.py`. It was
/// 5 GB before.
const LARGEST_FILE_BYTES: u64 = 50_000_000_000;

/// Returns the step, without files if no model is given, and describes the model in the document.
pub(super) fn step(
    arguments: &ModelArguments,
    settings: &Settings,
    document: &mut EstimateDocument,
) -> Result<Written> {
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
