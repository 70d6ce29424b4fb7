//! A data loader that saves its shuffle buffer with every step.

use std::str::FromStr;

use super::amount::{scaled, times};
use stepvault_core::error::{Error, ErrorKind, Result};

/// The size that a framework writes, in thousandths of the samples' own size. `TensorFlow`'s is 1500, from a report of a
/// buffer of 125 GB that took 187.5 GB on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overhead {
    thousandths: u64,
}

impl FromStr for Overhead {
    type Err = Error;

    /// Reads a factor of at least 1 and at most 1000, to three decimals.
    fn from_str(text: &str) -> Result<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = (digits(whole) && digits(fraction) && fraction.len() <= 3)
            .then(|| format!("{whole}{fraction:0<3}").parse::<u64>().ok())
            .flatten();
        parsed
            .filter(|thousandths| (1000..=1_000_000).contains(thousandths))
            .map(|thousandths| Self { thousandths })
            .ok_or_else(|| {
                Error::new(ErrorKind::Usage, "not a factor")
                    .on(format!("{text:?}"))
                    .hint("write how many times a sample's bytes are stored on disk, from 1 to 1000: 1.5")
            })
    }
}

/// A shuffle buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShuffleBuffer {
    /// How many samples it holds.
    pub samples: u64,
    /// Bytes of one sample.
    pub sample_bytes: u64,
    /// The factor by which the framework increases the size.
    pub overhead: Overhead,
}

impl ShuffleBuffer {
    /// A buffer that shuffles well enough in most cases and is saved in seconds.
    pub const SMALLER_SAMPLES: u64 = 10_000;

    /// Returns the bytes of the samples alone.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the number is too large.
    pub fn payload_bytes(&self) -> Result<u64> {
        times(self.samples, self.sample_bytes)
    }

    /// Returns the bytes on disk.
    ///
    /// # Errors
    /// As [`Self::payload_bytes`].
    pub fn bytes(&self) -> Result<u64> {
        scaled(self.payload_bytes()?, self.overhead.thousandths, 1000)
    }

    /// Returns the same buffer with [`Self::SMALLER_SAMPLES`]; `None` if it is not larger than that.
    pub fn smaller(&self) -> Option<Self> {
        (self.samples > Self::SMALLER_SAMPLES).then_some(Self { samples: Self::SMALLER_SAMPLES, ..*self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENSORFLOW: Overhead = Overhead { thousandths: 1500 };

    #[test]
    fn the_buffer_that_filled_a_disk() {
        let buffer = ShuffleBuffer { samples: 250_000, sample_bytes: 500_000, overhead: TENSORFLOW };
        assert_eq!(buffer.payload_bytes().unwrap(), 125_000_000_000);
        assert_eq!(buffer.bytes().unwrap(), 187_500_000_000);
        let smaller = buffer.smaller().unwrap();
        assert_eq!(smaller.payload_bytes().unwrap(), 5_000_000_000);
        assert_eq!(smaller.bytes().unwrap(), 7_500_000_000);
        assert_eq!(smaller.smaller(), None);
    }

    #[test]
    fn factors_are_decimal() {
        for (text, thousandths) in [("1", 1000), ("1.5", 1500), ("1.25", 1250), ("1000", 1_000_000)] {
            assert_eq!(text.parse::<Overhead>().unwrap(), Overhead { thousandths });
        }
        for wrong in ["", "0.9", "1.2345", "x", "-1", "1.", "1e3", "1001", "99999999999999999999"] {
            assert_eq!(
                wrong.parse::<Overhead>().unwrap_err().to_string(),
                format!("not a factor: {wrong:?}")
            );
        }
    }

    #[test]
    fn too_large_a_buffer_is_wrong_use() {
        let buffer = ShuffleBuffer { samples: u64::MAX, sample_bytes: 1, overhead: TENSORFLOW };
        assert_eq!(buffer.bytes().unwrap_err().kind(), ErrorKind::Usage);
    }
}
