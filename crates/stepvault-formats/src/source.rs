//! Access to the bytes of a file: read at offsets, never as a whole.

use std::io;

/// A file's bytes, read at offsets. Checks read headers through this and never map or load the whole.
pub trait ReadAt: Send + Sync {
    /// Returns the file's length in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends before that; otherwise the error of the medium.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Returns the bytes that the filesystem has allocated for the file, or `None` if unknown. Fewer than
    /// [`Self::size_bytes`] means holes: space that was reserved and never written.
    fn allocated_bytes(&self) -> Option<u64> {
        None
    }
}

impl ReadAt for [u8] {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let piece = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(buffer.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(piece);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn size_bytes(&self) -> u64 {
        self.as_slice().size_bytes()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, buffer)
    }
}

/// A range of a file, treated as a file of its own: a shard of a DCP file is a torch file by itself.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    source: &'a dyn ReadAt,
    start: u64,
    size_bytes: u64,
}

impl<'a> Window<'a> {
    /// Returns the `size_bytes` bytes from `start`, or `None` when they are not all inside the file.
    pub fn new(source: &'a dyn ReadAt, start: u64, size_bytes: u64) -> Option<Self> {
        (start.checked_add(size_bytes)? <= source.size_bytes()).then_some(Self { source, start, size_bytes })
    }
}

impl ReadAt for Window<'_> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.source.read_exact_at(self.start + offset, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_where_it_ends() {
        let bytes = b"0123456789".to_vec();
        let window = Window::new(&bytes, 2, 5).unwrap();
        let mut buffer = [0; 5];
        window.read_exact_at(0, &mut buffer).unwrap();
        assert_eq!(&buffer, b"23456");
        assert!(window.read_exact_at(1, &mut buffer).is_err());
        assert!(window.read_exact_at(u64::MAX, &mut buffer).is_err());
        assert!(Window::new(&bytes, 6, 5).is_none());
        assert!(Window::new(&bytes, 1, u64::MAX).is_none());
    }
}
