//! Selects the check for a file from its name and its first bytes.
//!
//! A name that belongs to one format is decisive: `model.safetensors` full of zeros is a broken file, not one of an
//! unknown format. Where frameworks use a name for several formats (`.bin`, `.ckpt`, `.pkl`), the first bytes decide,
//! and a file that is not recognized is not checked.

use std::io;

use super::{
    gguf, hdf5, json, msgpack, npy, npz, pickle_file, safetensors, tar, torch_legacy, torch_zip, yaml, zip,
};
use crate::names::NAMES;
use crate::soundness::{Fault, Soundness, broken_at, judged, read_head, unknown};
use crate::tree::ReadAt;

/// The length of a file's beginning that [`kind_of`] uses.
pub const HEAD_BYTES: u64 = 512;

/// The kind of a file, as far as its structure can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Tensors by safetensors.
    Safetensors,
    /// A ZIP archive by `torch.save`.
    TorchZip,
    /// Pickles and storages end to end, by `torch.save` before 1.6 or on request.
    TorchLegacy,
    /// One pickle.
    Pickle,
    /// An array by `np.save`.
    Npy,
    /// An archive of arrays by `np.savez`.
    Npz,
    /// A model for llama.cpp.
    Gguf,
    /// A ZIP archive of anything, as `.keras`.
    Zip,
    /// HDF5.
    Hdf5,
    /// `MessagePack`.
    Msgpack,
    /// A tar archive.
    Tar,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// The root of a database in which Orbax keeps arrays.
    OcdbtManifest,
    /// The index of a TensorFlow checkpoint.
    TfBundleIndex,
    /// No bytes, under a name that may have none: a marker, a lock, a log.
    Empty,
    /// A file of unknown structure.
    Opaque,
}

type Check = fn(&dyn ReadAt) -> Result<(), Fault>;

impl FileKind {
    /// Returns its name in messages.
    pub(crate) fn noun(self) -> &'static str {
        self.noun_and_check().0
    }

    /// This is the only place that maps kinds to modules.
    fn noun_and_check(self) -> (&'static str, Check) {
        match self {
            Self::Safetensors => ("safetensors", safetensors::check),
            Self::TorchZip => ("torch", torch_zip::check),
            Self::TorchLegacy => ("torch", torch_legacy::check),
            Self::Pickle => ("pickle", pickle_file::check),
            Self::Npy => (".npy", npy::check),
            Self::Npz => (".npz", npz::check),
            Self::Gguf => ("GGUF", gguf::check),
            Self::Zip => ("ZIP", |source| zip::read(source).map(drop)),
            Self::Hdf5 => ("HDF5", hdf5::check),
            Self::Msgpack => ("MessagePack", msgpack::check),
            Self::Tar => ("tar", tar::check),
            Self::Json => ("JSON", json::check),
            Self::Yaml => ("YAML", yaml::check),
            Self::OcdbtManifest => ("OCDBT manifest", |_| Err(checked_with_others(Self::OcdbtManifest))),
            Self::TfBundleIndex => ("TensorFlow index", |_| Err(checked_with_others(Self::TfBundleIndex))),
            Self::Empty => ("other", |_| Ok(())),
            Self::Opaque => ("other", |_| Err(unknown!("the structure of this file is unknown"))),
        }
    }
}

/// What a file's name determines.
enum Name {
    /// It has this kind, whatever its first bytes are.
    Always(FileKind),
    /// `torch.save` or `pickle` wrote it; its first bytes determine which.
    Torch,
    /// It may be from `torch.save` or `pickle`, or something else.
    PerhapsTorch,
    /// It is checked piece by piece elsewhere, or not at all.
    Never,
    /// Nothing.
    Silent,
}

/// Returns the kind that determines the check. `head` is the file's beginning, up to [`HEAD_BYTES`].
pub fn kind_of(path: &str, head: &[u8]) -> FileKind {
    match said_by_name(path) {
        Name::Always(kind) => kind,
        Name::Torch if is_tar(head) => FileKind::Opaque,
        Name::Torch => said_by_head(head).unwrap_or(FileKind::TorchZip),
        Name::PerhapsTorch if is_zeros(head) => FileKind::TorchZip,
        Name::PerhapsTorch => said_by_head(head).unwrap_or(FileKind::Opaque),
        Name::Never | Name::Silent if head.is_empty() => FileKind::Empty,
        Name::Never => FileKind::Opaque,
        Name::Silent => match said_by_head(head) {
            // Two or four bytes are too little evidence unless the name agrees.
            None | Some(FileKind::Pickle) => FileKind::Opaque,
            Some(FileKind::TorchZip) if !has_torch_member(head) => FileKind::Opaque,
            Some(kind) => kind,
        },
    }
}

fn is_zeros(head: &[u8]) -> bool {
    head.iter().all(|byte| *byte == 0)
}

