//! Random numbers that are visible outside: identities in keys and records, and retry delays.
//!
//! All of them come from this module, so that a simulation can repeat them.

use std::cell::RefCell;

use uuid::Uuid;

thread_local! {
    /// The seeded source of this thread in a simulation; otherwise the system's source is used.
    static REPEATED: RefCell<Option<fastrand::Rng>> = const { RefCell::new(None) };
}

/// Returns a unique identity: 32 hexadecimal digits.
pub fn identity() -> String {
    REPEATED.with_borrow_mut(|repeated| match repeated {
        Some(numbers) => format!("{:032x}", numbers.u128(..)),
        None => Uuid::new_v4().simple().to_string(),
    })
}

/// Returns a seed for another random number generator.
pub(crate) fn seed() -> u64 {
    REPEATED.with_borrow_mut(|repeated| match repeated {
        Some(numbers) => numbers.u64(..),
        None => Uuid::new_v4().as_u64_pair().0,
    })
}

/// While this exists, its thread draws repeatable numbers. For simulations only: such identities are not unique.
#[derive(Debug)]
pub struct Repeated(());

impl Repeated {
    /// Makes this thread draw the numbers of `seed` until dropped.
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
