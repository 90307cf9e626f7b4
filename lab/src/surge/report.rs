//! `Report`: the results of a run, and what is needed to repeat it. Serialized as JSON, and rendered as a page.

use serde::Serialize;
use tidegate::Timestamp;

use super::goals::{self, Goal};
use super::options::SurgeArgs;
use super::phase::RunContext;
use super::results::PhaseResults;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
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
    /// The number of CPUs that this process may use.
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
        let obstacle = if stopped { Some("a signal stopped the run") } else { context.scenario.obstacle };
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
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            debug_build: cfg!(debug_assertions),
            stopped,
            warnings: phases.iter().flat_map(PhaseResults::warnings).collect(),
            goals: goals::evaluate(&phases, obstacle, context.store.decides_atomically()),
            phases,
        }
    }

    /// The results of the phase with this number, if it was run.
    pub(crate) fn phase(&self, number: usize) -> Option<&PhaseResults> {
        self.phases.iter().find(|results| results.phase == number)
    }
}

/// `2026-11-15 17:51 UTC`.
pub(crate) fn format_date(at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    time.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_the_calendar() {
        let at = |seconds: u64| format_date(Timestamp::from_micros(seconds * 1_000_000));
        for (seconds, date) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13 UTC"),
            (1_798_761_600, "2027-01-01 00:00 UTC"),
        ] {
            assert_eq!(at(seconds), date);
        }
    }
}
