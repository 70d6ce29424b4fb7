//! Names of files and directories that are no part of a checkpoint, and what the others can hold.

use crate::names::NAMES;

/// Whether tools or filesystems leave entries of this name anywhere: no part of what a trainer writes.
pub fn is_clutter(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    NAMES.clutter.has(&*lower)
        || NAMES.clutter_prefixes.iter().any(|prefix| lower.starts_with(prefix))
        || NAMES.clutter_extensions.has(extension_of(&lower))
}

/// Whether a path below a step is clutter, or lies in it.
pub fn is_in_clutter(path: &str) -> bool {
    path.split('/').any(is_clutter)
}

/// Whether a name alone shows that a file is no checkpoint: logs, event files, text, configuration, source code, images,
/// videos and clutter.
pub fn is_no_checkpoint(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    is_clutter(name)
        || lower.contains("tfevents")
        || NAMES.telling.has(&*lower)
        || lower.starts_with('_') && lower.ends_with("metadata")
        || lower.starts_with("readme.")
        || NAMES.others.has(extension_of(&lower))
        || is_text(name)
}

/// Whether a directory of this name is never searched for checkpoints.
pub fn is_tracker(name: &str) -> bool {
    is_clutter(name) || NAMES.trackers.has(name)
}

/// Whether a file is a text that may be a step's configuration.
pub fn is_text(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    NAMES.texts.has(extension_of(&lower)) && !is_model_text(&lower)
}

/// Whether a file is a model that a library wrote as text: its name consists of words for a model, and a number.
fn is_model_text(lower: &str) -> bool {
    let stem = lower.rsplit_once('.').map_or(lower, |(stem, _)| stem);
    let mut words = stem
        .split(|character: char| !character.is_ascii_alphabetic())
        .filter(|word| !word.is_empty())
        .peekable();
    let has_number = stem.contains(|character: char| character.is_ascii_digit());
    has_number && words.peek().is_some() && words.all(|word| NAMES.model_texts.has(word))
}

/// Whether a file of this path inside a step may hold the state of a training: its weights at least.
pub fn may_hold_state(path: &str) -> bool {
    let is_hidden = path.split('/').any(|name| name.starts_with('.') || is_clutter(name));
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    !is_hidden && !is_no_checkpoint(name) && !name.ends_with(".metadata")
}

/// Whether a file holds weights and nothing else, by the format that its name shows.
pub fn holds_weights_alone(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let is_torchs = NAMES.torch_weights.iter().any(|stem| lower.starts_with(stem));
    is_torchs || NAMES.weights.has(extension_of(&lower))
}

/// Returns the extension of the content.
fn extension_of(lower: &str) -> &str {
    let (stem, extension) = lower.rsplit_once('.').unwrap_or((lower, ""));
    if NAMES.compressions.has(extension) {
        return stem.rsplit_once('.').map_or("", |(_, inner)| inner);
    }
    extension
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_hold_no_state() {
        for name in [
            "train.log",
            "events.out.tfevents.1732426428.host",
            "notes.txt",
            "README.md",
            "README",
            "metrics.csv",
            "config.json",
            "hparams.yaml",
            "sample.png",
            "video.mp4",
            "report.html",
            "train.py",
            "._model.pt",
            ".nfs0001",
            ".DS_Store",
            "model.safetensors.index.json",
            "log.txt.gz",
            "scan.nii.gz",
            "x.lock",
            "tokenizer.model",
            "config_10.json",
            "metrics_10.json",
            "__0.metadata",
            ".metadata",
            "_METADATA",
        ] {
            assert!(!may_hold_state(name), "{name}");
        }
        assert!(!may_hold_state(".ipynb_checkpoints/model-checkpoint.pt"));
    }

    #[test]
    fn any_other_file_may_hold_it() {
        for name in [
            "model_10.ubj",
            "model_epoch10.joblib",
            "model.cbm",
            "snapshot.cbsnapshot",
            "ppo.cleanrl_model",
            "model.onnx",
            "checkpoint_100",
            "model_10.json",
            "model_10.txt",
            "xgb_model_5.json",
            "x.pt",
            "model.tar.gz",
            "d/0a1b",
        ] {
            assert!(may_hold_state(name), "{name}");
        }
    }
}
