//! Inputs that are almost right: the seeds of fuzz targets, changed at random, on every compiler.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

/// Where the cases that were found are kept, below the crate that is tested.
const FOUND: &str = "tests/hostile/found.proptest-regressions";

/// What stands at a place where nobody expects it.
const ODD: [&str; 28] = [
    "18446744073709551615",
    "9223372036854775808",
    "-1",
    "0",
    "1e400",
    "0.1",
    "null",
    "true",
    "{}",
    "[]",
    "\"",
    "\\u0000",
    "\\ud800",
    "..",
    "/../",
    "%2e%2e",
    "%00",
    "%",
    "/",
    "?",
    "#",
    "@",
    ":",
    " ",
    "\n",
    "\0",
    "\u{1b}[2J",
    "\u{202e}é",
];

/// One thing that happens to an input.
#[derive(Debug, Clone)]
enum Change {
    /// A byte becomes another one.
    Byte(Index, u8),
    /// What stands between two places goes.
    Cut(Index, Index),
    /// What stands between two places stands there again.
    Twice(Index, Index),
    /// Something odd comes in.
    Odd(Index, &'static str),
    /// A number becomes something odd.
    Number(Index, &'static str),
}

fn change() -> impl Strategy<Value = Change> {
    let odd = || select(&ODD[..]);
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Change::Cut(from, to)),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Change::Twice(from, to)),
        (any::<Index>(), odd()).prop_map(|(at, odd)| Change::Odd(at, odd)),
        (any::<Index>(), odd()).prop_map(|(at, odd)| Change::Number(at, odd)),
    ]
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        let between = |from: &Index, to: &Index| {
            let (from, to) = (from.index(length), to.index(length));
            from.min(to)..from.max(to)
        };
        match self {
            Self::Byte(at, byte) => bytes[at.index(length)] = *byte,
            Self::Cut(from, to) => drop(bytes.drain(between(from, to))),
            Self::Twice(from, to) => {
                let range = between(from, to);
                let again = bytes[range.clone()].to_vec();
                bytes.splice(range.end..range.end, again);
            }
            Self::Odd(at, odd) => drop(bytes.splice(at.index(length)..at.index(length), odd.bytes())),
            Self::Number(at, odd) => {
                let is_digit = |at: &usize| bytes[*at].is_ascii_digit();
                let Some(start) = (at.index(length)..length).find(is_digit) else {
                    return;
                };
                let end = (start..length).find(|at| !is_digit(at)).unwrap_or(length);
                bytes.splice(start..end, odd.bytes());
            }
        }
    }
}

/// Returns one of the seeds with up to four changes.
pub fn almost(seeds: &[Vec<u8>]) -> impl Strategy<Value = Vec<u8>> + use<> {
    (select(seeds.to_vec()), vec(change(), 0..=4)).prop_map(|(mut bytes, changes)| {
        for change in changes {
            change.apply(&mut bytes);
        }
        bytes
    })
}

/// Checks every seed, and some hundred changes of them.
pub fn assert_holds(seeds: &[Vec<u8>], check: impl Fn(&[u8])) {
    for seed in seeds {
        check(seed);
    }
    let config = Config {
        // What was found is kept beside the tests of the crate that is tested, and tried first ever after: commit it.
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(FOUND))),
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&almost(seeds), |bytes| {
        check(&bytes);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Returns a check of bytes out of one of text.
pub fn text(check: impl Fn(&str)) -> impl Fn(&[u8]) {
    move |bytes| check(&String::from_utf8_lossy(bytes))
}

/// Fails unless every seed is right, and changes make both right and wrong ones: a check of wrong ones alone, or of
/// right ones alone, would show little.
pub fn assert_seeds_change(seeds: &[Vec<u8>], is_right: impl Fn(&[u8]) -> bool) {
    assert!(seeds.iter().all(|seed| is_right(seed)), "every seed is right");
    let (right, wrong) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let mut runner = TestRunner::deterministic();
    runner
        .run(&almost(seeds), |bytes| {
            let counted = if is_right(&bytes) { &right } else { &wrong };
            counted.set(counted.get() + 1);
            Ok(())
        })
        .expect("counting does not fail");
    assert!(right.get() > 10 && wrong.get() > 10, "{right:?} {wrong:?}");
}
