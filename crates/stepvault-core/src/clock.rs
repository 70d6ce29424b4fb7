//! Time as a capability, so that plans and tests do not read the system clock directly.

use crate::timestamp::Timestamp;

/// Returns the time. The only production implementation reads the system clock; tests set their own time.
///
/// Nothing that decides what is deleted may depend on a local clock alone: ages on a remote are measured
/// against the store's own clock.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the current wall-clock time.
    fn now(&self) -> Timestamp;
}
