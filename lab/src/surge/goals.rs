//! `Goal`: what a run is meant to prove, and whether it did. Short runs cannot judge times.

use serde::Serialize;

use super::format::{format_count, format_factor, format_percent, format_time};
use super::results::{PhaseResults, RIDE_RULE};

/// One goal, with its result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Goal {
    #[serde(rename = "what")]
    pub(crate) text: &'static str,
    /// The measured values.
    #[serde(rename = "found")]
    pub(crate) result: String,
    /// Whether it was reached; `None` if this run cannot judge it.
    pub(crate) reached: Option<bool>,
}

/// All goals of which the phases were run. `judges_times` says whether the run is long enough to judge times.
///
/// `decides_atomically` says whether the store decides all rules of a request in one step. A cluster decides them at several
/// times while the admission log has only the last, so refill would seem to come too early.
pub(crate) fn evaluate(phases: &[PhaseResults], judges_times: bool, decides_atomically: bool) -> Vec<Goal> {
    let phase = |number: usize| phases.iter().find(|results| results.phase == number);
    let mut goals = Vec::new();
    if let (Some(before), Some(after)) = (phase(1), phase(4)) {
        goals.extend(compare(before, after, judges_times));
    }
    for after in [phase(3), phase(4)].into_iter().flatten() {
        let text = match after.phase {
            3 => "phase 3: no client gets more than capacity and refill allow",
            _ => "phase 4: no client gets more than capacity and refill allow",
        };
        let factor = after.limit(RIDE_RULE).map_or(0.0, |audit| audit.factor);
        let overshoot = format_count(after.overshoot());
        let result = format!("{overshoot} requests over a limit, at most {} of it", format_factor(factor));
        // Only the last phase has two rules for one request.
        let judged = |reached| (decides_atomically || after.phase == 3).then_some(reached);
        goals.push(Goal { text, result, reached: judged(after.overshoot() == 0) });
        if let Some(audit) = &after.flood_limit {
            let text = match after.phase {
                3 => "phase 3: a flood by one bot passes its limit and no more",
                _ => "phase 4: a flood by one bot passes its limit and no more",
            };
            let (sent, passed) = (format_count(after.flood.requests), format_count(audit.admitted));
            let result = format!("{passed} of {sent} requests, {} of its limit", format_factor(audit.factor));
            goals.push(Goal { text, result, reached: judged(audit.overshoot == 0) });
        }
    }
    goals
}

/// The goals that compare the last phase with the first.
fn compare(before: &PhaseResults, after: &PhaseResults, judges_times: bool) -> Vec<Goal> {
    let judged = |reached| judges_times.then_some(reached);
    let (slow, fast) = (before.riders.allowed.p99, after.riders.allowed.p99);
    let ratio = slow / fast.max(0.001);
    let refusals = &after.refusals_at_server;
    let (matched_before, matched_after) = (before.crowd.matched, after.crowd.matched);
    let failure_rate = after.riders.failure_rate;
    vec![
        Goal {
            text: "p99 of riders' allowed requests at least 60 times lower",
            result: format!("{} → {}, {}", format_time(slow), format_time(fast), format_factor(ratio)),
            reached: judged(ratio >= 60.0),
        },
        Goal { text: "and under 590 ms", result: format_time(fast), reached: judged(fast < 590.0) },
        Goal {
            text: "at most 0.1 % of them fail",
            result: format!("{} → {}", format_percent(before.riders.failure_rate), format_percent(failure_rate)),
            reached: judged(failure_rate <= 0.001),
        },
        Goal {
            text: "a 429 takes less than 1 ms at the server, less than 10 ms at p99",
            result: format!("{}, {}", format_time(refusals.average), format_time(refusals.p99)),
            reached: judged(refusals.count > 0 && refusals.average < 1.0 && refusals.p99 < 10.0),
        },
        Goal {
            text: "no fewer riders are matched",
            result: format!("{} → {}", format_count(matched_before as u64), format_count(matched_after as u64)),
            reached: judged(matched_after >= matched_before),
        },
    ]
}
