//! `Report`: all that a run has found, with what is needed to run it again. For programs as it is, for people as a page.

use serde::Serialize;
use tidegate::Timestamp;

use super::aims::{self, Aim};
use super::found::Found;
use super::machine;
use super::options::SurgeArgs;
use super::phase::Evening;

/// A run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Of Tidegate.
    pub(crate) version: &'static str,
    /// When it began, in UTC.
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) seed: u64,
    pub(crate) users: u32,
    pub(crate) instances: u32,
    pub(crate) seconds_per_phase: u64,
    pub(crate) time_out_seconds: u64,
    pub(crate) store: String,
    pub(crate) processors: usize,
    pub(crate) debug_build: bool,
    /// Whether it ended before its time, so that phases are missing or short.
    pub(crate) stopped: bool,
    /// What spoils the figures.
    pub(crate) doubts: Vec<String>,
    pub(crate) aims: Vec<Aim>,
    pub(crate) phases: Vec<Found>,
}

impl Report {
    pub(crate) fn new(
        arguments: &SurgeArgs,
        evening: &Evening<'_>,
        date: String,
        phases: Vec<Found>,
        stopped: bool,
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            date,
            command: arguments.command(),
            seed: arguments.seed,
            users: arguments.users,
            instances: evening.instances,
            seconds_per_phase: evening.shape.span.as_secs(),
            time_out_seconds: evening.shape.patience.as_secs(),
            store: evening.hosted.name.clone(),
            processors: machine::processors(),
            debug_build: cfg!(debug_assertions),
            stopped,
            doubts: phases.iter().flat_map(doubts).collect(),
            aims: aims::judge(&phases, evening.shape.full && !stopped, evening.hosted.is_whole()),
            phases,
        }
    }

    /// Whether every aim that could be judged was reached.
    pub(crate) fn is_proof(&self) -> bool {
        self.aims.iter().all(|aim| aim.reached != Some(false))
    }
}

/// What spoils the figures of a phase.
fn doubts(found: &Found) -> impl Iterator<Item = String> + use<> {
    let phase = found.phase;
    found.doubts().into_iter().map(move |doubt| format!("phase {phase}: {doubt}"))
}

/// `2026-11-15 17:51 UTC`.
pub(crate) fn date(at: Timestamp) -> String {
    let minutes = at.as_micros() / 60_000_000;
    let (hour, minute) = (minutes / 60 % 24, minutes % 60);
    // Years begin in March here, so that the day that only some have is the last: then months have a pattern.
    let days = minutes / 1440 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds: u64| date(Timestamp::from_micros(seconds * 1_000_000));
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        assert_eq!(at(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(at(1_700_000_000), "2023-11-14 22:13 UTC");
        assert_eq!(at(1_798_761_600), "2027-01-01 00:00 UTC");
    }
}
