//! Data types of tensors.

use std::fmt;
use std::str::FromStr;

use super::amount::scaled;
use stepvault_core::error::{Error, ErrorKind, Result};

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 64 bits.
    Fp64,
    /// 32 bits; TF32 is stored like this too.
    Fp32,
    /// 16 bits, IEEE.
    Fp16,
    /// 16 bits with the exponent range of 32.
    Bf16,
    /// 8 bits, in any layout.
    Fp8,
    /// 8 bits, quantized.
    Int8,
    /// 4 bits, two elements per byte.
    Int4,
}

impl Dtype {
    /// Every type.
    pub const ALL: [Self; 7] = [
        Self::Fp64,
        Self::Fp32,
        Self::Fp16,
        Self::Bf16,
        Self::Fp8,
        Self::Int8,
        Self::Int4,
    ];

    /// Returns its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp64 => "fp64",
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Returns the bits of one element.
    pub const fn bits(self) -> u64 {
        match self {
            Self::Fp64 => 64,
            Self::Fp32 => 32,
            Self::Fp16 | Self::Bf16 => 16,
            Self::Fp8 | Self::Int8 => 8,
            Self::Int4 => 4,
        }
    }

    /// Returns the bytes of this many elements.
    pub(super) fn bytes_of(self, elements: u64) -> Result<u64> {
        scaled(elements, self.bits(), 8)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::new(ErrorKind::Usage, "not a dtype")
                .on(format!("{text:?}"))
                .hint(format!("write one of {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.to_string().parse::<Dtype>().unwrap(), dtype);
        }
        assert_eq!(
            "float32".parse::<Dtype>().unwrap_err().to_string(),
            "not a dtype: \"float32\""
        );
    }

    #[test]
    fn halves_of_bytes_are_rounded_up() {
        assert_eq!(Dtype::Int4.bytes_of(3).unwrap(), 2);
        assert_eq!(Dtype::Bf16.bytes_of(30_000_000_000).unwrap(), 60_000_000_000);
        assert!(Dtype::Fp64.bytes_of(u64::MAX).is_err());
    }
}
