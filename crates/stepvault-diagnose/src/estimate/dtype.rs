//! Data types of tensors.

use strum::{IntoStaticStr, VariantArray};

use super::amount::{Named, scaled};
use stepvault_core::error::Result;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
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

impl Named for Dtype {
    const WHAT: &'static str = "a dtype";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_bytes_are_rounded_up() {
        assert_eq!(Dtype::Int4.bytes_of(3).unwrap(), 2);
        assert_eq!(Dtype::Bf16.bytes_of(30_000_000_000).unwrap(), 60_000_000_000);
        assert!(Dtype::Fp64.bytes_of(u64::MAX).is_err());
    }
}
