//! Texts and bytes. Long ones are skipped, not read.

use super::machine::Machine;
use super::{MAX_TEXT_BYTES, Value};
use crate::soundness::Fault;

impl Machine<'_> {
    pub(super) fn unicode(&mut self, length: u64) -> Result<(), Fault> {
        if length > MAX_TEXT_BYTES {
            return self.bytes(length);
        }
        let bytes = self.cursor.bytes(length)?;
        // Python writes lone surrogates as they are: they are no UTF-8, and no fault.
        let surrogate = |pair: &[u8]| matches!(pair, [0xed, 0xa0..=0xbf]);
        if str::from_utf8(&bytes).is_err() && !bytes.windows(2).any(surrogate) {
            return Err(self.fault("holds text that is not UTF-8"));
        }
        self.push_line(Some(bytes))
    }

    pub(super) fn byte_string(&mut self, length: u64) -> Result<(), Fault> {
        if length > MAX_TEXT_BYTES {
            return self.bytes(length);
        }
        let bytes = self.cursor.bytes(length)?;
        self.push_line(Some(bytes))
    }

    pub(super) fn quoted_line(&mut self) -> Result<(), Fault> {
        let Some(line) = self.cursor.line(MAX_TEXT_BYTES)? else {
            return self.push(Value::Scalar);
        };
        let inner = match line.trim_ascii() {
            [b'"', inner @ .., b'"'] | [b'\'', inner @ .., b'\''] => inner.to_vec(),
            _ => return Err(self.fault("holds a string without quotes")),
        };
        self.push_line(Some(inner))
    }

    pub(super) fn push_line(&mut self, line: Option<Vec<u8>>) -> Result<(), Fault> {
        let Some(bytes) = line else {
            return self.push(Value::Scalar);
        };
        // What is no UTF-8 is one of Python 2's byte strings, or a text with lone surrogates: neither is a name.
        let value = match str::from_utf8(&bytes) {
            Ok(text) => Value::Text(self.store.text(text)?),
            Err(_) => Value::Scalar,
        };
        self.push(value)
    }

    pub(super) fn bytes(&mut self, length: u64) -> Result<(), Fault> {
        self.cursor.skip(length)?;
        self.push(Value::Scalar)
    }
}