/// Reads a file's beginning and runs the check that applies to it.
///
/// # Errors
/// When the file cannot be read.
pub fn check_file(path: &str, source: &dyn ReadAt) -> io::Result<Soundness> {
    let head = read_head(source, HEAD_BYTES)?;
    let kind = kind_of(path, &head);
    let (_, check) = kind.noun_and_check();
    judged(written(kind, &head).and_then(|()| check(source)))
}

/// Checks that a file has contents. No known format begins with many zeros, and only a file of unknown format may be
/// empty.
fn written(kind: FileKind, head: &[u8]) -> Result<(), Fault> {
    if matches!(kind, FileKind::Empty | FileKind::Opaque) || !is_zeros(head) {
        return Ok(());
    }
    let noun = kind.noun();
    Err(if head.is_empty() {
        broken_at!(
            0,
            "the file is empty, but its name is that of a {noun} file: its contents were never written or were lost"
        )
    } else {
        broken_at!(
            0,
            "the file begins with zeros, which no {noun} file does: its contents were never written or were lost"
        )
    })
}

fn checked_with_others(kind: FileKind) -> Fault {
    unknown!("{} files are only checked together with the files beside them", kind.noun())
}

fn said_by_name(path: &str) -> Name {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let lower = name.to_ascii_lowercase();
    let (stem, extension) = lower.rsplit_once('.').unwrap_or((&lower, ""));
    match extension {
        "safetensors" => Name::Always(FileKind::Safetensors),
        "gguf" => Name::Always(FileKind::Gguf),
        "npy" => Name::Always(FileKind::Npy),
        "npz" => Name::Always(FileKind::Npz),
        "keras" | "zip" => Name::Always(FileKind::Zip),
        "h5" | "hdf5" => Name::Always(FileKind::Hdf5),
        "msgpack" => Name::Always(FileKind::Msgpack),
        "json" | "zarray" | "zgroup" | "zattrs" | "zmetadata" => Name::Always(FileKind::Json),
        "yaml" | "yml" => Name::Always(FileKind::Yaml),
        "ocdbt" if stem == "manifest" => Name::Always(FileKind::OcdbtManifest),
        "index" if stem == "variables" || stem.contains("ckpt") => Name::Always(FileKind::TfBundleIndex),
        // DCP's `.metadata` and `__0.metadata`; the extension alone is not specific.
        "metadata" if stem.is_empty() || stem.starts_with("__") => Name::Always(FileKind::Pickle),
        // Several torch files end to end, or none at all.
        "distcp" => Name::Never,
        "pt" | "pth" => Name::Torch,
        "tar" if matches!(stem.rsplit_once('.'), Some((_, "pth" | "pt"))) => Name::Torch,
        "tar" => Name::Always(FileKind::Tar),
        "bin" if is_torch_bin(stem) => Name::Torch,
        "ckpt" | "pkl" | "pickle" => Name::PerhapsTorch,
        _ if ["_METADATA", "_CHECKPOINT_METADATA", "_sharding"].contains(&name) => {
            Name::Always(FileKind::Json)
        }
        _ if name.starts_with("process_") && directory.ends_with("array_metadatas") => {
            Name::Always(FileKind::Json)
        }
        _ => Name::Silent,
    }
}

/// `.bin` files that transformers, Accelerate and diffusers write with `torch.save`.
fn is_torch_bin(stem: &str) -> bool {
    // `optimizer_1`, `pytorch_model-00001-of-00002`.
    let is_numbering = |rest: &str| rest.is_empty() || rest.starts_with(['_', '-']);
    NAMES.torch_bins.iter().any(|known| stem.strip_prefix(known).is_some_and(is_numbering))
}

fn said_by_head(head: &[u8]) -> Option<FileKind> {
    /// A pickle of `0x1950a86a20f9469cfc6c` in protocol 2 (`torch/serialization.py`, `MAGIC_NUMBER`).
    const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    match head {
        [b'P', b'K', 3, 4, ..] => Some(FileKind::TorchZip),
        [b'G', b'G', b'U', b'F', ..] => Some(FileKind::Gguf),
        _ if head.starts_with(LEGACY) => Some(FileKind::TorchLegacy),
        _ if head.starts_with(b"\x93NUMPY") => Some(FileKind::Npy),
        _ if head.starts_with(hdf5::SIGNATURE) => Some(FileKind::Hdf5),
        [0x80, 2..=5, ..] => Some(FileKind::Pickle),
        _ if begins_as_safetensors(head) => Some(FileKind::Safetensors),
        _ => None,
    }
}

fn begins_as_safetensors(head: &[u8]) -> bool {
    let Some((length, [b'{', b'"', ..])) = head.split_first_chunk::<8>() else {
        return false;
    };
    (2..=safetensors::LONGEST_HEADER_BYTES).contains(&u64::from_le_bytes(*length))
}

/// The first member of a torch archive is one of these, in a folder of any name.
fn has_torch_member(head: &[u8]) -> bool {
    let names: [&[u8]; 4] = [b"/data.pkl", b"/constants.pkl", b"/.format_version", b"/version"];
    names.iter().any(|name| head.windows(name.len()).any(|window| window == *name))
}

