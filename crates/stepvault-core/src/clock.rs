//! Time as a capability, so that plans and tests never read the system's clock by themselves.

use crate::timestamp::Timestamp;

/// Tells the time. The process's one implementation reads the system clock; tests set their own.
///
/// Nothing that decides what is deleted may depend on a local clock alone: ages on a remote are measured
/// against the store's own clock.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The current wall-clock time.
    fn now(&self) -> Timestamp;
}
