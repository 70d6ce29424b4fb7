//! A trainer that writes real safetensors checkpoints as trainers do: under a temporary name, then renamed.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stepvault_core::{Error, ErrorKind, Result, Sha256Digest, Timestamp};

const HIDDEN: u64 = 256;
const VOCABULARY: u64 = 1024;
const LAYERS: u64 = 4;

/// A file of a checkpoint as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenFile {
    pub(super) name: &'static str,
    pub(super) sha256: Sha256Digest,
    pub(super) bytes: u64,
    pub(super) modified: Timestamp,
}

/// A written checkpoint.
#[derive(Debug, Clone)]
pub(super) struct WrittenCheckpoint {
    pub(super) path: PathBuf,
    pub(super) files: Vec<WrittenFile>,
}

impl WrittenCheckpoint {
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Number formats of tensors.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum DataType {
    Bf16,
    F32,
}

/// Writes `step_N` below `directory`.
pub(super) fn write_checkpoint(directory: &Path, step: u64, loss: f64) -> Result<WrittenCheckpoint> {
    let path = directory.join(format!("step_{step}"));
    let temporary = directory.join(format!(".step_{step}.tmp"));
    let fault = |error| {
        Error::new(ErrorKind::Failed, "cannot write a checkpoint").on(path.display()).caused_by(error)
    };
    std::fs::create_dir_all(&temporary).map_err(fault)?;
    let state = serde_json::json!({ "global_step": step, "loss": loss }).to_string();
    let model = safetensors(&model_tensors(), DataType::Bf16, step);
    let optimizer = safetensors(&optimizer_tensors(), DataType::F32, step);
    let mut files = Vec::new();
    for (name, bytes) in [
        ("model.safetensors", model),
        ("optimizer.safetensors", optimizer),
        ("trainer_state.json", state.into_bytes()),
    ] {
        let mut file = File::create_new(temporary.join(name)).map_err(fault)?;
        file.write_all(&bytes).map_err(fault)?;
        let modified = file.metadata().and_then(|metadata| metadata.modified());
        files.push(WrittenFile {
            name,
            sha256: Sha256Digest::of(&bytes),
            bytes: bytes.len() as u64,
            modified: modified.map_err(fault)?.into(),
        });
    }
    rename_as_trainers_do(&temporary, &path).map_err(fault)?;
    Ok(WrittenCheckpoint { path, files })
}

#[expect(clippy::disallowed_methods, reason = "this simulates a trainer, which uses no durable renames")]
fn rename_as_trainers_do(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::rename(from, to)
}

fn model_tensors() -> Vec<(String, Vec<u64>)> {
    let layer = |layer| {
        let projections = ["q_proj", "k_proj", "v_proj", "o_proj"];
        let projections = projections.map(|name| (format!("self_attn.{name}"), vec![HIDDEN, HIDDEN]));
        let norm = ("input_layernorm".to_owned(), vec![HIDDEN]);
        let tensors = projections.into_iter().chain([norm]);
        tensors.map(move |(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape))
    };
    let embedding = ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN]);
    std::iter::once(embedding).chain((0..LAYERS).flat_map(layer)).collect()
}

fn optimizer_tensors() -> Vec<(String, Vec<u64>)> {
    let moments = ["exp_avg", "exp_avg_sq"];
    let of_tensor =
        |(name, shape): (String, Vec<u64>)| moments.map(|moment| (format!("{name}.{moment}"), shape.clone()));
    model_tensors().into_iter().flat_map(of_tensor).collect()
}

/// Builds a safetensors file: the header's length in eight bytes, the header in JSON, the tensors' bytes. The weights
/// follow from the seed.
fn safetensors(tensors: &[(String, Vec<u64>)], dtype: DataType, seed: u64) -> Vec<u8> {
    let mut data = Vec::new();
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), serde_json::json!({ "format": "pt" }));
    let mut random = fastrand::Rng::with_seed(seed);
    for (name, shape) in tensors {
        let begin = data.len();
        for _ in 0..shape.iter().product::<u64>() {
            // A small number of either sign, like a trained weight.
            let bytes = ((random.f32() - 0.5) * 0.1).to_le_bytes();
            match dtype {
                // The upper half of an f32 is the number in bfloat16.
                DataType::Bf16 => data.extend_from_slice(&bytes[2..]),
                DataType::F32 => data.extend_from_slice(&bytes),
            }
        }
        let entry =
            serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert(name.clone(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    // Tensors start at a multiple of eight bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_slice(), &data].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_valid_safetensors() {
        let file = safetensors(&model_tensors(), DataType::Bf16, 7);
        let header_bytes = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
        assert_eq!(header_bytes % 8, 0);
        let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header_bytes]).unwrap();
        let mut end = 0;
        for (name, shape) in model_tensors() {
            let entry = &header[&name];
            assert_eq!(entry["dtype"], "BF16");
            assert_eq!(entry["data_offsets"][0], end);
            end += shape.iter().product::<u64>() * 2;
            assert_eq!(entry["data_offsets"][1], end);
        }
        assert_eq!(file.len(), 8 + header_bytes + usize::try_from(end).unwrap());
    }

    #[test]
    fn a_checkpoint_appears_whole() {
        let directory = tempfile::tempdir().unwrap();
        let written = write_checkpoint(directory.path(), 10, 2.5).unwrap();
        assert_eq!(written.path, directory.path().join("step_10"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        for file in &written.files {
            let bytes = std::fs::read(written.path.join(file.name)).unwrap();
            assert_eq!((Sha256Digest::of(&bytes), bytes.len() as u64), (file.sha256, file.bytes));
        }
    }
}
