//! What follows an instruction: lengths, numbers, texts and names. Long texts and bytes are skipped, not read.

use super::machine::Machine;
use super::store::Object;
use super::{MAX_TEXT_BYTES, Value, opcode};
use crate::soundness::Fault;

/// The longest number whose value is read, in bytes.
const MAX_NUMBER_BYTES: u64 = 64;

impl Machine<'_> {
    /// Reads the number that follows the current instruction: a length, or the index of a memo slot.
    pub(super) fn operand(&mut self) -> Result<u64, Fault> {
        Ok(match self.opcode {
            opcode::BINUNICODE | opcode::BINBYTES | opcode::LONG_BINPUT | opcode::LONG_BINGET => {
                u64::from(u32::from_le_bytes(self.cursor.array()?))
            }
            opcode::FRAME | opcode::BINUNICODE8 | opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                u64::from_le_bytes(self.cursor.array()?)
            }
            opcode::LONG4 | opcode::BINSTRING => {
                let length = i32::from_le_bytes(self.cursor.array()?);
                u64::try_from(length).map_err(|_| self.fault(&format!("has a length of {length} bytes")))?
            }
            opcode::BININT2 => u64::from(u16::from_le_bytes(self.cursor.array()?)),
            opcode::PUT | opcode::GET => self.decimal_index()?,
            _ => u64::from(self.cursor.byte()?),
        })
    }

    fn number_line(&mut self) -> Result<Option<String>, Fault> {
        let Some(line) = self.cursor.line(MAX_NUMBER_BYTES)? else {
            return Ok(None);
        };
        match String::from_utf8(line) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(_) => Err(self.fault("holds a number that is not text")),
        }
    }

    pub(super) fn decimal_int(&mut self) -> Result<(), Fault> {
        match self.number_line()?.as_deref() {
            None => self.push(Value::Scalar),
            Some("00") => self.push(Value::Bool(false)),
            Some("01") => self.push(Value::Bool(true)),
            Some(digits) => self.push_decimal(digits),
        }
    }

    pub(super) fn decimal_long(&mut self) -> Result<(), Fault> {
        match self.number_line()? {
            None => self.push(Value::Scalar),
            Some(line) => self.push_decimal(line.strip_suffix('L').unwrap_or(&line)),
        }
    }

    fn push_decimal(&mut self, digits: &str) -> Result<(), Fault> {
        let unsigned = digits.strip_prefix(['-', '+']).unwrap_or(digits);
        if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self.fault(&format!("holds {digits:?}, which is not an integer")));
        }
        match digits.parse::<i128>() {
            Err(_) => self.push(Value::Scalar),
            Ok(wide) => {
                let value = self.pickle.add_integer(wide)?;
                self.push(value)
            }
        }
    }

    fn decimal_index(&mut self) -> Result<u64, Fault> {
        let line = self.number_line()?;
        line.as_deref()
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| self.fault("names a memo slot by something other than a number"))
    }

    pub(super) fn decimal_float(&mut self) -> Result<(), Fault> {
        if let Some(line) = self.number_line()?
            && line.parse::<f64>().is_err()
        {
            return Err(self.fault(&format!("holds {line:?}, which is not a number")));
        }
        self.push(Value::Scalar)
    }

    /// Reads an integer in two's complement, little-endian.
    pub(super) fn long(&mut self) -> Result<(), Fault> {
        let Some(bytes) = self.counted_bytes(MAX_NUMBER_BYTES)? else {
            return self.push(Value::Scalar);
        };
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if negative { 0xff } else { 0 };
        let mut wide = [fill; 16];
        let Some(low) = wide.get_mut(..bytes.len()) else {
            return self.push(Value::Scalar);
        };
        low.copy_from_slice(&bytes);
        let value = self.pickle.add_integer(i128::from_le_bytes(wide))?;
        self.push(value)
    }

    pub(super) fn unicode(&mut self) -> Result<(), Fault> {
        let text = self.counted_bytes(MAX_TEXT_BYTES)?;
        // Python writes lone surrogates as they are: they are no UTF-8, and no fault.
        let surrogate = |pair: &[u8]| matches!(pair, [0xed, 0xa0..=0xbf]);
        let is_no_text = |bytes: &[u8]| str::from_utf8(bytes).is_err() && !bytes.windows(2).any(surrogate);
        if text.as_deref().is_some_and(is_no_text) {
            return Err(self.fault("holds text that is not UTF-8"));
        }
        self.push_line(text)
    }

    pub(super) fn byte_string(&mut self) -> Result<(), Fault> {
        let bytes = self.counted_bytes(MAX_TEXT_BYTES)?;
        self.push_line(bytes)
    }

    /// Reads the bytes that follow their number; skips them, and returns `None`, if they are more than `most`.
    fn counted_bytes(&mut self, most: u64) -> Result<Option<Vec<u8>>, Fault> {
        let length = self.operand()?;
        if length > most {
            return self.cursor.skip(length).map(|()| None);
        }
        self.cursor.bytes(length).map(Some)
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
            Ok(text) => Value::Text(self.pickle.add_text(text)?),
            Err(_) => Value::Scalar,
        };
        self.push(value)
    }

    /// Skips bytes that are not kept.
    pub(super) fn skip(&mut self, length: u64) -> Result<(), Fault> {
        self.cursor.skip(length)?;
        self.push(Value::Scalar)
    }

    pub(super) fn global_of_lines(&mut self) -> Result<Value, Fault> {
        let module = self.cursor.line(MAX_TEXT_BYTES)?;
        let name = self.cursor.line(MAX_TEXT_BYTES)?;
        let (Some(module), Some(name)) = (module, name) else {
            return Err(self.fault("names a class by a name that is too long"));
        };
        if module.is_empty() || name.is_empty() {
            return Err(self.fault("names a class by an empty name"));
        }
        let (Ok(module), Ok(name)) = (str::from_utf8(&module), str::from_utf8(&name)) else {
            return Err(self.fault("names a class by a name that is not UTF-8 text"));
        };
        let module = self.pickle.add_text(module)?;
        let name = self.pickle.add_text(name)?;
        self.pickle.add_object(Object::Global { module, name })
    }
}