/// `torch.save` wrote tar archives before 0.1.10, and `.pth.tar` says so to this day.
pub(super) fn is_tar(head: &[u8]) -> bool {
    head.get(257..).is_some_and(|magic| magic.starts_with(b"ustar"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZIP: &[u8] = b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0archive/data.pkl";
    const OTHER_ZIP: &[u8] = b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0mimetype";
    const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    const PICKLE: &[u8] = b"\x80\x04\x95\x0a\0\0\0\0\0\0\0";
    const SAFETENSORS: &[u8] = b"\x40\0\0\0\0\0\0\0{\"w\":{\"dtype\"";
    const ZEROS: &[u8] = &[0; 512];
    const GARBAGE: &[u8] = b"\xde\xad\xbe\xef\xde\xad\xbe\xef\xde\xad\xbe\xef";

    #[test]
    fn a_name_of_one_format_decides_alone() {
        for (path, kind) in [
            ("model.safetensors", FileKind::Safetensors),
            ("a/model-00001-of-00002.safetensors", FileKind::Safetensors),
            ("model.Q4_K.gguf", FileKind::Gguf),
            ("x.npy", FileKind::Npy),
            ("x.npz", FileKind::Npz),
            ("model.keras", FileKind::Zip),
            ("model.weights.h5", FileKind::Hdf5),
            ("checkpoint.msgpack", FileKind::Msgpack),
            ("files.tar", FileKind::Tar),
            ("trainer_state.json", FileKind::Json),
            ("default/.zarray", FileKind::Json),
            ("default/_METADATA", FileKind::Json),
            ("10/_CHECKPOINT_METADATA", FileKind::Json),
            ("default/array_metadatas/process_0", FileKind::Json),
            ("hparams.yaml", FileKind::Yaml),
            ("default/ocdbt.process_0/manifest.ocdbt", FileKind::OcdbtManifest),
            ("model.ckpt-100.index", FileKind::TfBundleIndex),
            ("variables/variables.index", FileKind::TfBundleIndex),
            (".metadata", FileKind::Pickle),
            ("trainer/__3.metadata", FileKind::Pickle),
        ] {
            for head in [b"", ZEROS, GARBAGE, ZIP, SAFETENSORS] {
                assert_eq!(kind_of(path, head), kind, "{path} {head:?}");
            }
        }
    }

    #[test]
    fn what_torch_writes_is_told_by_its_head() {
        for path in
            ["a.pt", "rng_state_0.pth", "last.pth.tar", "pytorch_model-00001-of-00002.bin", "optimizer_1.bin"]
        {
            assert_eq!(kind_of(path, ZIP), FileKind::TorchZip, "{path}");
            assert_eq!(kind_of(path, OTHER_ZIP), FileKind::TorchZip, "{path}");
            assert_eq!(kind_of(path, LEGACY), FileKind::TorchLegacy, "{path}");
            assert_eq!(kind_of(path, PICKLE), FileKind::Pickle, "{path}");
            assert_eq!(kind_of(path, SAFETENSORS), FileKind::Safetensors, "{path}");
            for lost in [b"", ZEROS, GARBAGE, b"P"] {
                assert_eq!(kind_of(path, lost), FileKind::TorchZip, "{path} {lost:?}");
            }
        }
        for path in ["epoch=1-step=5.ckpt", "random_states_0.pkl"] {
            assert_eq!(kind_of(path, ZIP), FileKind::TorchZip, "{path}");
            assert_eq!(kind_of(path, PICKLE), FileKind::Pickle, "{path}");
            assert_eq!(kind_of(path, ZEROS), FileKind::TorchZip, "{path}");
            assert_eq!(kind_of(path, b""), FileKind::TorchZip, "{path}");
            assert_eq!(kind_of(path, GARBAGE), FileKind::Opaque, "{path}");
        }
        let mut tar = vec![b'x'; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(kind_of("model.pth.tar", &tar), FileKind::Opaque);
    }

    #[test]
    fn other_names_are_left_alone_unless_the_head_is_plain() {
        for path in
            ["STABLE", "latest", "notes.txt", "tokens.bin", "__0_0.distcp", "d/0a1b", "optimizerx.bin"]
        {
            assert_eq!(kind_of(path, b""), FileKind::Empty, "{path}");
            for head in [ZEROS, GARBAGE, PICKLE, OTHER_ZIP] {
                assert_eq!(kind_of(path, head), FileKind::Opaque, "{path} {head:?}");
            }
        }
        assert_eq!(kind_of("weights", ZIP), FileKind::TorchZip);
        assert_eq!(kind_of("weights", SAFETENSORS), FileKind::Safetensors);
        assert_eq!(kind_of("tokens.bin", LEGACY), FileKind::TorchLegacy);
        assert_eq!(kind_of("__0_0.distcp", ZIP), FileKind::Opaque, "its pieces are files, not the whole");
    }
}
