//! Faults injected into the built binary: it is killed at its system calls, its power is cut, its disks fail, its
//! network breaks, its stores refuse, lie and forget, and its objects are damaged.
//!
//! Whatever happens, every acknowledged step still exists to the last byte, no reader sees a torn step, and the same
//! command continues without help.
//!
//! Without environment variables a small sample runs, from a fixed seed. `FAULTS_SEED` sets another seed,
//! `FAULTS_RUNS` the number of runs of each row; `FAULTS_FULL=1` strikes every call of the sweeps and makes hundreds
//! of runs of the others; see `scripts/fault`. `FAULTS_REPORT` names a file that gets each row's counts.
//!
//! Tracing requires Linux on x86-64. Disks that lose power and disks that fill up require root, loop devices and
//! mount namespaces. Tests whose requirements are missing are reported on standard error and not run; with
//! `FAULTS_REQUIRED=1` they fail instead.

mod agent;
mod ambiguous;
mod calls;
mod check;
mod credentials;
mod errors;
mod false_success;
mod image;
mod kills;
mod limits;
mod names;
mod network;
mod operations;
mod power;
mod read_only;
mod reads;
mod rot;
mod rot_in_vault;
mod settings;
mod source_changes;
mod space;
mod storm;
mod sweep;
mod tally;
mod tracer;
mod uploads;
mod world;
