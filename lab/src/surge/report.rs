//! `Report`: the results of a run, and what is needed to repeat it. Serialized as JSON, and rendered as a page.

use serde::Serialize;
use tidegate::Timestamp;

use super::cpu;
use super::goals::{self, Goal};
use super::options::SurgeArgs;
use super::phase::RunContext;
use super::results::PhaseResults;

/// The results of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of Tidegate.
    pub(crate) version: &'static str,
    /// When the run began, in UTC.
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) seed: u64,
    pub(crate) users: u32,
    pub(crate) instances: u32,
    pub(crate) flood_connections: u32,
    pub(crate) seconds_per_phase: u64,
    pub(crate) time_out_seconds: u64,
    pub(crate) store: String,
    pub(crate) processors: usize,
    pub(crate) debug_build: bool,
    /// Whether a signal stopped the run, so that phases are missing or short.
    pub(crate) stopped: bool,
    /// Reasons to doubt the results.
    #[serde(rename = "doubts")]
    pub(crate) warnings: Vec<String>,
    #[serde(rename = "aims")]
    pub(crate) goals: Vec<Goal>,
    pub(crate) phases: Vec<PhaseResults>,
}

impl Report {
    pub(crate) fn new(
        arguments: &SurgeArgs,
        context: &RunContext<'_>,
        date: String,
        phases: Vec<PhaseResults>,
        stopped: bool,
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            date,
            command: arguments.command(),
            seed: arguments.seed,
            users: arguments.users,
            instances: context.instances,
            flood_connections: context.scenario.flood_connections,
            seconds_per_phase: context.scenario.phase_duration.as_secs(),
            time_out_seconds: context.scenario.timeout.as_secs(),
            store: context.store.name.clone(),
            processors: cpu::cpu_count(),
            debug_build: cfg!(debug_assertions),
            stopped,
            warnings: phases.iter().flat_map(phase_warnings).collect(),
            goals: goals::evaluate(
                &phases,
                context.scenario.judges_times && !stopped,
                context.store.decides_atomically(),
            ),
            phases,
        }
    }

    /// Whether every goal that could be judged was reached.
    pub(crate) fn goals_reached(&self) -> bool {
        self.goals.iter().all(|goal| goal.reached != Some(false))
    }
}

/// Reasons to doubt the results of a phase.
fn phase_warnings(results: &PhaseResults) -> impl Iterator<Item = String> + use<> {
    let phase = results.phase;
    results.warnings().into_iter().map(move |warning| format!("phase {phase}: {warning}"))
}

/// `2026-11-15 17:51 UTC`.
pub(crate) fn format_date(at: Timestamp) -> String {
    let minutes = at.as_micros() / 60_000_000;
    let (hour, minute) = (minutes / 60 % 24, minutes % 60);
    // Years begin in March here, so that the leap day is the last day and the lengths of months follow a pattern.
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
    fn dates_match_the_calendar() {
        let at = |seconds: u64| format_date(Timestamp::from_micros(seconds * 1_000_000));
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        assert_eq!(at(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(at(1_700_000_000), "2023-11-14 22:13 UTC");
        assert_eq!(at(1_798_761_600), "2027-01-01 00:00 UTC");
    }
}
