//! Times and numbers that documents promise, against the ones that the program keeps.

use stepvault_core::codec::MAX_RECORD_BYTES;
use stepvault_core::digest::PartDigest;
use stepvault_core::manifest::{FileEntry, MAX_ENTRIES};
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;

use crate::place::read;

/// Returns the text of a document with single spaces, wherever its lines end.
fn unwrapped(document: &str) -> String {
    read(document).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn doctor_takes_no_longer_than_it_is_said_to() {
    let seconds = stepvault_engine::doctor::remote::LONGEST.as_secs();
    let promise = format!("It takes {seconds} s at most, even if a store does not answer.");
    assert!(unwrapped("docs/guides/preflight.md").contains(&promise), "{promise}");
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[test]
fn a_step_may_have_as_many_entries_as_the_documents_say() {
    let entries = format!("{} entries", grouped(MAX_ENTRIES as u64));
    for document in ["docs/limits.md", "docs/format.md", "docs/what-is-kept.md"] {
        assert!(unwrapped(document).contains(&entries), "{document}: {entries}");
    }
    let record = format!("{} bytes (64 MiB)", grouped(MAX_RECORD_BYTES));
    assert!(unwrapped("docs/format.md").contains(&record), "{record}");
    // The limits that format.md and what-is-kept.md derive from it, for files of one part.
    for (files, path_bytes) in [(150_000, 140), (82_000, 512)] {
        let path = RelativePath::new(format!("{}/{}", "d".repeat(path_bytes - 101), "f".repeat(100)));
        let path = path.or_else(|_| {
            RelativePath::new(format!(
                "{}/{}/{}",
                "d".repeat(200),
                "e".repeat(200),
                "f".repeat(path_bytes - 402)
            ))
        });
        let mtime = Timestamp { seconds: 1_767_323_045, nanoseconds: 678_901_234 };
        let unread = [PartDigest::of(b"")];
        let unread = FileEntry::from_parts(path.unwrap(), 0o644, mtime, &unread).unwrap();
        let entry = unread.encoded_bytes(8 << 20).unwrap() + 1;
        let room = MAX_RECORD_BYTES / entry;
        assert!((files..files + 2_000).contains(&room), "{room} of {path_bytes} bytes");
    }
}
