//! The files that a framework writes for a model.
//!
//! The overhead around the tensors was measured on checkpoints that these frameworks wrote (torch 2.15, transformers
//! 5.23, accelerate 1.15, lightning 2.6, deepspeed 0.19, megatron-core 0.16, orbax-checkpoint 0.12); other versions
//! differ by a few hundred bytes per file.

mod hugging_face;
mod part;
mod sharded;
mod single_file;
mod torch_zip;

pub use self::part::Part;

use strum::{IntoStaticStr, VariantArray};

use super::amount::{Named, times, total};
use super::model::{Model, Payload};
use super::optimizer::Optimizer;
use super::ranks::{Ranks, Sharding};
use stepvault_core::error::{Error, ErrorKind, Result};
use stepvault_core::forecast::Taken;

/// The framework format of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Layout {
    /// One file by `torch.save`, with the weights and the optimizer. If sharded, one such file for each rank.
    Torch,
    /// The same in the format used before 2020.
    TorchLegacy,
    /// One file by `torch.save`, and one file for each rank with the states of its random number generators.
    CyclingUtils,
    /// One file by Lightning's `ModelCheckpoint`.
    Lightning,
    /// Only the weights, as `save_pretrained` writes them.
    Safetensors,
    /// A checkpoint of Hugging Face's `Trainer`.
    HfTrainer,
    /// A checkpoint by `Accelerator.save_state`.
    Accelerate,
    /// PyTorch's distributed checkpoint: FSDP2, torchtitan, prime-rl.
    Dcp,
    /// DCP's writer of safetensors, with the shards and the consolidated files.
    DcpHf,
    /// Megatron's `torch_dist`.
    Megatron,
    /// `DeepSpeed` with ZeRO stage 1 or 2.
    #[strum(serialize = "deepspeed")]
    DeepSpeed,
    /// `DeepSpeed` with ZeRO stage 3: the weights are in the optimizer's copy.
    #[strum(serialize = "deepspeed-zero3")]
    DeepSpeedZero3,
    /// One file for each rank with its FSDP shard of the weights, and one with the optimizer's, as verl writes them.
    FsdpFiles,
    /// Orbax, whose arrays are compressed: the estimate is the maximum.
    Orbax,
}

impl Layout {
    /// Returns the sharding if none is given: one process writes everything, or every rank its share, as the framework
    /// does.
    pub const fn usual_sharding(self) -> Sharding {
        match self {
            Self::Dcp
            | Self::DcpHf
            | Self::Megatron
            | Self::DeepSpeed
            | Self::DeepSpeedZero3
            | Self::FsdpFiles
            | Self::Orbax => Sharding::Sharded,
            _ => Sharding::RankZero,
        }
    }

    /// Returns the bytes of the tensors of a model that it saves.
    ///
    /// # Errors
    /// As [`Model::payload`].
    pub fn payload(self, model: &Model) -> Result<Payload> {
        let mut model = model.clone();
        match self {
            Self::Safetensors | Self::DcpHf => {
                model.optimizer = Optimizer::None;
                model.master = None;
                model.adamw_parameters = 0;
            }
            Self::DeepSpeed | Self::DeepSpeedZero3 => {
                model.master = Some(model.master.unwrap_or(sharded::DEEPSPEED_MASTER));
            }
            _ => {}
        }
        let payload = model.payload()?;
        Ok(match self {
            Self::DeepSpeedZero3 => Payload { weights_bytes: 0, ..payload },
            _ => payload,
        })
    }

    fn allows(self, sharding: Sharding) -> bool {
        match self {
            Self::Torch | Self::TorchLegacy => true,
            // If the state is the same on all ranks, one of them writes it.
            Self::Dcp => sharding != Sharding::Replicated,
            _ if self.usual_sharding() == Sharding::Sharded => sharding == Sharding::Sharded,
            _ => sharding != Sharding::Sharded,
        }
    }
}

impl Named for Layout {
    const WHAT: &'static str = "a layout";
}

/// Records of each step on a remote in addition to its files and part manifests: the claim of its attempt, and the
/// commit.
const REMOTE_RECORDS: u64 = 2;

/// A step as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its files.
    pub parts: Vec<Part>,
    /// Directories of each node's part of it, including the step's own; 0 if the step is a file.
    pub directories: u64,
    /// The number of nodes; at least 1.
    pub nodes: u64,
}

impl Written {
    /// Returns the bytes on all nodes together.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the number is too large.
    pub fn bytes(&self) -> Result<u64> {
        total(self.parts.iter().map(|part| part.bytes))
    }

    /// Returns the number of files on all nodes together.
    ///
    /// # Errors
    /// As [`Self::bytes`].
    pub fn files(&self) -> Result<u64> {
        total(self.parts.iter().map(|part| part.files))
    }

