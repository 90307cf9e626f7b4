//! The calendar against the time-zone database: every zone, over 50 years.

use std::thread;

use jiff::Span;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;

use super::*;

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

/// 50 years, and the instants that are sampled in them.
const FROM: i64 = 631_152_000_000_000; // 1990
const TO: i64 = 2_208_988_800_000_000; // 2040

fn periods(period: Period, zone: &str, anchor: &str) -> Periods {
    let anchor = (!anchor.is_empty()).then(|| anchor.parse().unwrap());
    Periods::new(period, zone, anchor).unwrap()
}

/// Microseconds of a local time, which must exist once.
fn at(zone: &str, local: &str) -> u64 {
    let zone = time_zones::find(zone).unwrap().0;
    let instant = zone.to_ambiguous_timestamp(local.parse().unwrap()).unambiguous().unwrap();
    instant.as_microsecond().cast_unsigned()
}

fn bounds(periods: Periods, now: i64) -> PeriodBounds {
    periods.bounds_at(Timestamp::from_micros(now.cast_unsigned()))
}

fn local_date(zone: &TimeZone, micros: i64) -> Date {
    zone.to_datetime(jiff::Timestamp::from_microsecond(micros).unwrap()).date()
}

/// The zones, each once: most names are links to another zone.
fn zones() -> Vec<(String, TimeZone)> {
    let mut zones: Vec<(String, TimeZone)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for name in time_zones::names() {
        let Ok((zone, name)) = time_zones::find(&name) else { continue };
        let start = jiff::Timestamp::from_microsecond(FROM).unwrap();
        let changes = zone.following(start).take_while(|change| change.timestamp().as_microsecond() < TO);
        let offsets: Vec<(i64, i32)> =
            changes.map(|change| (change.timestamp().as_microsecond(), change.offset().seconds())).collect();
        if seen.insert((zone.to_offset(start).seconds(), offsets)) {
            zones.push((name, zone));
        }
    }
    zones
}

/// Instants at which a zone's clocks change, and others at odd intervals.
fn samples(zone: &TimeZone, step: i64) -> Vec<i64> {
    let start = jiff::Timestamp::from_microsecond(FROM).unwrap();
    let changes = zone.following(start).map(|change| change.timestamp().as_microsecond());
    let changes = changes.take_while(|change| *change < TO);
    let around = changes.flat_map(|change| [-24, -1, 0, 1, 24].map(|hours| change + hours * HOUR));
    let near = |instant: i64| [instant - 1, instant];
    around.flat_map(near).chain((FROM..TO).step_by(usize::try_from(step).unwrap())).collect()
}

/// Checks what holds for all periods around `now`.
fn check_neighbours(periods: Periods, now: i64) {
    let found = bounds(periods, now);
    let starts = found.starts.map(u64::cast_signed);
    assert!(starts[1] <= now && now < starts[2], "{periods:?} at {now}: {found:?}");
    for (offset, start) in (0..4).zip(starts) {
        assert_eq!(periods.0.zoned.start_of(found.index + offset - 1), start.cast_unsigned(), "{periods:?} at {now}");
    }
    for (start, end) in starts.iter().zip(&starts[1..]) {
        let length = (end - start).cast_unsigned();
        assert!(length <= periods.max_micros(), "{periods:?} at {now}: {length}");
    }
    // The next period follows without a gap, and knows this one. A day that the zone skipped has an index, but no instants.
    let next = bounds(periods, starts[2]);
    let skipped = u64::from(starts[3] == starts[2]);
    assert_eq!((next.starts[1], next.index), (found.starts[2], found.index + 1 + skipped), "{periods:?} at {now}");
    assert_eq!(next.starts[0], if skipped == 0 { found.starts[1] } else { found.starts[2] }, "{periods:?} at {now}");
    assert_eq!(bounds(periods, starts[1]), found, "{periods:?}: the first instant");
    assert_eq!(bounds(periods, starts[2] - 1), found, "{periods:?}: the last instant");
}

#[test]
fn periods_of_every_zone_follow_each_other_without_gaps_over_fifty_years() {
    for (name, zone) in zones() {
        let days = samples(&zone, 397 * DAY + 17 * HOUR);
        for now in days {
            check_neighbours(periods(Period::Hour, &name, ""), now);
            check_neighbours(periods(Period::Day, &name, ""), now);
        }
        for now in samples(&zone, 997 * DAY).into_iter().step_by(7) {
            check_neighbours(periods(Period::Week, &name, "sunday"), now);
            check_neighbours(periods(Period::Month, &name, "31"), now);
            check_neighbours(periods(Period::Year, &name, "02-29"), now);
        }
    }
}

