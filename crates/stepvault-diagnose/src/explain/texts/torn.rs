//! Texts about incomplete checkpoints, printed when they are loaded.

use super::recogniser::{Recogniser, text};
use crate::explain::Cause;

pub(super) const TEXTS: &[Recogniser] = &[
    text(Cause::InterruptedSave, 55, "torch, loading a truncated archive")
        .pattern(r"failed finding central directory")
        .example("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    text(Cause::InterruptedSave, 50, "torch, loading a damaged archive")
        .pattern(r"PytorchStreamReader failed|invalid header or archive is corrupted|file not found: archive/data")
        .example("RuntimeError: PytorchStreamReader failed locating file data/39: file not found"),
    text(Cause::InterruptedSave, 55, "torch, loading a truncated file of the legacy format")
        .pattern(r"unexpected EOF, expected \d+ more bytes")
        .example("RuntimeError: unexpected EOF, expected 1234 more bytes. The file might be corrupted."),
    text(Cause::InterruptedSave, 45, "Python, pickle")
        .pattern(r"EOFError: Ran out of input|pickle data was truncated|UnpicklingError: (invalid load key|unexpected end)")
        .example("_pickle.UnpicklingError: pickle data was truncated"),
    text(Cause::InterruptedSave, 50, "safetensors")
        .pattern(r"Error while deserializing header|MetadataIncompleteBuffer|InvalidHeaderDeserialization|HeaderTooLarge|HeaderTooSmall|InvalidHeaderLength")
        .example("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"),
    text(Cause::InterruptedSave, 45, "Python, zipfile and numpy")
        .pattern(r"BadZipFile")
        .example("zipfile.BadZipFile: File is not a zip file"),
    text(Cause::InterruptedSave, 45, "prime-rl, Megatron and torchtune, on the name of an unfinished save")
        .pattern(r"invalid literal for int\(\) with base 10: '[^']*(tmp|partial|incomplete|unfinished)")
        .example("ValueError: invalid literal for int() with base 10: '5.partial'"),
    text(Cause::InterruptedSave, 45, "trainers that catch the error of a load")
        .pattern(r"Failed to load checkpoint .*(truncated|corrupt)|(?i)checkpoint (file )?(is |may be |might be )?(corrupt(ed)?|truncated)")
        .example("ERROR Checkpoint is corrupted: /out/step_12.pt"),
    text(Cause::PartialStep, 50, "Python, on a file of a step: Hugging Face Trainer, torch DCP, prime-rl")
        .pattern(r"No such file or directory: '[^']*(trainer_state\.json|/\.metadata|optimizer\.pt|progress\.pt|rng_state\w*\.pth)'")
        .example("FileNotFoundError: [Errno 2] No such file or directory: '/out/checkpoint-15/trainer_state.json'"),
    text(Cause::PartialStep, 50, "DeepSpeed")
        .pattern(r"zero checkpoints paths are missing|Expect \d+ .*checkpoint files|Empty ds_version")
        .example("[WARNING] The following zero checkpoints paths are missing: ['/out/global_step20/zero_pp_rank_1_mp_rank_00_optim_states.pt']"),
    text(Cause::PartialStep, 45, "Hugging Face Trainer and Orbax")
        .pattern(r"Can't find a valid checkpoint at|No checkpoint path found|No structure could be identified for the checkpoint|is not a valid checkpoint")
        .example("ValueError: Can't find a valid checkpoint at /out/checkpoint-15"),
    text(Cause::PartialStep, 50, "torch DCP and stepvault")
        .pattern(r"(?i)missing (key|file|shard)s? in (the )?checkpoint|lacks the parts? of")
        .example("RuntimeError: Missing key in checkpoint state_dict: optimizer.state.layers.0.weight.exp_avg."),
];
