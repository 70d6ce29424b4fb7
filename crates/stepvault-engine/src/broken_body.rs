//! Resumes bodies that broke off: requests the rest, a bounded number of times.

use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};

/// How many times in a row a body may break off without another byte before its store counts as unreachable. Opening it
/// is retried and paced by the store.
const TRIES: u32 = 4;
/// Wait after the first break; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The breaks of one object's body.
#[derive(Debug, Default)]
pub(crate) struct BodyRetries {
    in_a_row: u32,
}

impl BodyRetries {
    /// Waits until the rest may be requested. Drop the broken response first, so that its place among the concurrent
    /// requests is free. `moved` says whether it delivered a byte.
    ///
    /// # Errors
    /// The given error, when it is no break, or the break was one too many.
    pub(crate) async fn wait(&mut self, error: Error, moved: bool) -> Result<()> {
        if moved {
            self.in_a_row = 0;
        }
        if error.kind() != ErrorKind::Unreachable || !error.is_transient() || self.in_a_row + 1 >= TRIES {
            return Err(error);
        }
        tokio::time::sleep(FIRST_WAIT * 2_u32.pow(self.in_a_row)).await;
        self.in_a_row += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn breaks_without_a_byte_more_are_bounded() {
        let broken = || Error::new(ErrorKind::Unreachable, "cut off");
        let mut breaks = BodyRetries::default();
        for _ in 0..100 {
            breaks.wait(broken(), true).await.unwrap();
        }
        breaks.wait(broken(), false).await.unwrap();
        breaks.wait(broken(), false).await.unwrap();
        assert_eq!(breaks.wait(broken(), false).await.unwrap_err().kind(), ErrorKind::Unreachable);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_break_is_waited_for() {
        let damaged = Error::new(ErrorKind::Damaged, "too short");
        let error = BodyRetries::default().wait(damaged, true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
    }
}
