//! Reads with retries, for transient failures: a network filesystem that fails over, a disk read error, a ticket that
//! is being renewed.
//!
//! Writes and syncs must not use this: a failed sync must never be retried.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// Waits before each retry. A longer failure is an outage, which the caller must handle.
const WAITS: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(400)];

/// Runs `read` and retries it while it fails for a reason that may be transient. Returns the last error if it does not
/// succeed. Blocks for at most half a second besides the time that `read` takes.
pub fn with_retries<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = 0;
    loop {
        let error = match read() {
            Err(error) => error,
            done => return done,
        };
        let Some(wait) =
            Errno::from_io_error(&error).and_then(|errno| WAITS.get(..waits_for(errno))?.get(tries))
        else {
            return Err(error);
        };
        std::thread::sleep(*wait);
        tries += 1;
    }
}

/// Returns how many retries an error gets.
fn waits_for(errno: Errno) -> usize {
    match errno {
        Errno::IO
        | Errno::STALE
        | Errno::TIMEDOUT
        | Errno::NOTCONN
        | Errno::CONNRESET
        | Errno::CONNREFUSED
        | Errno::CONNABORTED
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::SHUTDOWN
        | Errno::AGAIN
        | Errno::INTR
        | Errno::NOMEM
        | Errno::BUSY => WAITS.len(),
        // Missing permissions mostly persist, and a scan may meet many such files.
        Errno::ACCESS | Errno::PERM => 1,
        _ => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn tries_until_given_up(errno: Errno) -> usize {
        let mut tries = 0;
        let outcome: io::Result<()> = with_retries(|| {
            tries += 1;
            Err(errno.into())
        });
        assert_eq!(Errno::from_io_error(&outcome.unwrap_err()), Some(errno));
        tries
    }

    #[test]
    fn tries_are_bounded_and_what_is_not_there_is_not_asked_for_twice() {
        for errno in [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::NOTCONN] {
            assert_eq!(tries_until_given_up(errno), 4, "{errno:?}");
        }
        assert_eq!(tries_until_given_up(Errno::ACCESS), 2);
        assert_eq!(tries_until_given_up(Errno::NOENT), 1);
    }

    #[test]
    fn one_failure_is_not_seen_outside() {
        let mut failures = vec![Errno::STALE, Errno::IO];
        let read = with_retries(|| failures.pop().map_or(Ok("bytes"), |errno| Err(errno.into())));
        assert_eq!(read.unwrap(), "bytes");
    }
}
