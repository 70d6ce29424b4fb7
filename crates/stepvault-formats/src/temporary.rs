//! Names that mark unfinished files and directories.

const ENDINGS: [&str; 7] = ["tmp", "temp", "partial", "part", "incomplete", "unfinished", "downloading"];

/// Returns whether an entry in a directory of checkpoints is hidden or has a name that its writer uses only while
/// writing. No step has such a name.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') || is_unfinished_file(name)
}

/// Returns the same for a file inside a checkpoint, where a leading dot alone means nothing (`.metadata` is a
/// marker).
pub fn is_unfinished_file(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    // `40.orbax-checkpoint-tmp`, followed by a time in older versions.
    if lower.contains(".orbax-checkpoint-tmp")
        || lower.starts_with(".tmp")
        || lower.ends_with('~')
        || is_rsyncs(name)
    {
        return true;
    }
    let whole = |text: &str| ENDINGS[..2].contains(&text);
    let begins = |text: &str| ["tmp-", "tmp_", "temp-", "temp_"].iter().any(|start| text.starts_with(start));
    let ends = |text: &str| {
        text.rsplit_once(['-', '_']).is_some_and(|(_, last)| ENDINGS.contains(&last) && last != "part")
    };
    let mut components = lower.split('.');
    let first = components.next().unwrap_or_default();
    // Matches `progress.pt.1234.tmp` and `x.tmp.1234`; `recovery_tmp.pth.tar` matches by its stem.
    whole(first)
        || begins(first)
        || ends(first)
        || components.any(|part| ENDINGS.contains(&part) || ends(part))
}

/// Whether rsync is writing a file: `.model.pt.AbC123`.
fn is_rsyncs(name: &str) -> bool {
    let Some((of, random)) = name.strip_prefix('.').and_then(|name| name.rsplit_once('.')) else {
        return false;
    };
    let is_random = random.len() == 6
        && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && random.bytes().any(|byte| !byte.is_ascii_lowercase());
    !of.is_empty() && is_random
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_given_while_writing() {
        for name in [
            ".tmpAb3dEf",
            ".hidden",
            ".tier-step-100",
            "step_5.partial",
            "step-100.tmp",
            "100.temp",
            "tmp_100",
            "tmp-checkpoint-500",
            "tmp.pth.tar",
            "recovery_tmp.pth.tar",
            "40.orbax-checkpoint-tmp",
            "40.orbax-checkpoint-tmp-1712345678",
            "gpt-step=100-unfinished",
            "progress.pt.1234.tmp",
            "model.latest_checkpoint_temp",
            ".metadata.tmp",
            "tmp-rank0model-00001-of-00002.safetensors",
            "step_5~",
            "STEP_5.TMP",
        ] {
            assert!(is_temporary(name), "{name}");
        }
    }

    #[test]
    fn names_of_finished_things() {
        for name in [
            "step_100",
            "checkpoint-500",
            "temperature-sweep_100",
            "template_3",
            "epoch=1-step=500.ckpt",
            "attempt_4",
            "model-part-1",
            "last.ckpt",
        ] {
            assert!(!is_temporary(name), "{name}");
        }
        assert!(!is_unfinished_file(".metadata"));
        assert!(is_unfinished_file(".tmpAb3dEf"));
        assert!(is_unfinished_file(".model.pt.AbC123") && !is_unfinished_file(".model.config"));
    }
}
