//! The random numbers that others get to see: identities in keys and records, and how long a retry waits.
//!
//! They come from here and from nowhere else, so that a simulation can repeat them.

use std::cell::RefCell;

use uuid::Uuid;

thread_local! {
    /// Where this thread's numbers come from while it repeats them; otherwise the system's own source.
    static REPEATED: RefCell<Option<fastrand::Rng>> = const { RefCell::new(None) };
}

/// An identity that nobody else has: 32 hexadecimal digits.
pub fn identity() -> String {
    REPEATED.with_borrow_mut(|repeated| match repeated {
        Some(numbers) => format!("{:032x}", numbers.u128(..)),
        None => Uuid::new_v4().simple().to_string(),
    })
}

/// A seed for whatever draws numbers of its own.
pub(crate) fn seed() -> u64 {
    REPEATED.with_borrow_mut(|repeated| match repeated {
        Some(numbers) => numbers.u64(..),
        None => Uuid::new_v4().as_u64_pair().0,
    })
}

/// While this lives, its thread draws the same numbers again. For simulations alone: what is drawn so is no identity.
#[derive(Debug)]
pub struct Repeated(());

impl Repeated {
    /// Lets this thread draw the numbers that belong to `seed`, until dropped.
    #[must_use]
    pub fn on_this_thread(seed: u64) -> Self {
        REPEATED.set(Some(fastrand::Rng::with_seed(seed)));
        Self(())
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        REPEATED.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_repeated_for_a_while_and_on_one_thread() {
        let drawn = || (identity(), seed());
        let first = {
            let _repeated = Repeated::on_this_thread(7);
            [drawn(), drawn()]
        };
        let repeated = Repeated::on_this_thread(7);
        assert_eq!([drawn(), drawn()], first);
        assert_ne!(first[0], first[1]);
        assert_eq!(first[0].0.len(), 32);
        let elsewhere = std::thread::spawn(identity).join().unwrap();
        assert_ne!(elsewhere, first[0].0);
        drop(repeated);
        assert_ne!(drawn(), first[0]);
    }
}
