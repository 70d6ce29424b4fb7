//! Bodies that break off: the rest is asked for again, a bounded number of times.

use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};

/// How often a body may break off in a row without a byte more before its store counts as unreachable. Opening it is
/// retried, and paced, below.
const TRIES: u32 = 4;
/// Wait after the first break; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The breaks of one object's body.
#[derive(Debug, Default)]
pub(crate) struct Breaks {
    in_a_row: u32,
}

impl Breaks {
    /// Waits until the rest may be asked for. Whatever answer broke off has to be dropped before, so that its place among
    /// the requests under way is free. `moved` says whether it brought a byte.
    ///
    /// # Errors
    /// The error itself when it is no break, or one too many.
    pub(crate) async fn wait(&mut self, error: Error, moved: bool) -> Result<()> {
        if moved {
            self.in_a_row = 0;
        }
        if error.kind() != ErrorKind::Unreachable || self.in_a_row + 1 >= TRIES {
            return Err(error);
        }
        tokio::time::sleep(FIRST_WAIT * 2_u32.pow(self.in_a_row)).await;
        self.in_a_row += 1;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn breaks_without_a_byte_more_are_bounded() {
        let broken = || Error::new(ErrorKind::Unreachable, "cut off");
        let mut breaks = Breaks::default();
        for _ in 0..100 {
            breaks.wait(broken(), true).await.unwrap();
        }
        breaks.wait(broken(), false).await.unwrap();
        breaks.wait(broken(), false).await.unwrap();
        assert_eq!(
            breaks.wait(broken(), false).await.unwrap_err().kind(),
            ErrorKind::Unreachable
        );
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_break_is_waited_for() {
        let damaged = Error::new(ErrorKind::Damaged, "too short");
        let error = Breaks::default().wait(damaged, true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
    }
}
