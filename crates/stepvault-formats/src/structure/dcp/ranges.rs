//! Checks that the items of one file lie inside it and do not overlap.

use super::StorageItem;
use crate::soundness::Fault;

/// Checks that items, in order of their offsets, lie inside a file of `size_bytes` and do not overlap.
pub(super) fn check(items: &[&StorageItem], size_bytes: u64, table: &str) -> Result<(), Fault> {
    let mut previous_end = 0;
    for item in items {
        let start = item.offset_bytes;
        let end = start
            .checked_add(item.length_bytes)
            .filter(|end| *end <= size_bytes);
        let Some(end) = end else {
            return Err(Fault::at(
                start,
                format!(
                    "{table} names an item of {} bytes at byte {start}, and the file has {size_bytes}: it is cut \
                     off or from another save",
                    item.length_bytes
                ),
            ));
        };
        if start < previous_end {
            return Err(Fault::at(
                start,
                format!(
                    "{table} names an item at byte {start}, inside the one before it, which ends at {previous_end}"
                ),
            ));
        }
        previous_end = end;
    }
    Ok(())
}

/// Checks that the items fill their file. DCP itself writes them without gaps. Another writer may leave gaps, so a
/// gap only means that its bytes are unknown.
pub(super) fn check_gaps(items: &[&StorageItem], size_bytes: u64, table: &str) -> Result<(), Fault> {
    let mut previous_end = 0;
    let ranges = items.iter().map(|item| (item.offset_bytes, item.length_bytes));
    for (start, length) in ranges.chain([(size_bytes, 0)]) {
        if start > previous_end {
            return Err(Fault::Unknown(format!(
                "its bytes {previous_end} to {start} belong to no item that {table} names"
            )));
        }
        previous_end = start.saturating_add(length);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(ranges: &[(u64, u64)], size_bytes: u64) -> Result<(), String> {
        let items: Vec<_> = ranges
            .iter()
            .map(|(offset_bytes, length_bytes)| StorageItem {
                relative_path: "__0_0.distcp".into(),
                offset_bytes: *offset_bytes,
                length_bytes: *length_bytes,
                transformed: false,
            })
            .collect();
        let items: Vec<_> = items.iter().collect();
        check(&items, size_bytes, ".metadata")
            .and_then(|()| check_gaps(&items, size_bytes, ".metadata"))
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn items_lie_inside_and_apart() {
        assert_eq!(outcome(&[(0, 10), (10, 5)], 15), Ok(()));
        assert_eq!(outcome(&[(0, 0), (0, 15), (15, 0)], 15), Ok(()));
        assert_eq!(
            outcome(&[(0, 10), (10, 5)], 14),
            Err(".metadata names an item of 5 bytes at byte 10, and the file has 14: it is cut off or from another \
                save"
                .to_owned())
        );
        assert!(outcome(&[(u64::MAX, 5)], 14).is_err());
        assert_eq!(
            outcome(&[(0, 10), (9, 6)], 15),
            Err(".metadata names an item at byte 9, inside the one before it, which ends at 10".to_owned())
        );
        assert_eq!(
            outcome(&[(0, 10), (12, 3)], 15),
            Err("its bytes 10 to 12 belong to no item that .metadata names".to_owned())
        );
        assert_eq!(
            outcome(&[(0, 10)], 15),
            Err("its bytes 10 to 15 belong to no item that .metadata names".to_owned())
        );
    }
}
