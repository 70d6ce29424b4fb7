//! Lengths and numbers.

use super::Value;
use super::machine::Machine;
use crate::soundness::Fault;

/// The longest number whose value is read, in bytes.
const MAX_NUMBER_BYTES: u64 = 64;

impl Machine<'_> {
    pub(super) fn length1(&mut self) -> Result<u64, Fault> {
        Ok(u64::from(self.cursor.byte()?))
    }

    pub(super) fn length4(&mut self) -> Result<u64, Fault> {
        Ok(u64::from(u32::from_le_bytes(self.cursor.array()?)))
    }

    pub(super) fn length8(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.cursor.array()?))
    }

    pub(super) fn signed_length(&mut self) -> Result<u64, Fault> {
        let length = i32::from_le_bytes(self.cursor.array()?);
        u64::try_from(length).map_err(|_| self.fault(&format!("has a length of {length} bytes")))
    }

    pub(super) fn number_line(&mut self) -> Result<Option<String>, Fault> {
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

    pub(super) fn push_decimal(&mut self, digits: &str) -> Result<(), Fault> {
        let unsigned = digits.strip_prefix(['-', '+']).unwrap_or(digits);
        if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self.fault(&format!("holds {digits:?}, which is not an integer")));
        }
        match digits.parse::<i128>() {
            Err(_) => self.push(Value::Scalar),
            Ok(wide) => {
                let value = self.store.integer(wide)?;
                self.push(value)
            }
        }
    }

    pub(super) fn decimal_index(&mut self) -> Result<u64, Fault> {
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
    pub(super) fn long(&mut self, length: u64) -> Result<(), Fault> {
        if length > MAX_NUMBER_BYTES {
            self.cursor.skip(length)?;
            return self.push(Value::Scalar);
        }
        let bytes = self.cursor.bytes(length)?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if negative { 0xff } else { 0 };
        let mut wide = [fill; 16];
        let Some(low) = wide.get_mut(..bytes.len()) else {
            return self.push(Value::Scalar);
        };
        low.copy_from_slice(&bytes);
        let value = self.store.integer(i128::from_le_bytes(wide))?;
        self.push(value)
    }
}
