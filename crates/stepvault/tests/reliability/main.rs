//! The built binary with faults from outside: killed, without power, on failing disks and broken networks.
//!
//! `faults` has one node, `nodes` three of them in network namespaces.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a helper of tests fails as a test does, and writes files as a trainer does"
)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod faults;
mod nodes;

/// The built program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_stepvault");

/// Returns the number that a variable holds, if it is set.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text:?} is not a number")))
}

/// Returns whether a variable is set to 1.
fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "1")
}

/// Prints around the capture of the tests' output: the text matters most when a test passes.
fn say(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{text}");
}
