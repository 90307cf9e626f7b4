//! The date of a generated page.

use tidegate::{Clock, SystemClock};

/// Today, in UTC.
pub fn page_date() -> String {
    let days = SystemClock::new().now().as_micros() / 86_400_000_000;
    // Howard Hinnant's civil_from_days, for days after 1970.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{}-{month:02}-{day:02}", 400 * era + year + u64::from(month <= 2))
}
