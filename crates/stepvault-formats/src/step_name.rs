//! What the name of a directory or file says: the number of its step, or that it holds the newest state.

use crate::names::{NAMES, Words};

/// Maximum number of digits of a model's version or size: `resnet152`, but `opt020000` is an optimizer's step.
const MAX_MODEL_DIGITS: usize = 3;
/// Maximum length of an extension.
const MAX_EXTENSION: usize = 16;

/// One piece of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece<'a> {
    Word(&'a str),
    Number(&'a str),
    /// A number with a decimal point: a metric, never a step.
    Fraction,
    /// One or several characters between words and numbers.
    Separator,
}

/// Whether a name with a number is likely to be a step's: it contains a word for a step, or is nothing but the number.
pub fn looks_like_a_step(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    NAMES.naming.iter().any(|word| lower.contains(word)) || name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a name says that a path holds the newest state, or the best one.
pub fn says_newest(path: &str) -> bool {
    newest_precedence(path) < usize::MAX
}

/// Returns the position of a name's first word among those for the newest state.
pub(crate) fn newest_precedence(path: &str) -> usize {
    let name = path.rsplit('/').next().unwrap_or(path);
    let lower = name.to_ascii_lowercase();
    NAMES.newest.iter().position(|word| lower.contains(word)).unwrap_or(usize::MAX)
}

/// Returns a name with `*` in place of each of its numbers.
pub(crate) fn without_numbers(name: &str) -> String {
    let mut result = String::new();
    for character in name.chars() {
        match character {
            '0'..='9' if result.ends_with('*') => {}
            '0'..='9' => result.push('*'),
            other => result.push(other),
        }
    }
    result
}

/// Returns the step in a name, or `None` when the name has none or several numbers qualify.
///
/// Extensions such as `.pt` are removed first, with the digits in them; case does not matter, and a decimal number is a
/// metric.
///
/// 1. The number after the first word of `globalstep`, `step`, `steps`, `iteration`, `iter`, `ba` that the name contains
///    with a number, at any position; then the number before `steps`, `iterations`, `updates` or `epochs`; then the number
///    after `checkpoint` or `ckpt`. Of several numbers after a word, the last one counts.
/// 2. Without such a word, the only whole number, whatever stands around it: unless it counts something else (`rank`,
///    `fold`, `version`), is part of a model's name (`llama-3`), has a unit (`8b`), or is the first of `00001-of-00003`.
///
/// A name for which several numbers qualify by the second rule has no step.
pub fn parse(name: &str) -> Option<u64> {
    let lower = name.to_ascii_lowercase();
    let pieces = pieces_of(stem_of(&lower));
    let numbers = numbers_of(&pieces);
    let after = |words: &'static Words| {
        // Of several numbers, use the last: fairseq's `checkpoint_3_5000` is epoch 3, update 5000.
        let last = |word| numbers.iter().rev().find(|number| number.word == Some(word));
        words.iter().find_map(last)
    };
    let before_unit = || {
        let counts_steps = |number: &&Number<'_>| !NAMES.counted.has(number.word);
        let mut numbers = numbers.iter().rev().filter(counts_steps);
        numbers.find(|number| NAMES.units.has(number.next))
    };
    if let Some(number) = after(&NAMES.step).or_else(before_unit).or_else(|| after(&NAMES.checkpoint)) {
        return number.digits.parse().ok();
    }
    let mut plain = numbers.iter().filter(|number| number.is_plain());
    match (plain.next(), plain.next()) {
        // `model-00001-of-00003`: the number of a file within a step.
        (Some(number), None) if number.next != Some("of") => number.digits.parse().ok(),
        _ => None,
    }
}

/// A whole number in a name, with the words around it.
struct Number<'a> {
    digits: &'a str,
    /// The word before it, which other numbers may separate from it.
    word: Option<&'a str>,
    /// The word right behind it.
    next: Option<&'a str>,
    /// Whether nothing separates it from the next word.
    has_unit: bool,
}

impl Number<'_> {
    /// Whether it may be the step's, where no word says so.
    fn is_plain(&self) -> bool {
        let is_named = self.word.is_some_and(looks_like_a_step);
        let is_measure = self.has_unit && !is_named;
        let is_model = self.digits.len() <= MAX_MODEL_DIGITS && NAMES.models.has(self.word);
        !is_measure && !is_model && !NAMES.counted.has(self.word)
    }
}

fn numbers_of<'a>(pieces: &[Piece<'a>]) -> Vec<Number<'a>> {
    let mut word = None;
    let mut numbers = Vec::new();
    for (position, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Word(text) => word = Some(*text),
            Piece::Number(digits) => {
                let next = match pieces.get(position + 1..) {
                    Some([Piece::Word(next), ..] | [Piece::Separator, Piece::Word(next), ..]) => Some(*next),
                    _ => None,
                };
                numbers.push(Number {
                    digits,
                    word,
                    next,
                    has_unit: matches!(pieces.get(position + 1), Some(Piece::Word(_))),
                });
            }
            Piece::Fraction | Piece::Separator => {}
        }
    }
    numbers
}

/// Returns a name without its extensions. Text that names a step, as in `model.step100`, is not an extension.
fn stem_of(mut name: &str) -> &str {
    while let Some((stem, extension)) = name.rsplit_once('.')
        && !stem.is_empty()
        && is_extension(extension)
    {
        name = stem;
    }
    name
}

