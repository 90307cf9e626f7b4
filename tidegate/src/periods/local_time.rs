//! The local time of an instant, as text.

use super::Periods;
use crate::Timestamp;

impl Periods {
    /// The local time of an instant in the time zone of the periods, with its offset from UTC: `2026-03-29T03:00:00+02:00`.
    ///
    /// ```
    /// use tidegate::limits::{Period, Periods};
    /// use tidegate::Timestamp;
    ///
    /// let days = Periods::new(Period::Day, "Europe/Berlin", None)?;
    /// assert_eq!(days.local_time(Timestamp::from_micros(1_774_746_000_000_000)), "2026-03-29T03:00:00+02:00");
    /// # Ok::<(), tidegate::limits::LimitError>(())
    /// ```
    pub fn local_time(self, at: Timestamp) -> String {
        let (local, offset_seconds) = self.0.zoned.local_time(at.as_micros());
        let sign = if offset_seconds < 0 { '-' } else { '+' };
        let offset = offset_seconds.unsigned_abs();
        // Some offsets until 1972 have seconds.
        let seconds = if offset.is_multiple_of(60) { String::new() } else { format!(":{:02}", offset % 60) };
        let (date, time) = (local.date(), local.time());
        format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{sign}{:02}:{:02}{seconds}",
            date.year(),
            date.month(),
            date.day(),
            time.hour(),
            time.minute(),
            time.second(),
            offset / 3600,
            offset / 60 % 60,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Period;

    #[test]
    fn a_local_time_has_its_offset() {
        let local = |zone: &str, seconds: u64| {
            Periods::new(Period::Day, zone, None).unwrap().local_time(Timestamp::from_micros(seconds * 1_000_000))
        };
        assert_eq!(local("UTC", 1_774_746_000), "2026-03-29T01:00:00+00:00");
        assert_eq!(local("Europe/Berlin", 1_774_745_999), "2026-03-29T01:59:59+01:00");
        assert_eq!(local("America/St_Johns", 1_767_225_600), "2025-12-31T20:30:00-03:30");
        assert_eq!(local("Africa/Monrovia", 0), "1969-12-31T23:15:30-00:44:30");
    }
}
