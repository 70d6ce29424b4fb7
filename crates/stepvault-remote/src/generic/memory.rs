//! `memory://name`: one table of objects for each name, for as long as the process lives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::memory::InMemory;

/// A table and what keeps its conditional writes apart.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pub(super) store: Arc<InMemory>,
    /// Held from the look-up to the write of a create-only completion.
    pub(super) completing: Arc<tokio::sync::Mutex<()>>,
}

static TABLES: Mutex<BTreeMap<String, Memory>> = Mutex::new(BTreeMap::new());

/// The table called `name`, the same for every caller in this process.
pub(super) fn table(name: &str) -> Memory {
    TABLES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(name.to_owned())
        .or_default()
        .clone()
}
