//! A limit of bytes per second that may depend on the time of day.

use std::fmt;

use crate::words;

const SECONDS_PER_DAY: u32 = 24 * 60 * 60;

/// The limit of a remote. Without periods, nothing is limited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BandwidthLimit(Vec<BandwidthPeriod>);

/// A part of the day and its limit. It lasts until the next one begins; the last one of a day lasts until the first one of
/// the next day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BandwidthPeriod {
    /// When it begins, in seconds since midnight, local time.
    pub from_seconds: u32,
    /// The limit; `None` for no limit.
    pub bytes_per_second: Option<u64>,
}

impl BandwidthLimit {
    /// Creates a limit for all day.
    pub fn all_day(bytes_per_second: u64) -> Self {
        Self(vec![BandwidthPeriod { from_seconds: 0, bytes_per_second: Some(bytes_per_second) }])
    }

    /// Creates a limit of periods. Returns `None` if two of them begin at the same time, or one at none of a day.
    pub fn of(mut periods: Vec<BandwidthPeriod>) -> Option<Self> {
        periods.sort_by_key(|period| period.from_seconds);
        let are_apart = periods.windows(2).all(|pair| pair[0].from_seconds < pair[1].from_seconds);
        let are_in_day = periods.iter().all(|period| period.from_seconds < SECONDS_PER_DAY);
        (are_apart && are_in_day).then_some(Self(periods))
    }

    /// Returns the periods, in the order of the day.
    pub fn periods(&self) -> &[BandwidthPeriod] {
        &self.0
    }

    /// Returns the index of the period at this time of the day; `None` if there is no limit at any time.
    pub fn period_at(&self, seconds_of_day: u32) -> Option<usize> {
        let begun = self.0.partition_point(|period| period.from_seconds <= seconds_of_day);
        // Before the first one, the last one of yesterday still lasts.
        begun.checked_sub(1).or(self.0.len().checked_sub(1))
    }

    /// Returns the lowest limit of a day; `None` if no period has one.
    pub fn lowest_bytes_per_second(&self) -> Option<u64> {
        self.0.iter().filter_map(|period| period.bytes_per_second).min()
    }
}

/// As in `20.0 MiB/s from 08:00, no limit from 20:00`.
impl fmt::Display for BandwidthLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, BandwidthPeriod { from_seconds, bytes_per_second }) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let limit = bytes_per_second.map_or_else(|| "no limit".to_owned(), words::rate);
            write!(f, "{separator}{limit}")?;
            if self.0.len() > 1 {
                write!(f, " from {:02}:{:02}", from_seconds / 3600, from_seconds / 60 % 60)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(hour: u32, bytes_per_second: Option<u64>) -> BandwidthPeriod {
        BandwidthPeriod { from_seconds: hour * 3600, bytes_per_second }
    }

    #[test]
    fn the_last_period_lasts_until_the_first_one_of_the_next_day() {
        let limit = BandwidthLimit::of(vec![period(20, None), period(8, Some(20 << 20))]).unwrap();
        let at = |hour: u32| limit.periods()[limit.period_at(hour * 3600).unwrap()].bytes_per_second;
        assert_eq!([at(0), at(7), at(8), at(19), at(20)], [None, None, Some(20 << 20), Some(20 << 20), None]);
        assert_eq!(limit.to_string(), "20.0 MiB/s from 08:00, no limit from 20:00");
        assert_eq!(limit.lowest_bytes_per_second(), Some(20 << 20));
        assert_eq!(BandwidthLimit::all_day(1 << 20).to_string(), "1.0 MiB/s");
        assert_eq!(BandwidthLimit::default().period_at(0), None);
    }

    #[test]
    fn periods_that_begin_at_one_time_or_at_none_are_refused() {
        assert_eq!(BandwidthLimit::of(vec![period(8, None), period(8, Some(1))]), None);
        assert_eq!(BandwidthLimit::of(vec![period(24, None)]), None);
    }
}
