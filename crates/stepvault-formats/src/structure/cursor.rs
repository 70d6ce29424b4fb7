//! Reads fields from a piece of a file that is already in memory.

use crate::soundness::Fault;

/// A reader of the fields of a byte slice, in order. `what` names the slice in messages: "the manifest".
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    what: &'a str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], what: &'a str) -> Self {
        Self { rest: bytes, what }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn into_rest(self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, length_bytes: u64, field: &str) -> Result<&'a [u8], Fault> {
        let split = usize::try_from(length_bytes)
            .ok()
            .and_then(|length| self.rest.split_at_checked(length));
        let (piece, rest) = split.ok_or_else(|| self.ended(field))?;
        self.rest = rest;
        Ok(piece)
    }

    pub(super) fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], Fault> {
        let (piece, rest) = self.rest.split_first_chunk().ok_or_else(|| self.ended(field))?;
        self.rest = rest;
        Ok(*piece)
    }

    pub(super) fn byte(&mut self, field: &str) -> Result<u8, Fault> {
        self.array(field).map(|[byte]| byte)
    }

    /// Reads an unsigned integer of seven bits per byte, the lowest first (LEB128).
    pub(super) fn varint(&mut self, field: &str) -> Result<u64, Fault> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(field)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        let what = self.what;
        Err(Fault::broken(format!(
            "{what} is damaged: its {field} is not a number"
        )))
    }

    /// Reads a count. Refuses it when the remaining bytes could not hold that many items of `least_bytes` each.
    pub(super) fn count(&mut self, field: &str, least_bytes: usize) -> Result<usize, Fault> {
        let stated = self.varint(field)?;
        let room = self.rest.len() / least_bytes.max(1);
        let count = usize::try_from(stated).ok().filter(|count| *count <= room);
        count.ok_or_else(|| {
            let what = self.what;
            Fault::broken(format!(
                "{what} is damaged: its {field} is {stated}, but there is room for {room} only"
            ))
        })
    }

    fn ended(&self, field: &str) -> Fault {
        let what = self.what;
        Fault::broken(format!("{what} is damaged: it ends before its {field}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_they_say() {
        let read = |bytes: &[u8]| Cursor::new(bytes, "the node").varint("height");
        assert_eq!(read(&[0x7f]).unwrap(), 0x7f);
        assert_eq!(read(&[0x80, 0x01]).unwrap(), 0x80);
        let mut largest = [0xff; 10];
        largest[9] = 1;
        assert_eq!(read(&largest).unwrap(), u64::MAX);
        let text = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert_eq!(text(&[0x80]), "the node is damaged: it ends before its height");
        largest[9] = 2;
        assert_eq!(text(&largest), "the node is damaged: its height is not a number");
        assert_eq!(
            text(&[0xff; 12]),
            "the node is damaged: its height is not a number"
        );
    }

    #[test]
    fn counts_are_held_against_what_is_left() {
        let count = |bytes: &[u8]| Cursor::new(bytes, "the node").count("number of keys", 2);
        assert_eq!(count(&[2, 0, 0, 0, 0]).unwrap(), 2);
        assert_eq!(
            count(&[3, 0, 0, 0, 0]).unwrap_err().to_string(),
            "the node is damaged: its number of keys is 3, but there is room for 2 only"
        );
    }
}
