//! Compares the memory limit with the buffers of transfers.

use super::{Check, Finding};
use stepvault_core::disk_facts::MemoryFacts;
use stepvault_core::words;

/// Memory of the process other than the buffers: code, threads, records and connections.
const BESIDE_BUFFERS_BYTES: u64 = 96 << 20;

/// Returns the finding on whether buffers of `buffer_bytes` fit below the limit.
pub fn memory(facts: Option<&MemoryFacts>, buffer_bytes: u64) -> Finding {
    let Some(facts) = facts else {
        return Check::new("memory", "this process").pass("no memory limit can be read");
    };
    let needed_bytes = buffer_bytes.saturating_add(BESIDE_BUFFERS_BYTES);
    let free_bytes = facts.limit_bytes.saturating_sub(facts.used_bytes);
    let check = Check::new("memory", facts.source.as_str())
        .with("free_bytes", free_bytes)
        .with("limit_bytes", facts.limit_bytes)
        .with("needed_bytes", needed_bytes);
    let measured = format!(
        "{} of {} free; transfers use up to {}: {} for buffers (upload.memory-budget) and {} for everything else",
        words::bytes(free_bytes),
        words::bytes(facts.limit_bytes),
        words::bytes(needed_bytes),
        words::bytes(buffer_bytes),
        words::bytes(BESIDE_BUFFERS_BYTES),
    );
    if facts.limit_bytes < needed_bytes {
        return check.fail(
            measured,
            "raise the memory limit, or lower upload.memory-budget; otherwise the kernel kills the process",
        );
    }
    if free_bytes < needed_bytes {
        return check.warn(
            measured,
            "raise the limit, lower upload.memory-budget, or run the agent outside of it; otherwise the kernel may \
             kill any process under the limit",
        );
    }
    check.pass(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    fn found(limit_mebibytes: u64, used_mebibytes: u64) -> Finding {
        let facts = MemoryFacts {
            source: "cgroup /trainer".to_owned(),
            limit_bytes: limit_mebibytes << 20,
            used_bytes: used_mebibytes << 20,
        };
        memory(Some(&facts), 128 << 20)
    }

    #[test]
    fn the_buffers_have_to_fit_below_the_limit() {
        assert_eq!(found(1024, 100).outcome, Outcome::Pass);
        assert_eq!(found(1024, 900).outcome, Outcome::Warn);
        let small = found(200, 10);
        assert_eq!(small.outcome, Outcome::Fail);
        assert_eq!(
            small.measured,
            "190.0 MiB of 200.0 MiB free; transfers use up to 224.0 MiB: 128.0 MiB for buffers \
             (upload.memory-budget) and 96.0 MiB for everything else"
        );
        assert_eq!(memory(None, 1).outcome, Outcome::Pass);
    }
}
