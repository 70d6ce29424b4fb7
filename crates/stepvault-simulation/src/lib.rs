//! A package of its own for the simulation in `tests/simulation`, because `Cargo.toml` of the workspace optimises it more than
//! other tests. The library is empty.
