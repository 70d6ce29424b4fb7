//! The index's map from tensors to files.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use crate::soundness::Fault;
use crate::source::ReadAt;
use crate::structure::json;
use crate::structure::json_stream::Skipped;

/// The maximum number of tensors of an index.
pub const MAX_WEIGHTS: usize = 1_000_000;
/// The maximum number of bytes of names.
const MAX_NAME_BYTES: usize = 64 * 1024 * 1024;

/// The names of tensors, by the file that holds them.
pub(super) type WeightMap = BTreeMap<String, Vec<String>>;

pub(super) fn read(source: &dyn ReadAt) -> Result<WeightMap, Fault> {
    let mut index = Index::default();
    let parsed = json::read(source, Root(&mut index));
    match (parsed, index.refused) {
        (Err(Fault::Broken { .. }), true) => Err(Fault::Unknown(format!(
            "the index names more than {MAX_WEIGHTS} tensors or {MAX_NAME_BYTES} bytes of names, the limits"
        ))),
        (Err(fault), _) => Err(fault),
        (Ok(()), _) if index.files.is_empty() => {
            Err(Fault::broken("the index has no weight_map that names a tensor"))
        }
        (Ok(()), _) => Ok(index.files),
    }
}

#[derive(Default)]
struct Index {
    files: WeightMap,
    weights: usize,
    name_bytes: usize,
    refused: bool,
}

impl Index {
    fn add(&mut self, weight: String, file: String) -> Result<(), &'static str> {
        self.weights = self.weights.saturating_add(1);
        self.name_bytes = self.name_bytes.saturating_add(weight.len());
        if !self.files.contains_key(&file) {
            self.name_bytes = self.name_bytes.saturating_add(file.len());
        }
        if self.weights > MAX_WEIGHTS || self.name_bytes > MAX_NAME_BYTES {
            self.refused = true;
            return Err("too many tensors");
        }
        self.files.entry(file).or_default().push(weight);
        Ok(())
    }
}

/// The index's own object.
struct Root<'a>(&'a mut Index);

/// The object under `weight_map`.
struct Weights<'a>(&'a mut Index);

impl<'de> DeserializeSeed<'de> for Root<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<String>()? {
            if key == "weight_map" {
                entries.next_value_seed(Weights(self.0))?;
            } else {
                entries.next_value::<Skipped>()?;
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Weights<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Weights<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object that places tensors in files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some((weight, file)) = entries.next_entry()? {
            self.0.add(weight, file).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}
