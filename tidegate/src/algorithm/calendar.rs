//! `Calendar`: where windows begin, and which window contains an instant, in integer arithmetic. Months and years are those of
//! the Gregorian calendar in UTC. The Lua twin is in `fixed_window.lua`.

use crate::Timestamp;

const DAY_MICROS: u64 = 86_400_000_000;

/// The calendar repeats after 400 years.
const CYCLE_MONTHS: u64 = 4800;
const CYCLE_DAYS: u64 = 146_097;

/// The time from March of year 0 to January 1970.
const MONTHS_BEFORE_1970: u64 = 12 * 1970 - 2;
const DAYS_BEFORE_1970: u64 = 719_468;

/// The windows of a limit. They follow each other without gaps; window 0 begins in 1970.
///
/// One number, since every check contains it: the length in microseconds, or the negative number of months.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar(i64);

impl Calendar {
    /// Windows of this many microseconds, clamped to 1..2^63.
    pub(crate) const fn from_micros(micros: u64) -> Self {
        Self(match micros {
            0 => 1,
            1..=0x7fff_ffff_ffff_ffff => micros.cast_signed(),
            _ => i64::MAX,
        })
    }

    /// Windows of this many months, at least one.
    pub(crate) const fn from_months(months: u32) -> Self {
        Self(if months == 0 { -1 } else { -(months as i64) })
    }

    /// Microseconds, or the negative number of months.
    pub(crate) const fn number(self) -> i64 {
        self.0
    }

    /// The number of months, for calendar windows.
    pub(crate) const fn months(self) -> Option<u32> {
        if self.0 < 0 { Some(self.0.unsigned_abs() as u32) } else { None }
    }

    /// The index of the window that contains `now`.
    #[inline(always)]
    pub(crate) const fn index_of(self, now: Timestamp) -> u64 {
        let number = self.0.unsigned_abs();
        if self.0 > 0 { now.as_micros() / number } else { month_window_of(now.as_micros(), number) }
    }

    /// The first instant of a window, in microseconds. Saturates.
    #[inline(always)]
    pub(crate) const fn start_of(self, index: u64) -> u64 {
        let number = index.saturating_mul(self.0.unsigned_abs());
        if self.0 > 0 { number } else { start_of_month(number) }
    }

    /// The length of the longest window, in microseconds.
    pub(crate) const fn max_micros(self) -> u64 {
        match self.months() {
            None => self.0.unsigned_abs(),
            Some(1) => 31 * DAY_MICROS,
            // Only months and years exist.
            Some(months) => months.div_ceil(12) as u64 * 366 * DAY_MICROS,
        }
    }
}

/// The index of the window of `months` that contains `micros`. Not inlined, to keep the path of fixed lengths short.
#[cold]
#[inline(never)]
const fn month_window_of(micros: u64, months: u64) -> u64 {
    // Estimated from months of average length. No month begins more than three days before its average start, nor two after
    // it, so this is the right window or the next one.
    let window = (micros / DAY_MICROS + 3) * CYCLE_MONTHS / (CYCLE_DAYS * months);
    if start_of_month(window * months) > micros { window - 1 } else { window }
}

/// The first instant of a month, counted from January 1970. Not inlined likewise.
#[cold]
#[inline(never)]
const fn start_of_month(month: u64) -> u64 {
    // In years that begin in March the leap day comes last and shifts no other month.
    let month = month.saturating_add(MONTHS_BEFORE_1970);
    let (year, month) = (month / 12, month % 12);
    let leap_days = year / 4 - year / 100 + year / 400;
    // From March on, every five months have 153 days.
    let days_of_months = (153 * month + 2) / 5;
    // An index from a store may be any number, so this saturates.
    let days = year.saturating_mul(365).saturating_add(leap_days).saturating_add(days_of_months) - DAYS_BEFORE_1970;
    days.saturating_mul(DAY_MICROS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference: every month from January 1970 on, with its first day and its length.
    fn months() -> impl Iterator<Item = (u64, u64, u64)> {
        let mut day = 0;
        (0..).map(move |month| {
            let year = 1970 + month / 12;
            let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
            let length = match month % 12 {
                1 if leap => 29,
                1 => 28,
                3 | 5 | 8 | 10 => 30,
                _ => 31,
            };
            day += length;
            (month, day - length, length)
        })
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn every_month_of_a_cycle_begins_where_the_one_before_ends() {
        for (month, day, _) in months().take(4800 + 12) {
            assert_eq!(start_of_month(month), day * DAY_MICROS, "month {month}");
        }
    }

    #[test]
    fn every_day_of_a_cycle_is_in_its_month_and_year_to_the_last_microsecond() {
        for (month, first, length) in months().take(4800 + 12) {
            for day in first..first + length {
                for micros in [day * DAY_MICROS, (day + 1) * DAY_MICROS - 1] {
                    assert_eq!(month_window_of(micros, 1), month, "day {day}");
                    assert_eq!(month_window_of(micros, 12), month / 12, "day {day}");
                }
            }
        }
    }

    #[test]
    fn max_micros_is_the_length_of_the_longest_window() {
        for calendar in [Calendar::from_micros(7), Calendar::from_months(1), Calendar::from_months(12)] {
            let longest = (0..4800).map(|index| calendar.start_of(index + 1) - calendar.start_of(index)).max();
            assert_eq!(longest, Some(calendar.max_micros()), "{calendar:?}");
        }
    }

    #[test]
    fn the_last_microseconds_of_months_and_years_are_in_the_right_window() {
        // 2028-02-29, 2100-02-28 and the last day of 2027, each at its last microsecond.
        for (micros, month, year) in [
            (1_835_481_599_999_999, 58 * 12 + 1, 58),
            (4_107_542_399_999_999, 130 * 12 + 1, 130),
            (1_830_297_599_999_999, 57 * 12 + 11, 57),
        ] {
            for (more, next) in [(0, 0), (1, 1)] {
                let turn_of_year = u64::from(month % 12 == 11) * next;
                assert_eq!(Calendar::from_months(1).index_of(at(micros + more)), month + next);
                assert_eq!(Calendar::from_months(12).index_of(at(micros + more)), year + turn_of_year);
            }
        }
    }

    #[test]
    fn the_start_of_a_huge_index_saturates() {
        for calendar in [Calendar::from_micros(2), Calendar::from_months(1), Calendar::from_months(12)] {
            assert_eq!(calendar.start_of(u64::MAX), u64::MAX, "{calendar:?}");
        }
    }
}
