//! The array description in `.zarray` or `zarr.json`.

use serde_json::Value;

use crate::structure::elements::ELEMENTS;

/// The version of the format that describes an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `.zarray`.
    Two,
    /// `zarr.json`.
    Three,
}

impl Version {
    /// Returns the name of the file that holds the description.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Two => ".zarray",
            Self::Three => "zarr.json",
        }
    }

    /// Returns the version whose file has this name.
    pub fn of_file(name: &str) -> Option<Self> {
        [Self::Two, Self::Three].into_iter().find(|version| version.file() == name)
    }
}

/// The container of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    /// None: the elements, followed by `trailer_bytes`.
    Raw { trailer_bytes: u64 },
    /// One zstd frame.
    Zstd,
    /// One Blosc buffer.
    Blosc,
    /// A container that is not checked.
    Other,
}

/// The shape of an array and the form of its chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    shape: Vec<u64>,
    chunk_shape: Vec<u64>,
    /// The text before the indices in a chunk's key.
    key_prefix: &'static str,
    separator: char,
    /// The bytes of an element, if its type has a known fixed length.
    element_bytes: Option<u64>,
    pub(super) container: Container,
    /// Whether each chunk ends with a CRC-32C of the rest of it.
    pub(crate) has_checksum: bool,
}

impl Description {
    /// Reads a description; `None` for a group.
    ///
    /// # Errors
    /// The reason why it does not describe an array.
    pub fn parse(bytes: &[u8], version: Version) -> Result<Option<Self>, String> {
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| format!("it is not JSON ({error})"))?;
        match version {
            Version::Two => version_two(&value).map(Some),
            Version::Three if value.get("node_type").and_then(Value::as_str) == Some("group") => Ok(None),
            Version::Three => version_three(&value).map(Some),
        }
    }

    /// Returns the number of chunks of the array; `None` on overflow.
    pub fn chunk_count(&self) -> Option<u64> {
        self.grid().try_fold(1_u64, u64::checked_mul)
    }

    /// Returns the bytes of a chunk before compression, if known. Chunks at the edge are as large as the others.
    pub(super) fn chunk_bytes(&self) -> Option<u64> {
        self.chunk_shape.iter().try_fold(self.element_bytes?, |product, length| product.checked_mul(*length))
    }

    /// Returns whether a path below the array's directory is that of one of its chunks.
    pub(super) fn is_chunk(&self, key: &str) -> bool {
        let Some(rest) = key.strip_prefix(self.key_prefix) else {
            return false;
        };
        if self.shape.is_empty() {
            return if self.key_prefix.is_empty() { rest == "0" } else { rest.is_empty() };
        }
        let rest = if self.key_prefix.is_empty() { Some(rest) } else { rest.strip_prefix(self.separator) };
        rest.is_some_and(|indices| {
            let mut grid = self.grid();
            let inside = indices.split(self.separator).all(|index| {
                let number = index.parse::<u64>().ok().filter(|number| number.to_string() == index);
                number.zip(grid.next()).is_some_and(|(number, chunks)| number < chunks)
            });
            inside && grid.next().is_none()
        })
    }

    /// Refuses a shape and chunks that contradict each other.
    fn of_one_mind(self) -> Result<Self, String> {
        let (dimensions, of_chunks) = (self.shape.len(), self.chunk_shape.len());
        if dimensions != of_chunks {
            return Err(format!("it has {dimensions} dimensions, but its chunks have {of_chunks}"));
        }
        if self.chunk_shape.contains(&0) {
            return Err("its chunks have a length of 0".to_owned());
        }
        Ok(self)
    }

    fn grid(&self) -> impl Iterator<Item = u64> {
        self.shape.iter().zip(&self.chunk_shape).map(|(length, chunk)| length.div_ceil(*chunk))
    }
}

