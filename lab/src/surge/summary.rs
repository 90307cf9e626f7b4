//! The results in words: a conclusion of one sentence, and a paragraph for each phase.

use std::fmt::Write;

use super::format::{format_count, format_factor, format_percent, format_time};
use super::report::Report;
use super::results::{PhaseResults, RequestStats};
use super::riders::RetryBehavior;

/// What warnings mean for a reader.
pub(crate) const DISTURBANCE: &str =
    "the figures may show the machine rather than the servers; close other programs and run it again";

/// What the run shows, in one sentence.
pub(crate) fn conclusion(report: &Report) -> String {
    let (Some(before), Some(after)) = (report.phase(1), report.phase(4)) else {
        return "The run ended before its last phase, so that nothing can be compared.".to_owned();
    };
    format!(
        "Without limits, {} of the riders' allowed requests fail and the slowest hundredth takes {} or longer; with limits that all \
         gateways share and one for all riders together, {} fail and 99 % end within {}.",
        failures(&before.riders),
        format_time(before.riders.allowed.p99),
        failures(&after.riders),
        format_time(after.riders.allowed.p99),
    )
}

/// How many goals were reached, missed and not judged.
pub(crate) fn goal_counts(report: &Report) -> String {
    let count = |reached| report.goals.iter().filter(|goal| goal.reached == reached).count();
    let mut text = format!("{} of {} goals reached", count(Some(true)), report.goals.len());
    for (count, what) in [(count(Some(false)), "missed"), (count(None), "not judged")] {
        if count > 0 {
            // Writing to a string does not fail.
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

/// What happens in a phase.
pub(crate) fn explain_phase(results: &PhaseResults) -> String {
    let queue = format_count(results.service.deepest_queue);
    let matched = format!(
        "{} of {} riders get a ride",
        format_count(results.crowd.matched as u64),
        format_count(results.crowd.riders as u64)
    );
    let factor = format_factor(results.ride_limit().map_or(0.0, |audit| audit.factor));
    match results.phase {
        1 => format!(
            "Every request reaches the service. The queue for a worker grows to {queue} requests; riders wait, tap again, give up \
             and ask again, and the workers still process the requests of riders who gave up. {matched}."
        ),
        2 => format!(
            "Each of {} gateways counts the requests of a rider in its own memory. A bot that sends to all gateways in turn gets \
             {factor} its limit, and the queue grows to {queue}. {matched}.",
            results.instances
        ),
        3 => {
            let flood = results.flood_limit.as_ref().map_or(String::new(), |audit| {
                let (passed, sent) = (format_count(audit.admitted), format_count(results.flood.requests));
                format!(" Another bot floods the gateways, and {passed} of its {sent} requests pass.")
            });
            format!(
                "The gateways share the counts. The bot gets {factor} its limit.{flood} The riders stay within their limits, and \
                 together they still ask for more than matching can do: the queue grows to {queue}. {matched}."
            )
        }
        _ => format!(
            "One more limit, for all riders together, admits 140 ride requests a second, a little less than the 150 that matching can \
             do. The queue never exceeds {queue}. A request over the limit gets a 429 after {} on average, with the time to retry. \
             {matched}.",
            format_time(results.refusals_at_server.average)
        ),
    }
}

/// Why more riders are matched in phase 3 than in phase 4; `None` if it is not so.
pub(crate) fn explain_matched_riders(report: &Report) -> Option<String> {
    let (queued, limited) = (report.phase(3)?, report.phase(4)?);
    if queued.crowd.matched <= limited.crowd.matched {
        return None;
    }
    let share = |results: &PhaseResults, behavior| {
        let group = results.crowd.groups.iter().find(|group| group.behavior == behavior);
        group.map_or(String::new(), |group| format_percent(group.matched as f64 / group.riders.max(1) as f64))
    };
    Some(format!(
        "Phase 3 matches {} riders and phase 4 only {}, because a queue serves everyone in order, and a limit serves whoever asks \
         at the right moment. In phase 3 a rider who joins the queue early enough gets a ride after a long wait. In \
         phase 4 nobody waits, and the 140 places of each second go to the next requests: {} of the riders who retry when \
         Retry-After says so get a ride, {} of those who ignore it, {} of those who hammer (phase 3: {}, {} and {}). Phase 4 \
         favors those who ask often; phase 3 gives many rides to few riders (fairness {:.2}, phase 4: {:.2}).",
        format_count(queued.crowd.matched as u64),
        format_count(limited.crowd.matched as u64),
        share(limited, RetryBehavior::Patient),
        share(limited, RetryBehavior::Steady),
        share(limited, RetryBehavior::Hammering),
        share(queued, RetryBehavior::Patient),
        share(queued, RetryBehavior::Steady),
        share(queued, RetryBehavior::Hammering),
        queued.crowd.fairness,
        limited.crowd.fairness,
    ))
}

/// The share of failed requests; `none` for zero.
fn failures(stats: &RequestStats) -> String {
    if stats.failures == 0 { "none".to_owned() } else { format_percent(stats.failure_rate) }
}

#[cfg(test)]
mod tests {
    use super::super::results::RiderGroup;
    use super::*;

    fn report(matched: [usize; 4]) -> Report {
        let phase = |(phase, matched)| {
            let mut results = PhaseResults { phase, ..PhaseResults::default() };
            results.crowd.matched = matched;
            results.crowd.groups = vec![RiderGroup { behavior: RetryBehavior::Patient, riders: 8, matched: 6 }];
            results
        };
        Report { phases: (1..).zip(matched).map(phase).collect(), ..Report::default() }
    }

    #[test]
    fn the_conclusion_compares_the_first_phase_with_the_last() {
        let mut report = report([0; 4]);
        report.phases[0].riders.failures = 3;
        report.phases[0].riders.failure_rate = 0.3;
        report.phases[0].riders.allowed.p99 = 30_000.0;
        report.phases[3].riders.allowed.p99 = 235.0;
        let text = conclusion(&report);
        assert!(text.starts_with("Without limits, 30 % of the riders' allowed requests fail"), "{text}");
        assert!(
            text.contains("takes 30.0 s or longer") && text.ends_with("none fail and 99 % end within 235 ms."),
            "{text}"
        );
        report.phases.pop();
        assert!(conclusion(&report).contains("nothing can be compared"));
    }

    #[test]
    fn a_queue_that_matches_more_riders_than_a_limit_is_explained() {
        let text = explain_matched_riders(&report([0, 0, 1951, 1725])).unwrap();
        assert!(
            text.contains("1,951") && text.contains("1,725") && text.contains("75 % of the riders who retry"),
            "{text}"
        );
        assert_eq!(explain_matched_riders(&report([0, 0, 5, 5])), None);
    }
}
