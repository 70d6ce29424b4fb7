//! Names that may stand in a header only once.

use crate::soundness::Fault;

/// Most bytes of names that are held.
const MOST_NAME_BYTES: usize = 32 * 1024 * 1024;

/// Names seen so far.
#[derive(Default)]
pub(super) struct Names {
    names: Vec<String>,
    name_bytes: usize,
}

impl Names {
    pub(super) fn add(&mut self, name: String) -> Result<(), Fault> {
        self.name_bytes = self.name_bytes.saturating_add(name.len());
        if self.name_bytes > MOST_NAME_BYTES {
            return Err(Fault::Unknown(format!(
                "the header has more than the {MOST_NAME_BYTES} bytes of names that are kept track of"
            )));
        }
        self.names.push(name);
        Ok(())
    }

    /// A name that was added twice.
    pub(super) fn twice(&mut self) -> Option<&str> {
        self.names.sort_unstable();
        let pair = self.names.array_windows().find(|[one, other]| one == other);
        pair.map(|[name, _]| name.as_str())
    }
}