fn version_two(value: &Value) -> Result<Description, String> {
    expect_format(value, 2)?;
    let separator = match value.get("dimension_separator").and_then(Value::as_str) {
        None | Some(".") => '.',
        Some("/") => '/',
        Some(other) => return Err(format!("its dimension_separator is {other}")),
    };
    let filtered = value.get("filters").and_then(Value::as_array).is_some_and(|filters| !filters.is_empty());
    let container = match value.get("compressor") {
        None | Some(Value::Null) if !filtered => Container::Raw { trailer_bytes: 0 },
        Some(compressor) => container_of(compressor.get("id")),
        None => Container::Other,
    };
    let element = value.get("dtype").ok_or("it has no dtype")?;
    let element_bytes = element.as_str().filter(|_| !filtered).and_then(version_two_bytes);
    let description = Description {
        shape: lengths(value.get("shape"), "shape")?,
        chunk_shape: lengths(value.get("chunks"), "chunks")?,
        key_prefix: "",
        separator,
        element_bytes,
        container,
        has_checksum: false,
    };
    description.of_one_mind()
}

fn version_three(value: &Value) -> Result<Description, String> {
    expect_format(value, 3)?;
    let grid = value.get("chunk_grid").ok_or("it has no chunk_grid")?;
    let chunk_shape = lengths(grid.pointer("/configuration/chunk_shape"), "chunk_shape")?;
    let encoding = value.get("chunk_key_encoding").ok_or("it has no chunk_key_encoding")?;
    let said = encoding.pointer("/configuration/separator").and_then(Value::as_str);
    let (key_prefix, separator) = match (encoding.get("name").and_then(Value::as_str), said) {
        (Some("default"), None | Some("/")) => ("c", '/'),
        (Some("default"), Some(".")) => ("c", '.'),
        (Some("v2"), None | Some(".")) => ("", '.'),
        (Some("v2"), Some("/")) => ("", '/'),
        _ => return Err("its chunk_key_encoding is unknown".to_owned()),
    };
    let codecs: Vec<&Value> = value
        .get("codecs")
        .and_then(Value::as_array)
        .ok_or("it has no codecs")?
        .iter()
        .map(|codec| codec.get("name").unwrap_or(codec))
        .collect();
    let plain = |codecs: &[&Value]| {
        let known = |codec: &&Value| matches!(codec.as_str(), Some("bytes" | "transpose"));
        codecs.iter().all(known)
    };
    let container = match codecs.as_slice() {
        codecs if plain(codecs) => Container::Raw { trailer_bytes: 0 },
        [inner @ .., last] if plain(inner) && last.as_str() == Some("crc32c") => {
            Container::Raw { trailer_bytes: 4 }
        }
        [inner @ .., last] if plain(inner) => container_of(Some(last)),
        _ => Container::Other,
    };
    let element = value.get("data_type").ok_or("it has no data_type")?;
    let description = Description {
        shape: lengths(value.get("shape"), "shape")?,
        chunk_shape,
        key_prefix,
        separator,
        element_bytes: element.as_str().and_then(version_three_bytes),
        container,
        has_checksum: codecs.last().and_then(|codec| codec.as_str()) == Some("crc32c"),
    };
    description.of_one_mind()
}

fn expect_format(value: &Value, version: u64) -> Result<(), String> {
    if value.get("zarr_format").and_then(Value::as_u64) == Some(version) {
        Ok(())
    } else {
        Err(format!("its zarr_format is not {version}"))
    }
}

