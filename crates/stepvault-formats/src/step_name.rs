//! Reads the step number from the name of a directory or file.

/// Words whose number is the step, the most specific first. The first word of this list that the name contains with a
/// number decides, wherever it stands in the name: `ep0-ba100` is batch 100. `checkpoint` and `ckpt` come last,
/// because other words name the number more exactly: `checkpoint_epoch=1-step=500` is step 500.
const STEP_WORDS: [&str; 8] = [
    "globalstep",
    "step",
    "steps",
    "iteration",
    "iter",
    "ba",
    "checkpoint",
    "ckpt",
];
/// Words whose number is something else: rank, version or shard.
const OTHER_WORDS: [&str; 12] = [
    "rank", "v", "version", "shard", "part", "of", "size", "dp", "tp", "pp", "mp", "replica",
];
/// Words that may follow the step's number.
const TRAILING_WORDS: [&str; 3] = ["force", "last", "end"];
/// Extensions that are removed before the name is parsed.
const EXTENSIONS: [&str; 13] = [
    "pt",
    "pth",
    "tar",
    "ckpt",
    "bin",
    "safetensors",
    "pkl",
    "npz",
    "msgpack",
    "zip",
    "gguf",
    "h5",
    "keras",
];

/// Words, one of which a step's name contains if neither a framework nor a pattern identifies it.
const NAMING_WORDS: [&str; 5] = ["step", "checkpoint", "ckpt", "iter", "epoch"];

/// One piece of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece<'a> {
    Word(&'a str),
    Number(&'a str),
    /// A number with a decimal point: a metric, never a step.
    Fraction,
}

/// Whether a name with a number is likely to be a step's: it contains a word for a step, or is nothing but the number.
pub fn looks_like_a_step(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    NAMING_WORDS.iter().any(|word| lower.contains(word)) || name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the step in a name, or `None` when the name has none or several numbers qualify.
///
/// Extensions such as `.pt` are removed first; case does not matter, and a decimal number is a metric.
///
/// 1. The number after the first word of `globalstep`, `step`, `steps`, `iteration`, `iter`, `ba`, `checkpoint`, `ckpt`
///    that the name contains with a number, at any position. Of several numbers after it, the last one counts.
/// 2. Without such a word, the only whole number, unless a word such as `rank` or `shard` precedes it. Only `last`,
///    `end`, `force`, or the number of a rank or shard may follow it.
///
/// A name for which several numbers qualify by the second rule has no step.
pub fn parse(name: &str) -> Option<u64> {
    let pieces = pieces_of(stem_of(name));
    let numbers = numbers_of(&pieces);
    for word in STEP_WORDS {
        // Of several numbers, use the last: fairseq's `checkpoint_3_5000` is epoch 3, update 5000.
        let of_word = numbers
            .iter()
            .rev()
            .find(|number| number.word.is_some_and(|other| other.eq_ignore_ascii_case(word)));
        if let Some(number) = of_word {
            return number.digits.parse().ok();
        }
    }
    let mut plain = numbers
        .iter()
        .filter(|number| !is_one_of(number.word, &OTHER_WORDS));
    let (Some(number), None) = (plain.next(), plain.next()) else {
        return None;
    };
    let rest = &pieces[number.position + 1..];
    // `model-00001-of-00003`: the number of a file within a step.
    if let [Piece::Word(word), Piece::Number(_), ..] = rest
        && word.eq_ignore_ascii_case("of")
    {
        return None;
    }
    let trailing = rest.iter().enumerate().all(|(index, piece)| match piece {
        Piece::Word(word) => {
            is_one_of(Some(word), &TRAILING_WORDS)
                || is_one_of(Some(word), &OTHER_WORDS)
                    && matches!(rest.get(index + 1), Some(Piece::Number(_)))
        }
        Piece::Number(_) => true,
        Piece::Fraction => false,
    });
    trailing.then(|| number.digits.parse().ok()).flatten()
}

/// A whole number in a name, with the word before it.
struct Number<'a> {
    word: Option<&'a str>,
    digits: &'a str,
    position: usize,
}

fn numbers_of<'a>(pieces: &[Piece<'a>]) -> Vec<Number<'a>> {
    let mut word = None;
    let mut numbers = Vec::new();
    for (position, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Word(text) => word = Some(*text),
            Piece::Number(digits) => numbers.push(Number {
                word,
                digits,
                position,
            }),
            Piece::Fraction => {}
        }
    }
    numbers
}

fn is_one_of(word: Option<&str>, list: &[&str]) -> bool {
    word.is_some_and(|word| list.iter().any(|other| other.eq_ignore_ascii_case(word)))
}

fn stem_of(mut name: &str) -> &str {
    while let Some((stem, extension)) = name.rsplit_once('.')
        && is_one_of(Some(extension), &EXTENSIONS)
    {
        name = stem;
    }
    name
}

/// Returns runs of letters and runs of digits, without the separators.
fn pieces_of(stem: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = stem;
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_digit() {
            let end = rest
                .find(|character: char| !character.is_ascii_digit() && character != '.')
                .unwrap_or(rest.len());
            let run = rest[..end].trim_end_matches('.');
            pieces.push(if run.contains('.') {
                Piece::Fraction
            } else {
                Piece::Number(run)
            });
            rest = &rest[run.len()..];
        } else if first.is_alphabetic() {
            let end = rest
                .find(|character: char| !character.is_alphabetic())
                .unwrap_or(rest.len());
            pieces.push(Piece::Word(&rest[..end]));
            rest = &rest[end..];
        } else {
            rest = &rest[first.len_utf8()..];
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
            (
                "megatron_gpt--val_loss=2.35-step=1000-consumed_samples=8000.0-last",
                1000,
            ),
            ("model-7-last", 7),
            ("Step_5", 5),
            ("step_3_of_10", 3),
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
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