    /// Returns the first node's part, which is the largest.
    ///
    /// # Errors
    /// As [`Self::bytes`].
    pub fn on_first_node(&self) -> Result<Taken> {
        let share =
            |amount: u64, part: &Part| amount.div_ceil(if part.on_all_nodes { self.nodes.max(1) } else { 1 });
        Ok(Taken {
            bytes: total(self.parts.iter().map(|part| share(part.bytes, part)))?,
            files: total(self.parts.iter().map(|part| share(part.files, part)))?,
            directories: self.directories,
        })
    }

    /// Returns the part of every other node; `None` if there is one node.
    ///
    /// # Errors
    /// As [`Self::bytes`].
    pub fn on_other_nodes(&self) -> Result<Option<Taken>> {
        if self.nodes < 2 {
            return Ok(None);
        }
        let shared = || self.parts.iter().filter(|part| part.on_all_nodes);
        let files = total(shared().map(|part| part.files.div_ceil(self.nodes)))?;
        Ok(Some(Taken {
            bytes: total(shared().map(|part| part.bytes.div_ceil(self.nodes)))?,
            files,
            directories: if files == 0 { 0 } else { self.directories },
        }))
    }

    /// Returns the size of the step on a remote: its files, the part manifest of each node, the claim of its attempt
    /// and its commit. The bytes of the records, some kilobytes for a thousand files, are not included.
    ///
    /// # Errors
    /// As [`Self::bytes`].
    pub fn on_remote(&self) -> Result<Taken> {
        Ok(Taken {
            bytes: self.bytes()?,
            files: total([self.files()?, self.nodes, REMOTE_RECORDS])?,
            directories: 0,
        })
    }

    /// Adds files that each node writes beside those of the model.
    ///
    /// # Errors
    /// As [`Self::bytes`].
    pub fn add_on_each_node(&mut self, what: &'static str, files: u64, bytes: u64) -> Result<()> {
        self.parts.push(Part {
            what,
            files: times(files, self.nodes)?,
            bytes: times(bytes, self.nodes)?,
            on_all_nodes: true,
        });
        Ok(())
    }

    /// Returns a step without files, to which files can be added.
    pub fn nothing(nodes: u64) -> Self {
        Self { parts: Vec::new(), directories: 1, nodes }
    }
}

/// Returns the files of a model's step. `largest_file_bytes` is the size at which weights in safetensors are split
/// into another file.
///
/// # Errors
/// [`ErrorKind::Usage`] for a layout that cannot be written this way, an impossible model, and numbers that are too
/// large.
pub fn written(
    model: &Model,
    layout: Layout,
    sharding: Sharding,
    ranks: Ranks,
    largest_file_bytes: u64,
) -> Result<Written> {
    model.check()?;
    if !layout.allows(sharding) {
        let usual = layout.usual_sharding().name();
        return Err(Error::new(ErrorKind::Usage, "no framework writes such a step")
            .because(format!("layout {} cannot be {}", layout.name(), sharding.name()))
            .hint(format!("use {usual}; for FSDP and ZeRO use layout dcp, deepspeed or fsdp-files")));
    }
    let weights_files = |bytes: u64| bytes.div_ceil(largest_file_bytes.max(1)).max(1);
    let (mut parts, directories) = match layout {
        Layout::Torch | Layout::TorchLegacy if sharding == Sharding::Sharded => {
            (single_file::of_each_rank(model, layout == Layout::TorchLegacy, ranks)?, 1)
        }
        Layout::Torch => (vec![single_file::torch(model, 0)?], 0),
        Layout::TorchLegacy => (vec![single_file::legacy(model)?], 0),
        Layout::CyclingUtils => (single_file::cycling_utils(model, ranks)?, 1),
        Layout::Lightning => (vec![single_file::torch(model, single_file::LIGHTNING_PICKLE_BYTES)?], 0),
        Layout::Safetensors => (hugging_face::pretrained(model, weights_files)?, 1),
        Layout::HfTrainer => (hugging_face::trainer(model, weights_files, ranks)?, 1),
        Layout::Accelerate => (hugging_face::accelerate(model, weights_files, ranks)?, 1),
        Layout::Dcp => (sharded::dcp(model, sharding, ranks)?, 1),
        Layout::DcpHf => (hugging_face::by_dcp(model, weights_files, ranks)?, 2),
        Layout::Megatron => (sharded::megatron(model, ranks)?, 1),
        Layout::DeepSpeed => (sharded::stages_1_and_2(model, ranks)?, 1),
        Layout::DeepSpeedZero3 => (sharded::stage_3(model, ranks)?, 1),
        Layout::FsdpFiles => (sharded::fsdp_files(model, ranks)?, 3),
        Layout::Orbax => (sharded::orbax(model, ranks)?, sharded::ORBAX_DIRECTORIES),
    };
    if sharding == Sharding::Replicated {
        for part in &mut parts {
            *part = part::replicated(*part, ranks)?;
        }
    }
    let step = Written { parts, directories, nodes: ranks.nodes() };
    step.bytes()?;
    Ok(step)
}

#[cfg(test)]
mod tests;
