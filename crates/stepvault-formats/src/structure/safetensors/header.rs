//! The header of a safetensors file, read without keeping its text.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::soundness::{Fault, broken, broken_at, read_array};
use crate::structure::elements::ELEMENTS;
use crate::structure::json::{self, Entries, ReadEntry};
use crate::structure::text::{bytes, shown};
use crate::tree::ReadAt;

/// Longest header that safetensors itself reads (safetensors/src/tensor.rs, `MAX_HEADER_SIZE`).
pub const LONGEST_HEADER_BYTES: u64 = 100_000_000;
/// The maximum number of tensors. The largest models of 2026 have fewer in all their files together.
pub const MAX_TENSORS: usize = 500_000;
/// The maximum number of bytes of names.
pub const MAX_NAME_BYTES: usize = 32 * 1024 * 1024;

/// The size of the length before the header.
const PREFIX_BYTES: u64 = 8;

/// A header whose text has been read; its claims are not checked yet.
pub(super) struct Header {
    /// The offset in the file of the first tensor's first byte.
    pub(super) data_start: u64,
    /// In the order of their bytes in the file.
    pub(super) tensors: Vec<Claim>,
}

/// What the header states about one tensor.
pub(super) struct Claim {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    /// The product of the shape; `None` when it exceeds 64 bits.
    pub(super) elements: Option<u64>,
    /// The first byte, counted from the end of the header.
    pub(super) start: u64,
    /// The byte after the last.
    pub(super) end: u64,
}

pub(super) fn read(source: &dyn ReadAt) -> Result<Header, Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes < PREFIX_BYTES {
        let size = bytes(size_bytes);
        return Err(broken!(
            "a safetensors file begins with the length of its header, but this file has only {size}"
        ));
    }
    let length_bytes = u64::from_le_bytes(read_array(source, 0, "the length of the header")?);
    if length_bytes == 0 {
        return Err(broken_at!(
            0,
            "the header has a length of 0 bytes: the file was reserved and never written"
        ));
    }
    if length_bytes > LONGEST_HEADER_BYTES {
        return Err(broken_at!(
            0,
            "the header would be {length_bytes} bytes long, but safetensors reads at most \
             {LONGEST_HEADER_BYTES}: this is not a safetensors file, or its first bytes are damaged"
        ));
    }
    let data_start = PREFIX_BYTES + length_bytes;
    if data_start > size_bytes {
        return Err(broken_at!(
            0,
            "the header takes {length_bytes} bytes, and the file ends after {size_bytes}: the save was cut off"
        ));
    }
    let mut claims = Claims::default();
    let parsed = json::parse(source, PREFIX_BYTES, data_start, "the header", Entries(&mut claims));
    let mut tensors = match (parsed, claims.refusal) {
        (Err(Fault::Broken { .. }), Some(refusal)) => return Err(Fault::Unknown(refusal)),
        (Err(fault), _) => return Err(fault),
        (Ok(()), _) => claims.tensors,
    };
    tensors.sort_unstable_by_key(|tensor| (tensor.start, tensor.end));
    Ok(Header { data_start, tensors })
}

/// Collects the contents of the header, and stops at the limits.
#[derive(Default)]
struct Claims {
    tensors: Vec<Claim>,
    name_bytes: usize,
    has_metadata: bool,
    refusal: Option<String>,
}

impl Claims {
    fn add(&mut self, name: String, tensor: TensorInfo) -> Result<(), &'static str> {
        self.name_bytes = self.name_bytes.saturating_add(name.len());
        if self.tensors.len() == MAX_TENSORS || self.name_bytes > MAX_NAME_BYTES {
            self.refusal = Some(format!(
                "the header names more than {MAX_TENSORS} tensors or {MAX_NAME_BYTES} bytes of names, the limits"
            ));
            return Err("too many tensors");
        }
        self.tensors.push(Claim {
            name,
            dtype: tensor.dtype,
            elements: tensor.shape.0,
            start: tensor.data_offsets.0,
            end: tensor.data_offsets.1,
        });
        Ok(())
    }
}

impl<'de> ReadEntry<'de> for Claims {
    const EXPECTED: &'static str = "an object of tensors";

    fn read_entry<A: MapAccess<'de>>(&mut self, name: String, entries: &mut A) -> Result<(), A::Error> {
        if name != "__metadata__" {
            let tensor = entries.next_value()?;
            return self.add(name, tensor).map_err(A::Error::custom);
        }
        if std::mem::replace(&mut self.has_metadata, true) {
            return Err(A::Error::custom("__metadata__ is listed twice"));
        }
        entries.next_value::<Option<TextMap>>().map(drop)
    }
}

/// A tensor's entry, as in safetensors' own `TensorInfo`: unknown fields are accepted.
#[derive(Deserialize)]
struct TensorInfo {
    dtype: Dtype,
    shape: ElementCount,
    data_offsets: (u64, u64),
}

/// A shape, of which only the product is kept.
struct ElementCount(Option<u64>);

impl<'de> Deserialize<'de> for ElementCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shape;
        impl<'de> Visitor<'de> for Shape {
            type Value = ElementCount;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut dimensions: A) -> Result<ElementCount, A::Error> {
                let mut product = Some(1_u64);
                while let Some(dimension) = dimensions.next_element::<u64>()? {
                    product = product.and_then(|product| product.checked_mul(dimension));
                }
                Ok(ElementCount(product))
            }
        }
        deserializer.deserialize_seq(Shape)
    }
}

/// `__metadata__`: read text by text without keeping it.
struct TextMap;

impl<'de> ReadEntry<'de> for TextMap {
    const EXPECTED: &'static str = "an object of strings";

    fn read_entry<A: MapAccess<'de>>(&mut self, _: String, entries: &mut A) -> Result<(), A::Error> {
        entries.next_value::<String>().map(drop)
    }
}

impl<'de> Deserialize<'de> for TextMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Entries(&mut Self).deserialize(deserializer).map(|()| Self)
    }
}

/// The kind of a tensor's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dtype {
    /// A dtype that safetensors 0.8 knows, with the bits of an element.
    Known { name: &'static str, bits: u64 },
    /// Any other dtype: of a later release, or damaged.
    Other(String),
}

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Dtype;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the name of a dtype")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Dtype, E> {
                Ok(match ELEMENTS.safetensors_bits.get_key_value(text) {
                    Some((name, &bits)) => Dtype::Known { name, bits },
                    None => Dtype::Other(shown(text)),
                })
            }
        }
        deserializer.deserialize_str(Name)
    }
}
