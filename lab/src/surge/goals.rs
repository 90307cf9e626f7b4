//! `Goal`: what a run is meant to prove, and whether it did. A goal is judged only if the run was long enough and the machine left the
//! servers enough CPU time.

use serde::Serialize;
use tidegate_server::command::Exit;

use super::format::{format_count, format_factor, format_percent, format_time};
use super::results::PhaseResults;

/// One goal, with its result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Goal {
    #[serde(rename = "what")]
    pub(crate) text: String,
    /// The measured values.
    #[serde(rename = "found")]
    pub(crate) result: String,
    /// Whether it was reached; `None` if the run says nothing about the goal.
    pub(crate) reached: Option<bool>,
    /// Why the run says nothing about it.
    pub(crate) not_judged: Option<String>,
}

impl Goal {
    fn new(text: impl Into<String>, result: String, reached: bool, obstacle: Option<String>) -> Self {
        let reached = obstacle.is_none().then_some(reached);
        Self { text: text.into(), result, reached, not_judged: obstacle }
    }
}

/// The exit code of a run: a negative result only if a goal was judged and missed.
pub(crate) fn exit(goals: &[Goal]) -> Exit {
    Exit::from_success(goals.iter().all(|goal| goal.reached != Some(false)))
}

/// All goals of which the phases were run. `obstacle` is the reason why this kind of run judges no times, if it does not.
///
/// `decides_atomically` says whether the store decides all rules of a request in one step. A cluster decides them at several
/// times while the admission log has only the last, so refill would seem to come too early.
pub(crate) fn evaluate(phases: &[PhaseResults], obstacle: Option<&str>, decides_atomically: bool) -> Vec<Goal> {
    let phase = |number: usize| phases.iter().find(|results| results.phase == number);
    let mut goals = Vec::new();
    if let (Some(before), Some(after)) = (phase(1), phase(4)) {
        let disturbance = || {
            let causes = [before, after]
                .map(|results| Some(format!("phase {}: {}", results.phase, results.load.disturbance()?)));
            Some(causes.into_iter().flatten().collect::<Vec<_>>().join("; ")).filter(|causes| !causes.is_empty())
        };
        goals.extend(compare(before, after, obstacle.map(str::to_owned).or_else(disturbance).as_ref()));
    }
    for after in [phase(3), phase(4)].into_iter().flatten() {
        // Only the last phase has two rules for one request.
        let judgeable = decides_atomically || after.phase == 3;
        goals.extend(audit(after, (!judgeable).then(|| "a cluster decides two rules at two times".to_owned())));
    }
    goals
}

/// The goals about the limits of one phase. They are exact on any machine, as long as the store decides.
fn audit(results: &PhaseResults, obstacle: Option<String>) -> Vec<Goal> {
    let PhaseResults { phase, undecided, .. } = results;
    let obstacle = obstacle.or_else(|| {
        let cause = results.load.disturbance().filter(|_| *undecided > 0)?;
        Some(format!("phase {phase}: {undecided} requests were decided without the store, while {cause}"))
    });
    let factor = results.ride_limit().map_or(0.0, |audit| audit.factor);
    let overshoot = format_count(results.overshoot());
    let mut goals = vec![Goal::new(
        format!("phase {phase}: no subject gets more than capacity and refill allow"),
        format!("{overshoot} requests over a limit, at most {} of it", format_factor(factor)),
        results.overshoot() == 0,
        obstacle.clone(),
    )];
    if let Some(audit) = &results.flood_limit {
        let (sent, passed) = (format_count(results.flood.requests), format_count(audit.admitted));
        goals.push(Goal::new(
            format!("phase {phase}: a flood by one bot passes its limit and no more"),
            format!("{passed} of {sent} requests, {} of its limit", format_factor(audit.factor)),
            audit.overshoot == 0,
            obstacle,
        ));
    }
    goals
}

