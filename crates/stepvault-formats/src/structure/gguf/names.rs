//! Names that may occur only once in a header.

use crate::soundness::Fault;

/// The maximum number of bytes of names.
const MAX_NAME_BYTES: usize = 32 * 1024 * 1024;

/// Names seen so far.
#[derive(Default)]
pub(super) struct Names {
    names: Vec<String>,
    name_bytes: usize,
}

impl Names {
    pub(super) fn add(&mut self, name: String) -> Result<(), Fault> {
        self.name_bytes = self.name_bytes.saturating_add(name.len());
        if self.name_bytes > MAX_NAME_BYTES {
            return Err(Fault::Unknown(format!(
                "the header has more than {MAX_NAME_BYTES} bytes of names, the limit"
            )));
        }
        self.names.push(name);
        Ok(())
    }

    /// Returns a name that was added twice.
    pub(super) fn twice(&mut self) -> Option<&str> {
        self.names.sort_unstable();
        let pair = self.names.array_windows().find(|[one, other]| one == other);
        pair.map(|[name, _]| name.as_str())
    }
}
