//! Forecasts the size of the next step from the last ones, and whether it fits.

use crate::room::Room;
use crate::words::bytes;

/// Number of the last steps that the forecast uses.
pub const STEPS_THAT_COUNT: usize = 3;

/// The size of a step on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of files and links.
    pub files: u64,
    /// Number of directories.
    pub directories: u64,
}

impl Taken {
    /// Returns the number of inodes.
    pub const fn inodes(&self) -> u64 {
        self.files.saturating_add(self.directories)
    }

    /// Returns the sum of both.
    #[must_use]
    pub const fn and(&self, other: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
            directories: self.directories.saturating_add(other.directories),
        }
    }
}

/// The expected size of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// Bytes, files and directories.
    pub taken: Taken,
    /// The number of steps that it is based on.
    pub from_steps: usize,
}

/// Forecasts the next step from the steps so far, the latest last; returns `None` without any.
///
/// The forecast is the larger of two sizes: the largest of the last three steps, and the last step plus its growth over
/// the one before it. The state of a data loader that fills its buffer grows with every step.
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
    /// Returns why it does not fit, with the numbers; `None` if it does.
    pub fn shortfall(&self, room: Room) -> Option<String> {
        let by = match self.from_steps {
            1 => "(estimated from the last step)".to_owned(),
            steps => format!("(estimated from the last {steps} steps)"),
        };
        if self.taken.bytes > room.free_bytes {
            return Some(format!(
                "the next step needs about {} {by}, but only {} are free",
                bytes(self.taken.bytes),
                bytes(room.free_bytes)
            ));
        }
        let inodes = self.taken.inodes();
        let free = room.free_inodes.filter(|free| *free < inodes)?;
        Some(format!(
            "the next step needs about {inodes} files and directories {by}, but only {free} inodes are free"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bytes: u64, files: u64) -> Taken {
        Taken { bytes, files, directories: 1 }
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
            "the next step needs about 3.0 GiB (estimated from the last 2 steps), but only 2.0 GiB are free"
        );
        assert_eq!(
            forecast.shortfall(room(u64::MAX, Some(39))).unwrap(),
            "the next step needs about 40 files and directories (estimated from the last 2 steps), but only 39 \
             inodes are free"
        );
    }
}
