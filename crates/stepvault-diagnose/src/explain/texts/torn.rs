//! Texts about incomplete checkpoints, printed when they are loaded.

use super::recogniser::{Recogniser, text};
use crate::explain::Cause;

pub(super) const TEXTS: &[Recogniser] = &[
    text(
        Cause::InterruptedSave,
        55,
        r"failed finding central directory",
        "torch, loading a truncated archive",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
    text(
        Cause::InterruptedSave,
        50,
        r"PytorchStreamReader failed|invalid header or archive is corrupted|file not found: archive/data",
        "torch, loading a damaged archive",
        "RuntimeError: PytorchStreamReader failed locating file data/39: file not found",
    ),
    text(
        Cause::InterruptedSave,
        55,
        r"unexpected EOF, expected \d+ more bytes",
        "torch, loading a truncated file of the legacy format",
        "RuntimeError: unexpected EOF, expected 1234 more bytes. The file might be corrupted.",
    ),
    text(
        Cause::InterruptedSave,
        45,
        r"EOFError: Ran out of input|pickle data was truncated|UnpicklingError: (invalid load key|unexpected end)",
        "Python, pickle",
        "_pickle.UnpicklingError: pickle data was truncated",
    ),
    text(
        Cause::InterruptedSave,
        50,
        r"Error while deserializing header|MetadataIncompleteBuffer|InvalidHeaderDeserialization|HeaderTooLarge|HeaderTooSmall|InvalidHeaderLength",
        "safetensors",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ),
    text(
        Cause::InterruptedSave,
        45,
        r"BadZipFile",
        "Python, zipfile and numpy",
        "zipfile.BadZipFile: File is not a zip file",
    ),
    text(
        Cause::InterruptedSave,
        45,
        r"invalid literal for int\(\) with base 10: '[^']*(tmp|partial|incomplete|unfinished)",
        "prime-rl, Megatron and torchtune, on the name of an unfinished save",
        "ValueError: invalid literal for int() with base 10: '5.partial'",
    ),
    text(
        Cause::InterruptedSave,
        45,
        r"Failed to load checkpoint .*(truncated|corrupt)|(?i)checkpoint (file )?(is |may be |might be )?(corrupt(ed)?|truncated)",
        "trainers that catch the error of a load",
        "ERROR Checkpoint is corrupted: /out/step_12.pt",
    ),
    text(
        Cause::PartialStep,
        50,
        r"No such file or directory: '[^']*(trainer_state\.json|/\.metadata|optimizer\.pt|progress\.pt|rng_state\w*\.pth)'",
        "Python, on a file of a step: Hugging Face Trainer, torch DCP, prime-rl",
        "FileNotFoundError: [Errno 2] No such file or directory: '/out/checkpoint-15/trainer_state.json'",
    ),
    text(
        Cause::PartialStep,
        50,
        r"zero checkpoints paths are missing|Expect \d+ .*checkpoint files|Empty ds_version",
        "DeepSpeed",
        "[WARNING] The following zero checkpoints paths are missing: ['/out/global_step20/zero_pp_rank_1_mp_rank_00_optim_states.pt']",
    ),
    text(
        Cause::PartialStep,
        45,
        r"Can't find a valid checkpoint at|No checkpoint path found|No structure could be identified for the checkpoint|is not a valid checkpoint",
        "Hugging Face Trainer and Orbax",
        "ValueError: Can't find a valid checkpoint at /out/checkpoint-15",
    ),
    text(
        Cause::PartialStep,
        50,
        r"(?i)missing (key|file|shard)s? in (the )?checkpoint|lacks the parts? of",
        "torch DCP and stepvault",
        "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.layers.0.weight.exp_avg.",
    ),
];
