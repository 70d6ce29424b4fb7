//! YAML files beside the tensors: hyperparameters and configurations.
//!
//! # Blind spots
//!
//! Most YAML texts that are cut off are still valid YAML, so the check applies no grammar: it only tests that the
//! file is text.

use crate::soundness::{Fault, broken, broken_at, read_piece};
use crate::tree::ReadAt;

/// The largest file that is read.
pub const LARGEST_FILE_BYTES: u64 = 1024 * 1024;

/// Checks that a file is text and not empty.
///
/// # Errors
/// [`Fault::Broken`] if it is not, [`Fault::Unknown`] if it is too large.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    let file = read_piece(source, 0, size_bytes, LARGEST_FILE_BYTES, "the YAML file")?;
    if file.iter().all(u8::is_ascii_whitespace) {
        return Err(broken!("the YAML file is empty: the write was cut off"));
    }
    if let Some(at) = file.iter().position(|byte| *byte == 0) {
        return Err(broken_at!(
            at as u64,
            "the YAML file has a zero byte at {at}: its contents were lost, as after a power failure"
        ));
    }
    match std::str::from_utf8(&file) {
        Ok(_) => Ok(()),
        Err(error) => {
            let at = error.valid_up_to();
            Err(broken_at!(at as u64, "the YAML file is damaged at byte {at}: it is not UTF-8 text"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soundness::{Soundness, judged};

    #[test]
    fn only_what_is_no_text_is_broken() {
        let why = |file: &[u8]| match judged(check(&file.to_vec())).unwrap() {
            Soundness::Sound => None,
            Soundness::Broken { why, .. } | Soundness::Unknown { why } => Some(why),
        };
        assert_eq!(why("lr: 1.0e-3 # größe\n".as_bytes()), None);
        assert_eq!(why(b"\n").as_deref(), Some("the YAML file is empty: the write was cut off"));
        assert_eq!(
            why(b"lr: 1\n\0\0\0").as_deref(),
            Some("the YAML file has a zero byte at 6: its contents were lost, as after a power failure")
        );
        assert_eq!(
            why(b"lr: \xff").as_deref(),
            Some("the YAML file is damaged at byte 4: it is not UTF-8 text")
        );
        assert_eq!(
            why(&vec![b'a'; 2 << 20]).as_deref(),
            Some("the YAML file is 2097152 bytes long, more than the limit of 1048576")
        );
    }
}
