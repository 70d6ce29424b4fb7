//! Checks of formats against files that frameworks wrote, and against the same files damaged.

mod torch;
