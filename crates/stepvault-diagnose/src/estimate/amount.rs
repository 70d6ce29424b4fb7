//! Sums and products that return an error instead of wrapping, and values that have names.

use stepvault_core::error::{Error, ErrorKind, Result};
use strum::VariantArray;

/// Returns `one * other`.
pub(super) fn times(one: u64, other: u64) -> Result<u64> {
    one.checked_mul(other).ok_or_else(too_large)
}

/// Returns `one + other`.
pub(super) fn plus(one: u64, other: u64) -> Result<u64> {
    one.checked_add(other).ok_or_else(too_large)
}

/// Returns the sum.
pub(super) fn total(amounts: impl IntoIterator<Item = u64>) -> Result<u64> {
    amounts.into_iter().try_fold(0, plus)
}

/// Returns `number * numerator / denominator`, rounded up. A denominator of 0 is an error.
pub(super) fn scaled(number: u64, numerator: u64, denominator: u64) -> Result<u64> {
    // Cannot overflow: both factors have 64 bits.
    let product = u128::from(number) * u128::from(numerator);
    let denominator = u128::from(denominator);
    if denominator == 0 {
        return Err(too_large());
    }
    u64::try_from(product.div_ceil(denominator)).map_err(|_| too_large())
}

fn too_large() -> Error {
    Error::new(ErrorKind::Usage, "cannot estimate the size")
        .because("it is more bytes or files than a 64-bit number can hold")
        .hint("check the numbers given: 30e9 and 30B are 30 billion")
}

/// A type whose values have names.
pub trait Named: VariantArray + Copy + PartialEq + Into<&'static str> {
    /// What one value is called in an error: `a layout`.
    const WHAT: &'static str;

    /// Returns the name of this value.
    fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the value with this name.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`], with every name as the hint.
    fn from_name(text: &str) -> Result<Self> {
        let mut values = Self::VARIANTS.iter().copied();
        values.find(|value| value.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::VARIANTS.iter().copied().map(Self::name).collect();
            Error::new(ErrorKind::Usage, format!("not {}", Self::WHAT))
                .on(format!("{text:?}"))
                .hint(format!("write one of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{Dtype, Layout, Sharding, VaultCopy};

    #[test]
    fn what_does_not_fit_is_wrong_use() {
        assert_eq!(times(3, 4).unwrap(), 12);
        assert_eq!(total([1, 2, 3]).unwrap(), 6);
        assert_eq!(scaled(7, 3, 2).unwrap(), 11);
        assert_eq!(scaled(u64::MAX, 2, 2).unwrap(), u64::MAX);
        for error in [
            times(u64::MAX, 2).unwrap_err(),
            plus(u64::MAX, 1).unwrap_err(),
            total([u64::MAX, 1]).unwrap_err(),
            scaled(u64::MAX, 3, 2).unwrap_err(),
            scaled(1, 1, 0).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert_eq!(
                error.to_string(),
                "cannot estimate the size: it is more bytes or files than a 64-bit number can hold"
            );
        }
    }

    fn each_name_is_read_back<T: Named + std::fmt::Debug>() {
        for value in T::VARIANTS {
            assert_eq!(T::from_name(value.name()).unwrap(), *value);
        }
        let error = T::from_name("none of them").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.hint_text().unwrap().starts_with("write one of "));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        each_name_is_read_back::<Dtype>();
        each_name_is_read_back::<Layout>();
        each_name_is_read_back::<Sharding>();
        each_name_is_read_back::<VaultCopy>();
        assert_eq!(
            [Layout::HfTrainer, Layout::DeepSpeedZero3].map(Named::name),
            ["hf-trainer", "deepspeed-zero3"]
        );
        let refused = [
            Dtype::from_name("float32").map(drop),
            Layout::from_name("pickle").map(drop),
            Sharding::from_name("zero").map(drop),
        ];
        assert_eq!(
            refused.map(|result| result.unwrap_err().to_string()),
            ["not a dtype: \"float32\"", "not a layout: \"pickle\"", "not a sharding: \"zero\"",]
        );
    }
}
