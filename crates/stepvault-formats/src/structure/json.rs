//! JSON files beside the tensors: configurations, trainer states, and records of single ranks.
//!
//! The check accepts Python's dialect: `NaN` and `Infinity` are numbers, as `json.dump` writes them for every run
//! whose loss has diverged. A duplicate key is accepted and its last value counts, as in Python.
//!
//! # Blind spots
//!
//! A change that leaves valid JSON of the same kind is not detected: another digit, another letter in a string.

use std::fmt;
use std::io::{self, Read};

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::cursor::Forward;
use super::text::bytes;
use crate::soundness::{Fault, broken, broken_at, read_piece, unknown};
use crate::tree::ReadAt;

/// The largest file that is read. A tokenizer has tens of megabytes, and so has the log of a long run.
pub const LARGEST_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// The name of the file in messages.
const WHAT: &str = "the JSON file";

/// Checks that a file is whole JSON: one value, or several in a row, since some JSON Lines files have a JSON name, such
/// as Detectron2's `metrics.json`.
///
/// # Errors
/// [`Fault::Broken`] if it is not, [`Fault::Unknown`] if it is too large, nested too deep, or has a string that is
/// too long.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    readable(source)?;
    parse_values(source, 0, source.size_bytes(), WHAT)
}

/// Reads a file that is one JSON value.
pub(super) fn read<'de, S: DeserializeSeed<'de>>(source: &dyn ReadAt, seed: S) -> Result<S::Value, Fault> {
    readable(source)?;
    parse(source, 0, source.size_bytes(), WHAT, seed)
}

/// Refuses files that are recognizably broken without parsing.
fn readable(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Err(broken!("the JSON file is empty: the write was cut off"));
    }
    if size_bytes > LARGEST_FILE_BYTES {
        return Err(unknown!(
            "the JSON file is {size_bytes} bytes long, more than the limit of {LARGEST_FILE_BYTES}"
        ));
    }
    if read_piece(source, 0, 1, 1, "the first byte")? == [0] {
        return Err(broken_at!(
            0,
            "the JSON file begins with a zero byte: its contents were lost, as after a power failure"
        ));
    }
    Ok(())
}

/// The longest string or number that is read. DCP's writer of safetensors puts one line per tensor into a single
/// string.
pub(crate) const LONGEST_TOKEN_BYTES: u64 = 16 * 1024 * 1024;
/// The maximum nesting; `serde_json` itself stops at 128.
pub(crate) const DEEPEST_NESTING: u32 = 100;

/// Parses the JSON text between two offsets of a file; only white space may follow it. `what` names the text.
///
/// `NaN`, `Infinity` and `-Infinity` are accepted as numbers with a fraction: Python writes them into the logs of
/// every run that has diverged, and reads them back.
pub(crate) fn parse<'de, S: DeserializeSeed<'de>>(
    source: &dyn ReadAt,
    start: u64,
    end: u64,
    what: &str,
    seed: S,
) -> Result<S::Value, Fault> {
    let mut guard = Guard::new(Forward::new(source, start, end));
    let mut deserializer = serde_json::Deserializer::from_reader(&mut guard);
    let parsed = seed.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| match guard.refusal.take() {
        Some(refusal) => unknown!("{what} {refusal}"),
        None => fault_of(error, guard.inner.position(), what),
    })
}

/// Parses one or several JSON values between two offsets of a file.
pub(crate) fn parse_values(source: &dyn ReadAt, start: u64, end: u64, what: &str) -> Result<(), Fault> {
    let mut guard = Guard::new(Forward::new(source, start, end));
    let mut values = serde_json::Deserializer::from_reader(&mut guard).into_iter::<Skipped>();
    let first = values.next();
    let none = first.is_none();
    let flaw = first.into_iter().chain(values).find_map(Result::err);
    match (flaw, guard.refusal.take()) {
        (Some(_), Some(refusal)) => Err(unknown!("{what} {refusal}")),
        (Some(error), None) => Err(fault_of(error, guard.inner.position(), what)),
        (None, _) if none => Err(broken_at!(start, "{what} holds nothing but white space")),
        (None, _) => Ok(()),
    }
}

fn fault_of(error: serde_json::Error, position: u64, what: &str) -> Fault {
    let message = error.to_string();
    let reason = message.rfind(" at line ").and_then(|end| message.get(..end));
    let reason = reason.unwrap_or(&message);
    match error.classify() {
        serde_json::error::Category::Io => Fault::Read(error.into()),
        serde_json::error::Category::Eof => {
            broken_at!(position, "{what} ends in the middle of its JSON: the write was cut off")
        }
        serde_json::error::Category::Syntax | serde_json::error::Category::Data => {
            // The parser has already consumed the byte that it rejects.
            let at = position.saturating_sub(1);
            broken_at!(at, "{what} is damaged at byte {at}: {reason}")
        }
    }
}

/// Passes bytes to the parser until a token or the nesting exceeds its limit.
struct Guard<'a> {
    inner: Forward<'a>,
    refusal: Option<String>,
    place: Place,
    depth: u32,
    token_bytes: u64,
}

/// The position of the guard in the JSON text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Between,
    InString,
    AfterBackslash,
    /// Inside one of Python's numbers, with the bytes that must follow.
    InWord(&'static [u8]),
}

impl<'a> Guard<'a> {
    fn new(inner: Forward<'a>) -> Self {
        Self { inner, refusal: None, place: Place::Between, depth: 0, token_bytes: 0 }
    }

