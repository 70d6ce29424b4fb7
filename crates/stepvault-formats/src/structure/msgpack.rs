//! `MessagePack`, in which Flax and older Orbax keep a tree of arrays in one file (`checkpoint`, `*.msgpack`).
//!
//! The file must be one whole value and end with it (github.com/msgpack/msgpack, `spec.md`). Payloads are skipped,
//! not read.
//!
//! # Blind spots
//!
//! The format has no checksum, so changed bytes in a string or array are not detected.

use super::cursor::Forward;
use crate::soundness::{Fault, broken_at, unknown};
use crate::tree::ReadAt;

/// The maximum nesting; trees of parameters have about ten levels.
const MAX_DEPTH: usize = 256;

/// Checks a file.
///
/// # Errors
/// [`Fault::Broken`] when it is not `MessagePack` or does not end where its value does; [`Fault::Unknown`] when it is
/// nested deeper than the limit; [`Fault::Read`] when it cannot be read.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    let mut reader = Reader { forward: Forward::new(source, 0, size_bytes), size_bytes };
    // The number of values that remain on each level.
    let mut open = vec![1_u64];
    while let Some(left) = open.last_mut() {
        let Some(next) = left.checked_sub(1) else {
            open.pop();
            continue;
        };
        *left = next;
        let inside = reader.value()?;
        if inside > 0 {
            if open.len() >= MAX_DEPTH {
                return Err(unknown!("its values are nested more than {MAX_DEPTH} deep"));
            }
            open.push(inside);
        }
    }
    let rest_bytes = reader.forward.remaining();
    if rest_bytes > 0 {
        return Err(broken_at!(reader.forward.position(), "{rest_bytes} bytes follow the end of the value"));
    }
    Ok(())
}

struct Reader<'a> {
    forward: Forward<'a>,
    size_bytes: u64,
}

impl Reader<'_> {
    /// Skips one value, and returns the number of values inside it.
    fn value(&mut self) -> Result<u64, Fault> {
        let start = self.forward.position();
        let kind = self.byte()?;
        let (inside, payload_bytes) = match kind {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (0, 0),
            0x80..=0x8f => (2 * u64::from(kind & 0x0f), 0),
            0x90..=0x9f => (u64::from(kind & 0x0f), 0),
            0xa0..=0xbf => (0, u64::from(kind & 0x1f)),
            0xc1 => {
                return Err(broken_at!(
                    start,
                    "a value is of an unknown kind: this is not MessagePack, or it is damaged"
                ));
            }
            0xc4 | 0xd9 => (0, self.length(1)?),
            0xc5 | 0xda => (0, self.length(2)?),
            0xc6 | 0xdb => (0, self.length(4)?),
            // Extensions have a type byte before their contents.
            0xc7 => (0, self.length(1)? + 1),
            0xc8 => (0, self.length(2)? + 1),
            0xc9 => (0, self.length(4)? + 1),
            0xcc | 0xd0 => (0, 1),
            0xcd | 0xd1 => (0, 2),
            0xca | 0xce | 0xd2 => (0, 4),
            0xcb | 0xcf | 0xd3 => (0, 8),
            0xd4..=0xd8 => (0, 1 + (1 << (kind - 0xd4))),
            0xdc => (self.length(2)?, 0),
            0xdd => (self.length(4)?, 0),
            0xde => (2 * self.length(2)?, 0),
            0xdf => (2 * self.length(4)?, 0),
        };
        let end = self.forward.position().saturating_add(payload_bytes);
        // Every value takes at least one byte.
        let needed = end.saturating_add(inside);
        if needed > self.size_bytes || !self.forward.skip(payload_bytes) {
            return Err(cut(start, needed, self.size_bytes));
        }
        Ok(inside)
    }

    /// Reads a length of `bytes` bytes, big-endian.
    fn length(&mut self, bytes: usize) -> Result<u64, Fault> {
        let mut value = 0;
        for _ in 0..bytes {
            value = value << 8 | u64::from(self.byte()?);
        }
        Ok(value)
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        match self.forward.array()? {
            Some([byte]) => Ok(byte),
            None => Err(cut(self.size_bytes, self.size_bytes + 1, self.size_bytes)),
        }
    }
}

fn cut(offset: u64, needed_bytes: u64, size_bytes: u64) -> Fault {
    broken_at!(
        offset,
        "it needs at least {needed_bytes} bytes, and ends at byte {size_bytes}: it was cut off"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `{"w": ext(1, 300 bytes), "n": [1, -1, 2.5, nil, "abc"]}`
    fn sample() -> Vec<u8> {
        let mut bytes = vec![0x82, 0xa1, b'w', 0xc8, 1, 44, 1];
        bytes.extend([0xc1; 300]);
        bytes.extend([0xa1, b'n', 0x95, 1, 0xff, 0xcb]);
        bytes.extend(2.5_f64.to_be_bytes());
        bytes.extend([0xc0, 0xa3, b'a', b'b', b'c']);
        bytes
    }

    fn why(bytes: &[u8]) -> String {
        check(&bytes.to_vec()).map_or_else(|fault| fault.to_string(), |()| "sound".to_owned())
    }

    #[test]
    fn a_value_is_whole_at_its_end_and_nowhere_before() {
        assert_eq!(why(&sample()), "sound");
        for length in 0..sample().len() {
            let cut = check(&sample()[..length].to_vec());
            assert!(matches!(cut, Err(Fault::Broken { .. })), "{length}");
        }
        assert_eq!(
            why(&sample()[..100]),
            "it needs at least 307 bytes, and ends at byte 100: it was cut off"
        );
    }

    #[test]
    fn what_is_no_messagepack_is_refused() {
        assert_eq!(why(&[]), "it needs at least 1 bytes, and ends at byte 0: it was cut off");
        assert_eq!(why(&[0, 0]), "1 bytes follow the end of the value");
        assert_eq!(why(&[0xc1]), "a value is of an unknown kind: this is not MessagePack, or it is damaged");
    }

    #[test]
    fn hostile_lengths_and_depths_are_refused_early() {
        assert!(why(&[0xdf, 0xff, 0xff, 0xff, 0xff]).ends_with("it was cut off"));
        let mut deep = vec![0x91; 300];
        deep.push(0);
        assert!(matches!(check(&deep), Err(Fault::Unknown(_))));
    }

    #[test]
    fn payloads_are_not_read() {
        struct Counting(Vec<u8>, std::sync::atomic::AtomicUsize);
        impl ReadAt for Counting {
            fn size_bytes(&self) -> u64 {
                self.0.len() as u64
            }
            fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
                self.1.fetch_add(buffer.len(), std::sync::atomic::Ordering::Relaxed);
                self.0.read_exact_at(offset, buffer)
            }
        }
        let mut bytes = vec![0xc6, 0, 0x10, 0, 0];
        bytes.resize(5 + (1 << 20), 7);
        let source = Counting(bytes, 0.into());
        check(&source).unwrap();
        assert!(source.1.into_inner() <= 64 << 10);
    }
}