#[test]
fn every_month_of_every_zone_begins_on_its_local_date() {
    for (name, zone) in zones() {
        let months =
            [("", 1), ("15", 15), ("31", 31)].map(|(anchor, day)| (periods(Period::Month, &name, anchor), day));
        for index in 12 * 1990..12 * 2040_i64 {
            for (months, day) in months {
                let start = months.0.zoned.start_of(index.cast_unsigned()).cast_signed();
                let first = date((index / 12) as i16, (index % 12) as i8 + 1, 1);
                let first = first.with().day(first.days_in_month().min(day)).build().unwrap();
                let found = local_date(&zone, start);
                // A zone that skipped the date begins on the next one.
                assert!(found == first || (found > first && found == first.tomorrow().unwrap()), "{months:?} {first}");
                assert!(local_date(&zone, start - 1) < first, "{months:?} {first}: not the first instant");
            }
        }
    }
}

/// In every zone, of both hemispheres. A zone that skipped the date begins on the next one.
#[test]
fn every_day_week_and_year_of_every_zone_begins_on_its_local_date() {
    for (name, zone) in zones() {
        let (days, weeks, years) = (Period::Day, Period::Week, Period::Year);
        let [days, weeks, years] =
            [(days, ""), (weeks, ""), (years, "07-15")].map(|(of, anchor)| periods(of, &name, anchor));
        let check = |periods: Periods, instant: i64, first: Date| {
            let start = bounds(periods, instant).starts[1].cast_signed();
            let found = local_date(&zone, start);
            assert!(found == first || (found > first && found == first.tomorrow().unwrap()), "{periods:?} {first}");
            assert!(local_date(&zone, start - 1) < first, "{periods:?} {first}: not the first instant");
        };
        // Every 25 days and an hour, so at all hours of all weekdays.
        for instant in (FROM..TO).step_by(601 * HOUR as usize) {
            let today = local_date(&zone, instant);
            check(days, instant, today);
            let since_monday = today.weekday().to_monday_zero_offset();
            check(weeks, instant, today.checked_sub(Span::new().days(since_monday)).unwrap());
            let anchor = date(today.year(), 7, 15);
            check(years, instant, if today < anchor { date(today.year() - 1, 7, 15) } else { anchor });
        }
    }
}

#[test]
fn the_same_index_is_the_same_date_in_all_zones() {
    let now = at("UTC", "2026-07-15T12:45:00");
    let index = |period, zone, anchor| periods(period, zone, anchor).bounds_at(Timestamp::from_micros(now)).index;
    for zone in ["America/New_York", "Asia/Kolkata", "Europe/Berlin", "Australia/Sydney"] {
        for period in Period::ALL {
            assert_eq!(index(period, zone, ""), index(period, "UTC", ""), "{period} in {zone}");
        }
    }
    assert_eq!(index(Period::Month, "UTC", "10"), index(Period::Month, "UTC", "1"));
    assert_eq!(index(Period::Month, "UTC", "20") + 1, index(Period::Month, "UTC", "1"), "it began in June");
    assert_eq!(index(Period::Week, "UTC", "tuesday"), index(Period::Week, "UTC", ""));
    assert_eq!(index(Period::Year, "UTC", "07-15"), 2026);
    assert_eq!(index(Period::Year, "UTC", "07-16"), 2025);
}

#[test]
fn days_on_which_the_clocks_change_have_23_or_25_hours() {
    let days = |zone: &str, local: &str| {
        let found = periods(Period::Day, zone, "").bounds_at(Timestamp::from_micros(at(zone, local)));
        (found.starts[2] - found.starts[1]) / 60_000_000
    };
    for (zone, short, long) in [
        ("Europe/Berlin", "2026-03-29T12:00:00", "2026-10-25T12:00:00"),
        ("America/New_York", "2026-03-08T12:00:00", "2026-11-01T12:00:00"),
        ("Australia/Sydney", "2026-10-04T12:00:00", "2026-04-05T12:00:00"),
        ("America/Santiago", "2026-09-06T12:00:00", "2026-04-04T12:00:00"), // at midnight
        ("America/Havana", "2026-03-08T12:00:00", "2026-11-01T12:00:00"),   // at midnight
    ] {
        assert_eq!((days(zone, short), days(zone, long)), (23 * 60, 25 * 60), "{zone}");
    }
    let half = ["2026-10-04T12:00:00", "2026-04-05T12:00:00"].map(|local| days("Australia/Lord_Howe", local));
    assert_eq!(half, [23 * 60 + 30, 24 * 60 + 30]);
}

#[test]
fn a_zone_that_changed_just_after_midnight_or_skipped_a_day_has_whole_days() {
    // St. John's put its clocks back at 0:01, so the 30th began, the 29th went on for 59 minutes, and the 30th began again.
    let days = periods(Period::Day, "America/St_Johns", "");
    let first = at("America/St_Johns", "2006-10-28T12:00:00") + 12 * 3_600_000_000;
    let found = days.bounds_at(Timestamp::from_micros(first + 30 * 60_000_000));
    assert_eq!((found.starts[1], found.starts[2] - found.starts[1]), (first, 25 * 3_600_000_000));
    // Samoa had no 30 December 2011.
    let days = periods(Period::Day, "Pacific/Apia", "");
    let last = days.bounds_at(Timestamp::from_micros(at("Pacific/Apia", "2011-12-29T12:00:00")));
    let next = days.bounds_at(Timestamp::from_micros(last.starts[2]));
    assert_eq!((next.index, next.starts[1]), (last.index + 2, at("Pacific/Apia", "2011-12-31T00:00:00")));
    assert_eq!(last.starts[2], last.starts[3], "the skipped day is empty");
}