    /// Records a byte, and returns the byte that the parser sees in its place.
    fn pass(&mut self, byte: u8) -> u8 {
        self.token_bytes += 1;
        match self.place {
            Place::InString => match byte {
                b'"' => self.place = Place::Between,
                b'\\' => self.place = Place::AfterBackslash,
                _ => {}
            },
            Place::AfterBackslash => self.place = Place::InString,
            Place::InWord([expected, rest @ ..]) => {
                let as_expected = *expected == byte;
                self.place = Place::InWord(rest);
                // `NaN` and `Infinity` become `0.5` and blanks, which no reader accepts as a whole number; a word
                // that only starts like them becomes bytes that no parser accepts.
                return match self.token_bytes {
                    _ if !as_expected => b'?',
                    2 => b'.',
                    3 => b'5',
                    _ => b' ',
                };
            }
            // `NaN1` must not become the number 0.51.
            Place::InWord([]) if byte.is_ascii_alphanumeric() || b".+-".contains(&byte) => {
                self.place = Place::Between;
                return b'?';
            }
            Place::InWord([]) | Place::Between => return self.pass_outside(byte),
        }
        byte
    }

    fn pass_outside(&mut self, byte: u8) -> u8 {
        self.place = Place::Between;
        match byte {
            b'"' => {
                self.place = Place::InString;
                self.token_bytes = 0;
            }
            b'N' | b'I' => {
                self.place = Place::InWord(if byte == b'N' { b"aN" } else { b"nfinity" });
                self.token_bytes = 1;
                return b'0';
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.token_bytes = 0;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.token_bytes = 0;
            }
            b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => self.token_bytes = 0,
            _ => {}
        }
        byte
    }

    fn limit_reached(&self) -> Option<String> {
        if self.token_bytes > LONGEST_TOKEN_BYTES {
            let limit = bytes(LONGEST_TOKEN_BYTES);
            return Some(format!("has a string longer than the limit of {limit}"));
        }
        (self.depth > DEEPEST_NESTING)
            .then(|| format!("is nested deeper than the limit of {DEEPEST_NESTING} levels"))
    }
}

impl Read for Guard<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        for byte in buffer.iter_mut().take(read) {
            *byte = self.pass(*byte);
            if let Some(refusal) = self.limit_reached() {
                self.refusal = Some(refusal);
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        Ok(read)
    }
}

/// Reads the entries of a JSON object one by one.
pub(crate) trait ReadEntry<'de> {
    /// What the object is, in messages.
    const EXPECTED: &'static str;

    /// Reads the value of a key.
    fn read_entry<A: MapAccess<'de>>(&mut self, key: String, entries: &mut A) -> Result<(), A::Error>;
}

/// A JSON object that is passed entry by entry to its reader, without being kept.
pub(crate) struct Entries<'a, R>(pub(crate) &'a mut R);

impl<'de, R: ReadEntry<'de>> DeserializeSeed<'de> for Entries<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, R: ReadEntry<'de>> Visitor<'de> for Entries<'_, R> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(R::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key()? {
            self.0.read_entry(key, &mut entries)?;
        }
        Ok(())
    }
}

/// Any value, which is read and dropped. Unlike serde's own `IgnoredAny`, it reads the text of strings, so bytes that
/// are not UTF-8 are detected.
#[derive(Debug)]
pub(crate) struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Skipped {
    type Value = Self;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self, A::Error> {
        while entries.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use super::*;
    use crate::soundness::{Soundness, judged};

    fn say(text: &[u8]) -> Soundness {
        let text = text.to_vec();
        let parsed = parse(&text, 0, u64::MAX, "x.json", PhantomData::<Skipped>);
        judged(parsed.map(drop)).unwrap()
    }

    fn broken(text: &[u8]) -> (Option<u64>, String) {
        match say(text) {
            Soundness::Broken { offset, why } => (offset, why),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn takes_what_python_writes() {
        for text in [
            r#"{"loss": NaN, "grad_norm": [Infinity, -Infinity, NaN], "x": 1e400 }"#.replace("1e400", "1e40"),
            "{\"Infinity\": \"NaN, \\\" Infinity\"}\n".to_owned(),
            "[]".to_owned(),
            " NaN ".to_owned(),
        ] {
            assert_eq!(say(text.as_bytes()), Soundness::Sound, "{text}");
        }
        for text in ["[Nan]", "[NaN1]", "[Inf]", "[Infinit]", "[InfinityInfinity]", "nan", "[NaNaN]"] {
            assert!(matches!(say(text.as_bytes()), Soundness::Broken { .. }), "{text}");
        }
    }

    #[test]
    fn says_where_it_went_wrong() {
        assert_eq!(
            broken(br#"{"step": 10, "los"#),
            (Some(17), "x.json ends in the middle of its JSON: the write was cut off".to_owned())
        );
        assert_eq!(
            broken(b"{\"step\": 10,,}"),
            (Some(12), "x.json is damaged at byte 12: key must be a string".to_owned())
        );
        assert_eq!(broken(b"{} {}").0, Some(3));
        assert_eq!(broken(b"{\"a\": \"\xff\"}").1, "x.json is damaged at byte 9: invalid unicode code point");
    }

    #[test]
    fn holds_no_more_than_it_says() {
        let deep = "[".repeat(1_000_000);
        assert_eq!(
            say(deep.as_bytes()),
            Soundness::Unknown { why: "x.json is nested deeper than the limit of 100 levels".to_owned() }
        );
        for long in ["\"a", "1"] {
            let long = format!("{long}{}", "1".repeat(17 << 20));
            assert_eq!(
                say(long.as_bytes()),
                Soundness::Unknown {
                    why: "x.json has a string longer than the limit of 16777216 bytes".to_owned()
                }
            );
        }
        let wide = format!("[{}]", "[],".repeat(200_000).trim_end_matches(','));
        assert_eq!(say(wide.as_bytes()), Soundness::Sound);
    }
}
