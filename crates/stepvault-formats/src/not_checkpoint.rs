//! Names of files and directories that are no part of a checkpoint, and what the others can hold.

/// What tools and filesystems leave behind anywhere.
const CLUTTER: [&[&str]; 6] = [
    // Of version control.
    &[".git", ".gitattributes", ".gitignore", ".gitkeep"],
    // Caches and locks.
    &[".cache", ".huggingface", ".pytest_cache", "__pycache__"],
    &[".ipynb_checkpoints", ".locks"],
    // Of desktops.
    &[".ds_store", ".directory", "__macosx", "thumbs.db"],
    &["desktop.ini"],
    // Of filesystems.
    &["lost+found", ".snapshot", ".fseventsd"],
];
/// How the names of such files begin: macOS archives, deleted files that are open on NFS and FUSE, lock files.
const CLUTTER_PREFIXES: [&str; 5] = ["._", ".nfs", ".fuse_hidden", ".trash", ".~lock"];
/// Directories that trackers of experiments write.
const TRACKERS: [&str; 2] = ["wandb", "mlruns"];
/// Files of text that may belong to a step of the same number: its configuration.
const TEXTS: [&str; 8] = ["json", "yaml", "yml", "toml", "txt", "ini", "cfg", "conf"];
/// Extensions of logs, tables, documents, programs, pictures, sound, videos and databases.
const OTHERS: [&str; 68] = [
    "log", "out", "err", "md", "rst", "csv", "tsv", "jsonl", "ndjson", "xml", "html", "htm", "css", "js",
    "ts", "py", "pyc", "ipynb", "sh", "bash", "slurm", "sbatch", "c", "h", "cc", "cpp", "cu", "rs", "go",
    "java", "png", "jpg", "jpeg", "gif", "bmp", "svg", "webp", "tif", "tiff", "ico", "pdf", "ps", "eps",
    "mp4", "avi", "mov", "mkv", "webm", "mp3", "wav", "flac", "ogg", "m4a", "nii", "dcm", "lock", "pid",
    "wandb", "prof", "trace", "parquet", "arrow", "db", "sqlite", "sqlite3", "bib", "tex", "swp",
];
/// Extensions of compressed files, behind that of their content.
const COMPRESSIONS: [&str; 4] = ["gz", "bz2", "xz", "zst"];
/// Extensions of formats that hold weights and nothing else.
const WEIGHTS: [&str; 6] = ["safetensors", "gguf", "onnx", "tflite", "engine", "torchscript"];
/// Names of files that tell nothing more than their names do, in lower case.
const NAMES: [&[&str]; 4] = [
    &["readme", "license", "notice", "makefile", "dockerfile"],
    &["stable", "done", "complete", "_success", "commit_success"],
    &["tokenizer.model", "spiece.model", "vocab.bpe"],
    &["evaluations.npz", "manifest.ocdbt", "_sharding"],
];
/// Words of names such as `model_10.json`, which some libraries give to models.
const MODEL_WORDS: [&str; 10] =
    ["model", "booster", "xgb", "xgboost", "lgb", "lgbm", "lightgbm", "catboost", "iter", "epoch"];

/// Whether tools or filesystems leave entries of this name anywhere: no part of what a trainer writes.
pub fn is_clutter(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    is_among(&CLUTTER, &lower)
        || CLUTTER_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
        || CLUTTER_EXTENSIONS.contains(&extension_of(&lower))
}

fn is_among(groups: &[&[&str]], name: &str) -> bool {
    groups.iter().any(|group| group.contains(&name))
}

/// Extensions of lock files, compiled programs and editors' files.
const CLUTTER_EXTENSIONS: [&str; 3] = ["lock", "pyc", "swp"];

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
        || is_among(&NAMES, &lower)
        || lower.starts_with('_') && lower.ends_with("metadata")
        || lower.starts_with("readme.")
        || OTHERS.contains(&extension_of(&lower))
        || is_text(name)
}

/// Whether a directory of this name is never searched for checkpoints.
pub fn is_tracker(name: &str) -> bool {
    is_clutter(name) || TRACKERS.contains(&name)
}

/// Whether a file is a text that may be a step's configuration.
pub fn is_text(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    TEXTS.contains(&extension_of(&lower)) && !is_model_text(&lower)
}

/// Whether a file is a model that a library wrote as text: its name consists of words for a model, and a number.
fn is_model_text(lower: &str) -> bool {
    let stem = lower.rsplit_once('.').map_or(lower, |(stem, _)| stem);
    let mut words = stem
        .split(|character: char| !character.is_ascii_alphabetic())
        .filter(|word| !word.is_empty())
        .peekable();
    let has_number = stem.contains(|character: char| character.is_ascii_digit());
    has_number && words.peek().is_some() && words.all(|word| MODEL_WORDS.contains(&word))
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
    let torch_weights = ["pytorch_model", "adapter_model", "diffusion_pytorch_model"];
    WEIGHTS.contains(&extension_of(&lower)) || torch_weights.iter().any(|stem| lower.starts_with(stem))
}

/// Returns the extension of the content.
fn extension_of(lower: &str) -> &str {
    let (stem, extension) = lower.rsplit_once('.').unwrap_or((lower, ""));
    if COMPRESSIONS.contains(&extension) {
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
