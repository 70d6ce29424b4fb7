//! Values that a command line gives by name.

use stepvault_core::error::{Error, ErrorKind, Result};

/// A type whose values have names.
pub trait Named: Copy + PartialEq + 'static {
    /// What one value is called in an error: `a layout`.
    const WHAT: &'static str;
    /// Every value, with its name.
    const NAMES: &'static [(&'static str, Self)];

    /// Returns the name of this value.
    fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, value)| *value == self);
        found.map_or("", |(name, _)| name)
    }

    /// Returns the value with this name.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`], with every name as the hint.
    fn from_name(text: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            Error::new(ErrorKind::Usage, format!("not {}", Self::WHAT))
                .on(format!("{text:?}"))
                .hint(format!("write one of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dtype, Layout, Sharding, VaultCopy};
    use super::*;

    fn each_name_is_read_back<T: Named + std::fmt::Debug>() {
        for (name, value) in T::NAMES {
            assert_eq!(value.name(), *name);
            assert_eq!(T::from_name(name).unwrap(), *value);
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
