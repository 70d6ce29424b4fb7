//! `memory://name`: one table of objects per name, for the lifetime of the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::memory::InMemory;

/// A table and the lock of its conditional writes.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pub(super) store: Arc<InMemory>,
    /// Held from the check of the key to the write of a create-only completion.
    pub(super) completing: Arc<tokio::sync::Mutex<()>>,
}

static TABLES: Mutex<BTreeMap<String, Memory>> = Mutex::new(BTreeMap::new());

/// Returns the table called `name`, which is the same for every caller in this process.
pub(super) fn table(name: &str) -> Memory {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default().clone()
}
