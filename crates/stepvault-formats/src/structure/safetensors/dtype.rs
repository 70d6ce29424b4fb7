//! The element types of tensors in a safetensors file.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::structure::text::shown;

/// The kind of a tensor's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dtype {
    /// A dtype that safetensors 0.8 knows, with the bits of an element.
    Known { name: &'static str, bits: u64 },
    /// Any other dtype: of a later release, or damaged.
    Other(String),
}

/// Every dtype of safetensors 0.8.0 with the bits of an element (safetensors/src/tensor.rs, `Dtype::bitsize`).
const DTYPES: [(&str, u64); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Dtype;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the name of a dtype")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Dtype, E> {
                let known = DTYPES.iter().find(|(name, _)| *name == text);
                Ok(match known {
                    Some(&(name, bits)) => Dtype::Known { name, bits },
                    None => Dtype::Other(shown(text)),
                })
            }
        }
        deserializer.deserialize_str(Name)
    }
}
