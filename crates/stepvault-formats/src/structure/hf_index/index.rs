//! What an index states: its map from tensors to files, and the bytes of all tensors.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Error, IgnoredAny, MapAccess};

use crate::soundness::{Fault, broken, unknown};
use crate::source::ReadAt;
use crate::structure::json;
use crate::structure::json_stream::{Entries, ReadEntry, Skipped};
use crate::structure::text::shown;

/// The maximum number of tensors of an index.
pub const MAX_WEIGHTS: usize = 1_000_000;
/// The maximum number of bytes of names.
const MAX_NAME_BYTES: usize = 64 * 1024 * 1024;

/// The names of tensors, by the file that holds them.
pub(super) type WeightMap = BTreeMap<String, Vec<String>>;

/// Reads the map of an index, which names no file outside of its directory.
pub(super) fn read(source: &dyn ReadAt) -> Result<WeightMap, Fault> {
    let mut index = Index::default();
    match json::read(source, Entries(&mut index)) {
        Err(Fault::Broken { .. }) if index.refused => {
            return Err(unknown!(
                "the index names more than {MAX_WEIGHTS} tensors or {MAX_NAME_BYTES} bytes of names, the limits"
            ));
        }
        parsed => parsed?,
    }
    if index.files.is_empty() {
        return Err(broken!("the index has no weight_map that names a tensor"));
    }
    index.files.keys().try_for_each(|file| inside(file))?;
    Ok(index.files)
}

/// Refuses a path that leads outside the index's directory.
fn inside(file: &str) -> Result<(), Fault> {
    let leads_out = file.split(['/', '\\']).any(|part| matches!(part, "" | "." | ".."));
    // `C:` starts an absolute path on Windows.
    if leads_out || file.contains(':') || file.contains('\0') {
        return Err(broken!(
            "the index places tensors in {}, which is not a file name in its directory",
            shown(file)
        ));
    }
    Ok(())
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

/// The object under `weight_map`.
struct Weights<'a>(&'a mut Index);

impl<'de> ReadEntry<'de> for Index {
    const EXPECTED: &'static str = "an object with a weight_map";

    fn read_entry<A: MapAccess<'de>>(&mut self, key: String, entries: &mut A) -> Result<(), A::Error> {
        if key == "weight_map" {
            entries.next_value_seed(Entries(&mut Weights(self)))
        } else {
            entries.next_value::<Skipped>().map(drop)
        }
    }
}

impl<'de> ReadEntry<'de> for Weights<'_> {
    const EXPECTED: &'static str = "an object that places tensors in files";

    fn read_entry<A: MapAccess<'de>>(&mut self, weight: String, entries: &mut A) -> Result<(), A::Error> {
        let file = entries.next_value()?;
        self.0.add(weight, file).map_err(A::Error::custom)
    }
}

/// The files that an index names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Each file, relative to the index's directory, and the number of its tensors.
    pub files: Vec<(String, u64)>,
    /// The bytes of all tensors, if the index states them. Writers count tensors that share their bytes once or
    /// twice.
    pub total_bytes: Option<u64>,
}

/// Reads the files that an index names.
///
/// # Errors
/// As [`check`](super::check), of the index alone.
pub fn listed(source: &dyn ReadAt) -> Result<Listed, Fault> {
    let weights = read(source)?;
    let head = json::read(source, PhantomData::<Head>)?;
    let total_bytes = match head.metadata.and_then(|metadata| metadata.total_size) {
        Some(Total::Whole(bytes)) => Some(bytes),
        Some(Total::Other(_)) | None => None,
    };
    let files = weights.into_iter();
    Ok(Listed { files: files.map(|(file, names)| (file, names.len() as u64)).collect(), total_bytes })
}

/// An index; only its total is kept.
#[derive(Deserialize)]
struct Head {
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    total_size: Option<Total>,
}

/// A length, or an invalid value, which is ignored because the total is only informative.
#[derive(Deserialize)]
#[serde(untagged)]
enum Total {
    Whole(u64),
    Other(IgnoredAny),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Listed, String> {
        listed(&text.as_bytes().to_vec()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn files_and_the_total_are_read() {
        let index =
            r#"{"metadata":{"total_size":107136,"x":[1]},"weight_map":{"a":"m-1","b":"m-2","c":"m-2"}}"#;
        let expected =
            Listed { files: vec![("m-1".to_owned(), 1), ("m-2".to_owned(), 2)], total_bytes: Some(107_136) };
        assert_eq!(list(index).unwrap(), expected);
        for metadata in ["", r#""metadata":{},"#, r#""metadata":{"total_size":1.5},"#, r#""metadata":null,"#]
        {
            let index = format!("{{{metadata}\"weight_map\":{{\"a\":\"m\"}}}}");
            assert_eq!(list(&index).unwrap().total_bytes, None, "{index}");
        }
        let outside = list(r#"{"weight_map":{"a":"../m"}}"#).unwrap_err();
        assert_eq!(outside, "the index places tensors in ../m, which is not a file name in its directory");
    }
}