/// The goals that compare the last phase with the first.
fn compare(before: &PhaseResults, after: &PhaseResults, obstacle: Option<&String>) -> Vec<Goal> {
    let goal = |text: &str, result: String, reached: bool| Goal::new(text, result, reached, obstacle.cloned());
    let (slow, fast) = (before.riders.allowed.p99, after.riders.allowed.p99);
    let ratio = slow / fast.max(0.001);
    let denials = &after.refusals_at_server;
    let (matched_before, matched_after) = (before.crowd.matched, after.crowd.matched);
    let failure_rate = after.riders.failure_rate;
    vec![
        goal(
            "p99 of riders' allowed requests at least 60 times lower",
            format!("{} → {}, {}", format_time(slow), format_time(fast), format_factor(ratio)),
            ratio >= 60.0,
        ),
        goal("and under 590 ms", format_time(fast), fast < 590.0),
        goal(
            "at most 0.1 % of them fail",
            format!("{} → {}", format_percent(before.riders.failure_rate), format_percent(failure_rate)),
            failure_rate <= 0.001,
        ),
        goal(
            "a 429 takes less than 1 ms at the gateway, less than 10 ms at p99",
            format!("{}, {}", format_time(denials.average), format_time(denials.p99)),
            denials.count > 0 && denials.average < 1.0 && denials.p99 < 10.0,
        ),
        goal(
            "no fewer riders are matched",
            format!("{} → {}", format_count(matched_before as u64), format_count(matched_after as u64)),
            matched_after >= matched_before,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::admission_log::LimitAudit;
    use super::super::results::RIDE_RULE;
    use super::*;

    /// Phases in which every goal about times is missed, and the limits held.
    fn slow_phases() -> Vec<PhaseResults> {
        let phase = |phase| PhaseResults { phase, ..PhaseResults::default() };
        let mut phases: Vec<PhaseResults> = (1..=4).map(phase).collect();
        phases[0].crowd.matched = 2;
        phases[3].riders.allowed.p99 = 9000.0;
        phases[3].riders.failure_rate = 0.5;
        phases
    }

    fn count(goals: &[Goal]) -> (usize, usize, usize) {
        let count = |reached| goals.iter().filter(|goal| goal.reached == reached).count();
        (count(Some(true)), count(Some(false)), count(None))
    }

    fn admit_too_much(results: &mut PhaseResults) {
        let rule = RIDE_RULE.to_owned();
        results.limits = vec![LimitAudit { rule, subjects: 1, admitted: 9, beyond: 1, overshoot: 5, factor: 2.0 }];
    }

    #[test]
    fn a_quiet_machine_that_misses_goals_has_a_negative_result() {
        let goals = evaluate(&slow_phases(), None, true);
        assert_eq!((count(&goals), exit(&goals)), ((2, 5, 0), Exit::Negative), "{goals:?}");
    }

    /// Trap: a busy machine makes every latency worse, and a run on it would blame the servers.
    #[test]
    fn a_starved_run_is_not_judged_and_is_no_negative_result() {
        for starved in [0, 3] {
            let mut phases = slow_phases();
            phases[starved].load.lag.p99 = 250.0;
            let goals = evaluate(&phases, None, true);
            assert_eq!((count(&goals), exit(&goals)), ((2, 0, 5), Exit::Success), "{goals:?}");
            let late = "1 % of the riders' requests were sent at least 250 ms late";
            let reason = format!("phase {}: {late}", starved + 1);
            assert_eq!(goals[0].not_judged, Some(reason));
        }
    }

    #[test]
    fn limits_are_judged_on_a_starved_machine_as_long_as_the_store_decides() {
        let mut phases = slow_phases();
        phases[2].load.lag.p99 = 250.0;
        admit_too_much(&mut phases[2]);
        let goal = |phases: &[PhaseResults]| evaluate(phases, Some("short"), true).swap_remove(5);
        assert_eq!(goal(&phases).reached, Some(false));
        phases[2].undecided = 7;
        assert!(goal(&phases).not_judged.unwrap().contains("7 requests were decided without"));
        phases[2].load.lag.p99 = 1.0;
        assert_eq!(goal(&phases).reached, Some(false), "the machine is no excuse");
    }

    #[test]
    fn a_short_run_and_a_cluster_are_judged_only_where_they_can_be() {
        let goals = evaluate(&slow_phases(), Some("the run is short"), false);
        assert_eq!((count(&goals), exit(&goals)), ((1, 0, 6), Exit::Success), "{goals:?}");
    }
}
