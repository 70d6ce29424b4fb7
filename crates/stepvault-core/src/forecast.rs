//! What the next step will take, by what the last ones took, and whether there is room for it.

use crate::room::Room;
use crate::words::bytes;

/// The last so many steps say what the next one takes.
pub const STEPS_THAT_COUNT: usize = 3;

/// What a step takes on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// Bytes of its files.
    pub bytes: u64,
    /// Files and links.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

impl Taken {
    /// All that takes an inode.
    pub const fn inodes(&self) -> u64 {
        self.files.saturating_add(self.directories)
    }

    /// This and something else.
    #[must_use]
    pub const fn and(&self, other: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
            directories: self.directories.saturating_add(other.directories),
        }
    }
}

/// What the next step is expected to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// Bytes, files and directories.
    pub taken: Taken,
    /// From how many steps that follows.
    pub from_steps: usize,
}

/// What the next step takes, by the steps so far, the latest last; `None` without any.
///
/// The largest of the last three, and where the last one has grown, as much more again: the state of a data loader that
/// fills its buffer grows with every step.
pub fn next_step(so_far: &[Taken]) -> Option<Forecast> {
    let recent = &so_far[so_far.len().saturating_sub(STEPS_THAT_COUNT)..];
    let last = recent.last()?;
    let before = recent.len().checked_sub(2).map_or(last, |index| &recent[index]);
    let of = |value: fn(&Taken) -> u64| {
        let largest = recent.iter().map(value).max().unwrap_or_default();
        let grown = value(last).saturating_sub(value(before));
        largest.max(value(last).saturating_add(grown))
    };
    Some(Forecast {
        taken: Taken {
            bytes: of(|taken| taken.bytes),
            files: of(|taken| taken.files),
            directories: of(|taken| taken.directories),
        },
        from_steps: recent.len(),
    })
}

impl Forecast {
    /// Why it does not fit, with the numbers; `None` when it does.
    pub fn shortfall(&self, room: Room) -> Option<String> {
        let by = match self.from_steps {
            1 => "by the last step".to_owned(),
            steps => format!("by the last {steps} steps"),
        };
        if self.taken.bytes > room.free_bytes {
            return Some(format!(
                "the next step takes about {} {by}, and {} are free",
                bytes(self.taken.bytes),
                bytes(room.free_bytes)
            ));
        }
        let inodes = self.taken.inodes();
        let free = room.free_inodes.filter(|free| *free < inodes)?;
        Some(format!(
            "the next step takes about {inodes} files and directories {by}, and {free} inodes are free"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bytes: u64, files: u64) -> Taken {
        Taken {
            bytes,
            files,
            directories: 1,
        }
    }

    #[test]
    fn the_largest_of_the_last_three_counts_and_growth_goes_on() {
        assert_eq!(next_step(&[]), None);
        let forecast = next_step(&[taken(900, 9), taken(100, 3), taken(120, 3), taken(110, 3)]).unwrap();
        assert_eq!((forecast.taken, forecast.from_steps), (taken(120, 3), 3));
        let growing = next_step(&[taken(100, 3), taken(150, 4)]).unwrap();
        assert_eq!((growing.taken, growing.from_steps), (taken(200, 5), 2));
        assert_eq!(next_step(&[taken(7, 1)]).unwrap().taken, taken(7, 1));
        let huge = next_step(&[taken(0, 0), taken(u64::MAX, 1)]).unwrap();
        assert_eq!(huge.taken.bytes, u64::MAX);
    }

    #[test]
    fn a_shortfall_has_the_numbers() {
        let forecast = next_step(&[taken(3 << 30, 39), taken(3 << 30, 39)]).unwrap();
        let room = |free_bytes, free_inodes| Room {
            free_bytes,
            total_bytes: u64::MAX,
            free_inodes,
            total_inodes: free_inodes,
        };
        assert_eq!(forecast.shortfall(room(3 << 30, Some(40))), None);
        assert_eq!(forecast.shortfall(room(3 << 30, None)), None);
        assert_eq!(
            forecast.shortfall(room(2 << 30, Some(0))).unwrap(),
            "the next step takes about 3.0 GiB by the last 2 steps, and 2.0 GiB are free"
        );
        assert_eq!(
            forecast.shortfall(room(u64::MAX, Some(39))).unwrap(),
            "the next step takes about 40 files and directories by the last 2 steps, and 39 inodes are free"
        );
    }
}
