//! The arrays of a database: their descriptions and chunks, distinguished by key.

use std::collections::BTreeMap;

use super::node::Value;
use super::store::{Budget, Location, Store};
use crate::soundness::{Fault, broken};
use crate::structure::zarr::{self, Description};
use crate::tree::joined;

/// The maximum size of the description of one array.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;

/// The length of the checksum at the end of a chunk.
const CHECKSUM_BYTES: u64 = 4;

/// An array in a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredArray {
    /// Its shape and chunks, if its description exists.
    pub description: Option<Description>,
    /// The number of its chunks.
    pub chunks: u64,
}

/// The arrays of a database, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arrays {
    by_name: BTreeMap<String, StoredArray>,
    manifest_path: String,
}

impl Arrays {
    /// Returns the array of this name, if its description exists.
    pub fn get(&self, name: &str) -> Option<&StoredArray> {
        self.by_name.get(name).filter(|array| array.description.is_some())
    }

    /// Returns every name with its array.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &StoredArray)> {
        self.by_name.iter().map(|(name, array)| (name.as_str(), array))
    }

    /// Checks that each array has a description.
    ///
    /// # Errors
    /// [`Fault::Broken`], naming the array.
    pub fn check(&self) -> Result<(), Fault> {
        for (name, array) in &self.by_name {
            if array.description.is_none() && !self.has_below(name) {
                return Err(broken!(
                    "{} holds {} chunks of the array {name}, but not the description of the array",
                    self.manifest_path,
                    array.chunks
                ));
            }
        }
        Ok(())
    }

    /// Checks that no array lacks a chunk. Applies only if the writer also stores chunks that hold nothing but the
    /// fill value, which it may otherwise leave out.
    ///
    /// # Errors
    /// [`Fault::Broken`], naming the array.
    pub fn check_chunks(&self) -> Result<(), Fault> {
        for (name, array) in &self.by_name {
            let expected = array.description.as_ref().and_then(Description::chunk_count);
            if let Some(expected) = expected
                && array.chunks < expected
                && array_of_chunk(&format!("{name}/0")) == Some(name)
                && !self.has_below(name)
            {
                return Err(broken!(
                    "{} holds {} of the {expected} chunks of the array {name}: part of the save is missing",
                    self.manifest_path,
                    array.chunks
                ));
            }
        }
        Ok(())
    }

    /// Returns whether the name of a described array is an extension of this one. Then chunks of that array may have
    /// been counted here, because its name looks like the end of a chunk's key.
    fn has_below(&self, name: &str) -> bool {
        let prefix = joined(name, "");
        self.by_name
            .range(prefix.clone()..)
            .take_while(|(other, _)| other.starts_with(&prefix))
            .any(|(other, array)| other != name && array.description.is_some())
    }
}

/// Collects arrays from a stream of keys.
#[derive(Default)]
pub(super) struct Collector {
    by_name: BTreeMap<String, StoredArray>,
    /// The array of the previous chunk, which usually is that of the next.
    last: (String, u64),
}