fn is_extension(text: &str) -> bool {
    let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let names_step = text.contains(|character: char| character.is_ascii_digit()) && looks_like_a_step(text);
    text == "7z" || is_word && text.len() <= MAX_EXTENSION && !names_step
}

/// Returns runs of letters, runs of digits, and what separates them.
fn pieces_of(stem: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = stem;
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_digit() {
            let end = rest
                .find(|character: char| !character.is_ascii_digit() && character != '.')
                .unwrap_or(rest.len());
            let run = rest[..end].trim_end_matches('.');
            pieces.push(if run.contains('.') { Piece::Fraction } else { Piece::Number(run) });
            rest = &rest[run.len()..];
        } else {
            let is_word = first.is_alphabetic();
            let end = rest
                .find(|character: char| character.is_alphabetic() != is_word || character.is_ascii_digit())
                .unwrap_or(rest.len());
            pieces.push(if is_word { Piece::Word(&rest[..end]) } else { Piece::Separator });
            rest = &rest[end..];
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn names_that_frameworks_give() {
        for (name, step) in [
            ("step_100", 100),
            ("step-100", 100),
            ("step-0", 0),
            ("checkpoint-500", 500),
            ("checkpoint_500", 500),
            ("checkpoint_0", 0),
            ("global_step100", 100),
            ("global_step_100", 100),
            ("iter_0000100", 100),
            ("epoch=1-step=500.ckpt", 500),
            ("epoch=1-step=500-v1.ckpt", 500),
            ("checkpoint_epoch=1-step=500", 500),
            ("hpc_ckpt_3.ckpt", 3),
            ("ep0-ba100-rank0.pt", 100),
            ("ema_0.9999_020000.pt", 20_000),
            ("opt020000.pt", 20_000),
            ("yolov4_3000.weights", 3000),
            ("ep1-ba200", 200),
            ("model_checkpoint_12", 12),
            ("run7_checkpoint_12_force", 12),
            ("run7_checkpoint_12_rank_3", 12),
            ("epoch0epochstep3globalstep7", 7),
            ("100", 100),
            ("prefix_40", 40),
            ("epoch_3", 3),
            ("epoch10.pt", 10),
            ("checkpoint3.pt", 3),
            ("checkpoint_3_5000.pt", 5000),
            ("checkpoint_3_5000-shard0.pt", 5000),
            ("checkpoint-12.pth.tar", 12),
            ("milestone-30.pth.tar", 30),
            ("megatron_gpt--val_loss=2.35-step=1000-consumed_samples=8000.0-last", 1000),
            ("model-7-last", 7),
            ("Step_5", 5),
            ("step_3_of_10", 3),
            ("model_epoch10.joblib", 10),
            ("rl_model_400_steps.zip", 400),
            ("rl_model_replay_buffer_400_steps.pkl", 400),
            ("rl_model_vecnormalize_400_steps.pkl", 400),
            ("model_10_ema.bin", 10),
            ("model_0000004.pth", 4),
            ("model_0.pth", 0),
            ("checkpoint_epoch_3.pt", 3),
            ("checkpoint_step_3.pt", 3),
            ("checkpoint_3_rank_0.pt", 3),
            ("iter10", 10),
            ("model_10.ubj", 10),
            ("netG_epoch_2.pth", 2),
            ("100_net_D.pth", 100),
            ("G_400.pth", 400),
            ("network-snapshot-000200.pkl", 200),
            ("step_200_hf", 200),
            ("checkpoint-200-merged", 200),
            ("epoch=1-step=200-EMA.ckpt", 200),
            ("ckpt-5.data-00000-of-00001", 5),
            ("model-100.data-00000-of-00001", 100),
            ("LightGBM_model.txt.snapshot_iter_100", 100),
            ("fold_0_epoch_3.pt", 3),
            ("epoch_3_acc_91.pt", 3),
            ("epoch=3-val_loss=0.25.ckpt", 3),
            ("ppo_cartpole_10000_steps.mp4", 10000),
        ] {
            assert_eq!(parse(name), Some(step), "{name}");
        }
    }

    #[test]
    fn names_that_say_no_step() {
        for name in [
            "",
            "release",
            "recover_checkpoint",
            "last.ckpt",
            "last-v1.ckpt",
            "best.pt",
            "latest-rank0.pt",
            "checkpoint_last.pt",
            "checkpoint_best.pt",
            "recovery-0-7.pth.tar",
            "2026-11-21",
            "llama3-base",
            "llama-3-8b",
            "loss=0.25",
            "step_99999999999999999999999",
            "ft-replica-3",
            "model-00001-of-00003.safetensors",
            "pytorch_model-00002-of-00005.bin",
            "学習",
            "song.mp3",
            "video.mp4",
            "archive.7z",
            "model.h5",
            "gpt-2-medium.pt",
            "resnet50.pth",
            "model_fp16.safetensors",
            "model-8b.pt",
            "Dataset001",
            "fold_0",
            "trial_3",
            "version_0",
            "seed_42",
            "rank_1",
            "run_3",
            "exp_2",
            "epoch_0_batch_500.pt",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
