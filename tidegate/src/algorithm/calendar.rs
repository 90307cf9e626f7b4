//! `Calendar`: where the windows of a fixed window begin, and so which of them holds an instant. Integers only, and no calendar
//! but the Gregorian one in UTC. Its twin in Lua stands in `fixed_window.lua`.

use crate::Timestamp;

const DAY: u64 = 86_400_000_000;

/// In 400 years the calendar repeats itself, after so many months and days.
const CYCLE_MONTHS: u64 = 4800;
const CYCLE_DAYS: u64 = 146_097;

/// From March of the year 0 to January 1970.
const MONTHS_BEFORE_1970: u64 = 12 * 1970 - 2;
const DAYS_BEFORE_1970: u64 = 719_468;

/// Windows follow each other without gaps; window 0 begins in 1970.
///
/// One number, as every check carries it: they begin at multiples of so many microseconds, or, negative, with a month, after
/// so many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar(i64);

impl Calendar {
    /// Windows of so many microseconds, from 1 to 2^63 - 1; what is outside counts as the nearest.
    pub(crate) const fn of_micros(micros: u64) -> Self {
        Self(match micros {
            0 => 1,
            1..=0x7fff_ffff_ffff_ffff => micros.cast_signed(),
            _ => i64::MAX,
        })
    }

    /// Windows of so many months each, at least one.
    pub(crate) const fn of_months(months: u32) -> Self {
        Self(if months == 0 { -1 } else { -(months as i64) })
    }

    /// The number itself: microseconds, or minus the months.
    pub(crate) const fn number(self) -> i64 {
        self.0
    }

    /// The number of months, if windows begin with one.
    pub(crate) const fn months(self) -> Option<u32> {
        if self.0 < 0 { Some(self.0.unsigned_abs() as u32) } else { None }
    }

    /// Which window holds `now`: the number of those before it.
    #[inline(always)]
    pub(crate) const fn index_of(self, now: Timestamp) -> u64 {
        let number = self.0.unsigned_abs();
        if self.0 > 0 { now.as_micros() / number } else { month_window_of(now.as_micros(), number) }
    }

    /// The first instant of a window, in microseconds; one beyond all time starts at its end.
    #[inline(always)]
    pub(crate) const fn start_of(self, index: u64) -> u64 {
        let number = index.saturating_mul(self.0.unsigned_abs());
        if self.0 > 0 { number } else { start_of_month(number) }
    }

    /// How long the longest of the windows lasts, in microseconds.
    pub(crate) const fn longest(self) -> u64 {
        match self.months() {
            None => self.0.unsigned_abs(),
            Some(1) => 31 * DAY,
            // There are only months and years.
            Some(months) => months.div_ceil(12) as u64 * 366 * DAY,
        }
    }
}

/// The number of whole windows of `months` each since 1970. Out of the way, so that spans stay as quick as they are.
#[cold]
#[inline(never)]
const fn month_window_of(micros: u64, months: u64) -> u64 {
    // By months of average length. No month begins more than three days before its share of the cycle, nor two after it, so
    // this is the right window or the one after.
    let window = (micros / DAY + 3) * CYCLE_MONTHS / (CYCLE_DAYS * months);
    if start_of_month(window * months) > micros { window - 1 } else { window }
}

/// The first instant of a month, counted from January 1970. Out of the way likewise.
#[cold]
#[inline(never)]
const fn start_of_month(month: u64) -> u64 {
    // Years that begin in March have their leap day at the end, where it moves no other month.
    let month = month.saturating_add(MONTHS_BEFORE_1970);
    let (year, month) = (month / 12, month % 12);
    let leap_days = year / 4 - year / 100 + year / 400;
    // From March on, any five months have 153 days.
    let days_of_months = (153 * month + 2) / 5;
    // An index that was read from a store may be anything, and a twelfth of the largest number, times 365, passes it.
    let days = year.saturating_mul(365).saturating_add(leap_days).saturating_add(days_of_months) - DAYS_BEFORE_1970;
    days.saturating_mul(DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calendar as it is taught: every month from January 1970 on, with its first day and its length.
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
            assert_eq!(start_of_month(month), day * DAY, "month {month}");
        }
    }

    #[test]
    fn every_day_of_a_cycle_is_in_its_month_and_year_to_the_last_microsecond() {
        for (month, first, length) in months().take(4800 + 12) {
            for day in first..first + length {
                for micros in [day * DAY, (day + 1) * DAY - 1] {
                    assert_eq!(month_window_of(micros, 1), month, "day {day}");
                    assert_eq!(month_window_of(micros, 12), month / 12, "day {day}");
                }
            }
        }
    }

    #[test]
    fn no_window_lasts_longer_than_the_longest() {
        for calendar in [Calendar::of_micros(7), Calendar::of_months(1), Calendar::of_months(12)] {
            let longest = (0..4800).map(|index| calendar.start_of(index + 1) - calendar.start_of(index)).max();
            assert_eq!(longest, Some(calendar.longest()), "{calendar:?}");
        }
    }

    #[test]
    fn known_instants_are_in_known_windows() {
        // 2028-02-29, 2100-02-28 and the last day of 2027, each at its last microsecond.
        for (micros, month, year) in [
            (1_835_481_599_999_999, 58 * 12 + 1, 58),
            (4_107_542_399_999_999, 130 * 12 + 1, 130),
            (1_830_297_599_999_999, 57 * 12 + 11, 57),
        ] {
            for (more, next) in [(0, 0), (1, 1)] {
                let turn_of_year = u64::from(month % 12 == 11) * next;
                assert_eq!(Calendar::of_months(1).index_of(at(micros + more)), month + next);
                assert_eq!(Calendar::of_months(12).index_of(at(micros + more)), year + turn_of_year);
            }
        }
    }

    #[test]
    fn an_index_beyond_all_time_starts_at_its_end() {
        for calendar in [Calendar::of_micros(2), Calendar::of_months(1), Calendar::of_months(12)] {
            assert_eq!(calendar.start_of(u64::MAX), u64::MAX, "{calendar:?}");
        }
    }
}