#[test]
fn short_months_begin_on_their_last_day_and_leap_days_a_day_earlier() {
    let start = |periods: Periods, index: u64| periods.start_of(index);
    let months = periods(Period::Month, "Europe/Berlin", "31");
    for (month, local) in [(1, "2026-01-31"), (2, "2026-02-28"), (3, "2026-03-31"), (4, "2026-04-30")] {
        assert_eq!(start(months, 12 * 2026 + month - 1), at("Europe/Berlin", &format!("{local}T00:00:00")), "{local}");
    }
    let years = periods(Period::Year, "Asia/Tokyo", "02-29");
    for (year, local) in [(2027, "2027-02-28"), (2028, "2028-02-29"), (2100, "2100-02-28")] {
        assert_eq!(start(years, year), at("Asia/Tokyo", &format!("{local}T00:00:00")), "{local}");
    }
    let weeks = periods(Period::Week, "UTC", "sunday");
    let sunday = at("UTC", "2026-11-15T00:00:00");
    assert_eq!(weeks.bounds_at(Timestamp::from_micros(sunday)).starts[1], sunday);
}

#[test]
fn an_hour_that_is_repeated_is_a_period_of_its_own() {
    let hours = periods(Period::Hour, "Europe/Berlin", "");
    let first = at("UTC", "2026-10-25T00:30:00");
    for more in 0..3 {
        let found = hours.bounds_at(Timestamp::from_micros(first + more * 3_600_000_000));
        assert_eq!(found.starts[2] - found.starts[1], 3_600_000_000);
    }
    let hours = periods(Period::Hour, "Asia/Kolkata", "");
    let found = hours.bounds_at(Timestamp::from_micros(at("Asia/Kolkata", "2026-05-01T10:59:59")));
    assert_eq!(found.starts[1], at("Asia/Kolkata", "2026-05-01T10:00:00"));
}

#[test]
fn the_first_and_the_last_instants_have_periods() {
    for zone in ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"] {
        for period in Period::ALL {
            let periods = periods(period, zone, "");
            for now in [0, 1, Timestamp::MAX.as_micros()] {
                let found = periods.bounds_at(Timestamp::from_micros(now));
                assert!(found.index > 1 && found.starts.is_sorted() && found.starts[3] < 1 << 53, "{periods:?} {now}");
                assert!(found.starts[1] <= now && now < found.starts[2], "{periods:?} {now}");
            }
            assert!(periods.start_of(99_999_999) > 0 && periods.start_of(u64::MAX) > 0, "{periods:?}");
        }
    }
}

#[test]
fn anchors_that_do_not_fit_the_period_are_refused() {
    let problem = |period, anchor: &str| {
        let anchor = anchor.parse();
        anchor.and_then(|anchor| Periods::new(period, "UTC", Some(anchor))).unwrap_err().to_string()
    };
    assert_eq!(problem(Period::Day, "1"), "quota.anchor: periods of a day take no anchor");
    assert_eq!(problem(Period::Hour, "monday"), "quota.anchor: periods of a hour take no anchor");
    for (period, anchor) in [
        (Period::Week, "3"),
        (Period::Month, "0"),
        (Period::Month, "32"),
        (Period::Month, "monday"),
        (Period::Year, "02-30"),
        (Period::Year, "13-01"),
        (Period::Year, "1-1"),
        (Period::Year, "04-31"),
        (Period::Week, "Monday"),
        (Period::Month, "+5"),
        (Period::Month, "999"),
        (Period::Month, ""),
    ] {
        assert!(problem(period, anchor).starts_with("quota.anchor: "), "{period} {anchor}");
    }
    assert_eq!("fortnight".parse::<Period>().unwrap_err().field(), "quota.period");
}

#[test]
fn equal_periods_share_one_calendar() {
    assert_eq!(periods(Period::Month, "europe/berlin", "1"), periods(Period::Month, "Europe/Berlin", ""));
    assert_ne!(periods(Period::Month, "Europe/Berlin", "2"), periods(Period::Month, "Europe/Berlin", ""));
    assert_eq!(Periods::utc(Period::Week), periods(Period::Week, "UTC", "monday"));
    assert_eq!(format!("{:?}", periods(Period::Year, "UTC", "04-06")), "Periods(year in UTC from 04-06)");
}

#[test]
fn threads_at_different_times_never_see_a_mixture_of_bounds() {
    let days = periods(Period::Day, "Europe/Dublin", "");
    let start = at("UTC", "2026-03-20T12:00:00");
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for step in 0..5_000 {
                    let now = start + (step * (thread + 1) % 20) * 86_400_000_000;
                    let found = days.bounds_at(Timestamp::from_micros(now));
                    assert_eq!(found, days.0.zoned.bounds_at(now));
                    assert_eq!(days.start_of(found.index + 3), days.0.zoned.start_of(found.index + 3));
                }
            });
        }
    });
}
