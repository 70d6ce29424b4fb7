//! What an index states about the files in its directory, without reading them.

use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{inside, weight_map};
use crate::soundness::Fault;
use crate::source::ReadAt;
use crate::structure::json;

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
    let weights = weight_map::read(source)?;
    for file in weights.keys() {
        inside(file)?;
    }
    let head = json::read(source, PhantomData::<Head>)?;
    let total_bytes = match head.metadata.and_then(|metadata| metadata.total_size) {
        Some(Total::Whole(bytes)) => Some(bytes),
        Some(Total::Other(_)) | None => None,
    };
    let files = weights.into_iter();
    Ok(Listed {
        files: files.map(|(file, names)| (file, names.len() as u64)).collect(),
        total_bytes,
    })
}

/// An index, of which only the total is kept.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
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

    fn read(text: &str) -> Result<Listed, String> {
        listed(&text.as_bytes().to_vec()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn files_and_the_total_are_read() {
        let index =
            r#"{"metadata":{"total_size":107136,"x":[1]},"weight_map":{"a":"m-1","b":"m-2","c":"m-2"}}"#;
        let expected = Listed {
            files: vec![("m-1".to_owned(), 1), ("m-2".to_owned(), 2)],
            total_bytes: Some(107_136),
        };
        assert_eq!(read(index).unwrap(), expected);
        for metadata in [
            "",
            r#""metadata":{},"#,
            r#""metadata":{"total_size":1.5},"#,
            r#""metadata":null,"#,
        ] {
            let index = format!("{{{metadata}\"weight_map\":{{\"a\":\"m\"}}}}");
            assert_eq!(read(&index).unwrap().total_bytes, None, "{index}");
        }
        let outside = read(r#"{"weight_map":{"a":"../m"}}"#).unwrap_err();
        assert_eq!(
            outside,
            "the index places tensors in ../m, which is not a file name in its directory"
        );
    }
}