fn lengths(value: Option<&Value>, field: &str) -> Result<Vec<u64>, String> {
    let lengths = value
        .and_then(Value::as_array)
        .and_then(|lengths| lengths.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
    lengths.ok_or_else(|| format!("its {field} is not a list of lengths"))
}

fn container_of(name: Option<&Value>) -> Container {
    match name.and_then(Value::as_str) {
        Some("zstd") => Container::Zstd,
        Some("blosc") => Container::Blosc,
        _ => Container::Other,
    }
}

/// Parses `<f4`, `|b1` (byte order, kind, bytes) and the names that tensorstore adds.
fn version_two_bytes(name: &str) -> Option<u64> {
    match name {
        "bfloat16" => Some(2),
        "int4" | "uint4" => Some(1),
        _ if name.starts_with("float8_") => Some(1),
        _ => {
            let kind = name.strip_prefix(['<', '>', '|'])?;
            kind.strip_prefix(['b', 'i', 'u', 'f', 'c', 'V', 'S'])?.parse().ok()
        }
    }
}

fn version_three_bytes(name: &str) -> Option<u64> {
    let known = ELEMENTS.zarr_bytes.get(name).copied();
    known.or_else(|| name.starts_with("float8_").then_some(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = r#"{"zarr_format":3,"node_type":"array","shape":[5,4],"data_type":"bfloat16",
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2,4]}},
        "chunk_key_encoding":{"name":"default"},"codecs":[{"name":"bytes"},{"name":"crc32c"}]}"#;

    fn three(from: &str, to: &str) -> Result<Option<Description>, String> {
        Description::parse(THREE.replace(from, to).as_bytes(), Version::Three)
    }

    #[test]
    fn version_three_is_read() {
        let description = three("", "").unwrap().unwrap();
        assert_eq!(description.chunk_count(), Some(3));
        assert_eq!(description.chunk_bytes(), Some(16));
        assert_eq!(description.container, Container::Raw { trailer_bytes: 4 });
        for (key, is_chunk) in [
            ("c/0/0", true),
            ("c/2/0", true),
            ("c/3/0", false),
            ("c/0", false),
            ("c/0/0/0", false),
            ("c/00/0", false),
            ("c/+1/0", false),
            ("0.0", false),
            ("zarr.json", false),
        ] {
            assert_eq!(description.is_chunk(key), is_chunk, "{key}");
        }
        let zstd = three("crc32c", "zstd").unwrap().unwrap();
        assert_eq!(zstd.container, Container::Zstd);
        let sharded = three("bytes", "sharding_indexed").unwrap().unwrap();
        assert_eq!(sharded.container, Container::Other);
        assert_eq!(three("\"array\"", "\"group\""), Ok(None));
    }

    #[test]
    fn a_scalar_is_one_chunk() {
        let scalar = three("[5,4]", "[]").unwrap_err();
        assert_eq!(scalar, "it has 0 dimensions, but its chunks have 2");
        let text = THREE.replace("[5,4]", "[]").replace("[2,4]", "[]");
        let scalar = Description::parse(text.as_bytes(), Version::Three).unwrap().unwrap();
        assert_eq!(scalar.chunk_count(), Some(1));
        assert!(scalar.is_chunk("c") && !scalar.is_chunk("c/0"));
        let two = br#"{"zarr_format":2,"shape":[],"chunks":[],"dtype":"<i4","compressor":{"id":"zstd"}}"#;
        let scalar = Description::parse(two, Version::Two).unwrap().unwrap();
        assert!(scalar.is_chunk("0") && !scalar.is_chunk(".zarray") && !scalar.is_chunk(""));
    }

    #[test]
    fn what_describes_no_array_says_why() {
        for (from, to, why) in [
            ("[5,4]", "[5,-4]", "its shape is not a list of lengths"),
            ("[2,4]", "[2,0]", "its chunks have a length of 0"),
            (":3,", ":4,", "its zarr_format is not 3"),
            ("\"default\"", "\"odd\"", "its chunk_key_encoding is unknown"),
            ("codecs", "codex", "it has no codecs"),
        ] {
            assert_eq!(three(from, to), Err(why.to_owned()));
        }
        let cut = Description::parse(&THREE.as_bytes()[..40], Version::Three).unwrap_err();
        assert!(cut.starts_with("it is not JSON"), "{cut}");
        let huge = three("[5,4]", "[18446744073709551615,18446744073709551615]").unwrap().unwrap();
        assert_eq!(huge.chunk_count(), None);
    }

    #[test]
    fn element_types_have_lengths() {
        for (name, bytes) in [
            ("<f4", Some(4)),
            ("|b1", Some(1)),
            ("bfloat16", Some(2)),
            ("float8_e5m2", Some(1)),
            ("f4", None),
        ] {
            assert_eq!(version_two_bytes(name), bytes, "{name}");
        }
    }
}