impl Collector {
    pub(super) fn take(
        &mut self,
        store: &mut Store<'_>,
        key: &[u8],
        value: Value<'_>,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let name = String::from_utf8_lossy(key);
        budget.spend(key.len() as u64, "the list of keys")?;
        let what = || format!("the value of {name}");
        if let Value::Stored(file, location) = value {
            store.hold(&file.path, location, &what())?;
        }
        if let Some((array, kind)) = described_array(&name) {
            let bytes = match value {
                Value::Inline(bytes) => bytes.to_vec(),
                Value::Stored(file, location) => {
                    store.read(&file.path, location, MAX_DESCRIPTION_BYTES, &what())?
                }
            };
            budget.spend((bytes.len() + array.len()) as u64, "the descriptions of arrays")?;
            let description = Description::parse(&bytes, kind)
                .map_err(|why| broken!("{name} does not describe an array: {why}"))?;
            if description.is_some() {
                self.entry(array).description = description;
            }
        } else if let Some(array) = array_of_chunk(&name) {
            if self.last.0 != array {
                budget.spend(array.len() as u64, "the names of arrays")?;
                self.settle();
                array.clone_into(&mut self.last.0);
            }
            self.last.1 += 1;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, manifest_path: &str) -> Arrays {
        self.settle();
        Arrays { by_name: self.by_name, manifest_path: manifest_path.to_owned() }
    }

    fn settle(&mut self) {
        let (name, chunks) = std::mem::take(&mut self.last);
        if chunks > 0 {
            self.entry(&name).chunks += chunks;
        }
    }

    fn entry(&mut self, name: &str) -> &mut StoredArray {
        self.by_name.entry(name.to_owned()).or_default()
    }
}

/// Collects the checksum of a chunk that ends with one.
pub(super) fn collect_checksum(
    arrays: &Arrays,
    store: &mut Store<'_>,
    key: &[u8],
    value: Value<'_>,
) -> Result<(), Fault> {
    let name = String::from_utf8_lossy(key);
    let array = array_of_chunk(&name).and_then(|array| arrays.get(array));
    let description = array.and_then(|array| array.description.as_ref());
    if !description.is_some_and(|description| description.has_checksum) {
        return Ok(());
    }
    let Value::Stored(file, Location { offset, length_bytes }) = value else {
        return Ok(());
    };
    let Some(covered_bytes) = length_bytes.checked_sub(CHECKSUM_BYTES) else {
        return Ok(());
    };
    let end = offset.saturating_add(covered_bytes);
    let place = Location { offset: end, length_bytes: CHECKSUM_BYTES };
    let checksum = store.read(&file.path, place, CHECKSUM_BYTES, "the checksum of a chunk")?;
    let path = store.directory.path_of(&file.path);
    store.collect_of(path, offset..end, &checksum, &name);
    Ok(())
}

/// Returns the array that a key describes.
fn described_array(key: &str) -> Option<(&str, zarr::Version)> {
    let (array, file) = key.rsplit_once('/').unwrap_or(("", key));
    zarr::Version::of_file(file).map(|version| (array, version))
}

/// Returns the array that a key is a chunk of: the key without the chunk's indices (`x/0.1`, `x/0/1`, `x/c/0/1`).
fn array_of_chunk(key: &str) -> Option<&str> {
    let mut rest = key;
    while let Some((before, last)) = split_last(rest)
        && last.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && !last.is_empty()
    {
        rest = before;
    }
    if let Some((before, last)) = split_last(rest)
        && last
            .strip_prefix('c')
            .is_some_and(|indices| indices.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
    {
        rest = before;
    }
    (rest.len() < key.len()).then_some(rest)
}

/// Returns the last part of a path and the part before it; `None` for the empty path.
fn split_last(path: &str) -> Option<(&str, &str)> {
    (!path.is_empty()).then(|| path.rsplit_once('/').unwrap_or(("", path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_which_array_they_are_of() {
        for (key, array) in [
            ("params.w/0", Some("params.w")),
            ("params.w/0.12", Some("params.w")),
            ("params.w/0/12", Some("params.w")),
            ("params.w/c/0/1", Some("params.w")),
            ("params.w/c.0.1", Some("params.w")),
            ("params.w/c", Some("params.w")),
            ("0/0", Some("")),
            ("params.w/note", None),
            ("", None),
        ] {
            assert_eq!(array_of_chunk(key), array, "{key}");
        }
        assert_eq!(described_array("a/b/.zarray"), Some(("a/b", zarr::Version::Two)));
        assert_eq!(described_array("zarr.json"), Some(("", zarr::Version::Three)));
        assert_eq!(described_array("a/zarr.jso"), None);
    }

    fn arrays(entries: &[(&str, bool, u64)]) -> Arrays {
        let described = br#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"<f4","compressor":null}"#;
        let description = Description::parse(described, zarr::Version::Two).unwrap();
        let by_name = entries.iter().map(|(name, is_described, chunks)| {
            let description = description.clone().filter(|_| *is_described);
            let array = StoredArray { description, chunks: *chunks };
            ((*name).to_owned(), array)
        });
        Arrays { by_name: by_name.collect(), manifest_path: "40/default/manifest.ocdbt".to_owned() }
    }

    #[test]
    fn chunks_belong_to_a_described_array() {
        assert!(arrays(&[("w", true, 2)]).check().is_ok());
        assert_eq!(
            arrays(&[("w", false, 2)]).check().unwrap_err().to_string(),
            "40/default/manifest.ocdbt holds 2 chunks of the array w, but not the description of the array"
        );
        // Chunks of an array called `layers/0` look like those of `layers`.
        assert!(arrays(&[("layers", false, 2), ("layers/0", true, 0)]).check().is_ok());
    }

    #[test]
    fn a_missing_chunk_shows() {
        assert!(arrays(&[("w", true, 2)]).check_chunks().is_ok());
        assert_eq!(
            arrays(&[("w", true, 1)]).check_chunks().unwrap_err().to_string(),
            "40/default/manifest.ocdbt holds 1 of the 2 chunks of the array w: part of the save is missing"
        );
        assert!(arrays(&[("layers", false, 2), ("layers/0", true, 0)]).check_chunks().is_ok());
    }
}
