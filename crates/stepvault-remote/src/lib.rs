//! Object stores behind one narrow trait.
//!
//! [`store::RemoteStore`] is what the engine knows. Vendor types stay inside the modules that wrap them.

pub mod store;
