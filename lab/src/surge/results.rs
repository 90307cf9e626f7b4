//! `PhaseResults`: the results of one phase, computed from what was counted. Pure. The field names are those of the JSON output.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate::RuleSet;

use super::admission_log::{LimitAudit, LogEntries};
use super::backend::ServiceComponents;
use super::endpoint::Endpoint;
use super::flood;
use super::load_stats::{CpuUsage, LoadStats};
use super::matching::WORKERS;
use super::phase::{Phase, RunContext, ServiceSample};
use super::request_log::RequestOutcome::{CutOff, Failed, Refused, Served, TimedOut};
use super::request_log::{ClientKind, OutcomeCounts, RequestLog};
use super::riders::RetryBehavior;

/// The rule that limits the ride requests of each user.
pub(crate) const RIDE_RULE: &str = "ride-request";

/// Points in the curve of rides per rider.
const MAX_CURVE_POINTS: usize = 200;

/// What was counted outside the request log.
pub(crate) struct Observations<'a> {
    pub(crate) service: &'a ServiceComponents,
    pub(crate) admissions: &'a LogEntries,
    pub(crate) rules: &'a RuleSet,
    pub(crate) samples: &'a [ServiceSample],
    pub(crate) cpu: Option<CpuUsage>,
    pub(crate) elapsed: Duration,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PhaseResults {
    pub(crate) phase: usize,
    pub(crate) title: &'static str,
    pub(crate) rules: Option<&'static str>,
    pub(crate) instances: u32,
    pub(crate) seconds: f64,
    /// Requests of all clients, by endpoint.
    pub(crate) endpoints: Vec<RequestStats>,
    /// All requests of riders; the goals are about these.
    pub(crate) riders: RequestStats,
    pub(crate) bot: RequestStats,
    pub(crate) flood: RequestStats,
    pub(crate) crowd: RiderStats,
    pub(crate) refusals_at_server: LatencySummary,
    pub(crate) service: ServiceStats,
    pub(crate) limits: Vec<LimitAudit>,
    /// What the ride-request rule admitted of the flood; `None` in a phase without one.
    pub(crate) flood_limit: Option<LimitAudit>,
    pub(crate) store_failures: u64,
    /// Calls to the store that a gateway could not send in time.
    pub(crate) overloads: u64,
    pub(crate) undecided: u64,
    pub(crate) load: LoadStats,
    pub(crate) timeline: Vec<TimelinePoint>,
}

/// Counts and latencies of some requests.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct RequestStats {
    pub(crate) name: &'static str,
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    /// Requests that no limit refused, whatever their outcome.
    pub(crate) allowed: LatencySummary,
    pub(crate) served: u64,
    /// Error responses and timeouts.
    pub(crate) failures: u64,
    pub(crate) timed_out: u64,
    pub(crate) failure_rate: f64,
    /// In flight when the phase ended.
    pub(crate) cut_off: u64,
    pub(crate) refused: LatencySummary,
}

/// A summary of latencies in milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LatencySummary {
    pub(crate) count: u64,
    pub(crate) average: f64,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
}

/// How many rides the riders got.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct RiderStats {
    pub(crate) riders: usize,
    /// Riders matched at least once.
    pub(crate) matched: usize,
    pub(crate) rides: u64,
    /// Jain's index of the rides: 1 if all riders have the same number, 1/n if one has all.
    pub(crate) fairness: f64,
    /// Rides per rider in ascending order, at most [`MAX_CURVE_POINTS`] of them.
    pub(crate) curve: Vec<u32>,
    pub(crate) groups: Vec<RiderGroup>,
}

/// The riders with one retry behavior.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RiderGroup {
    pub(crate) behavior: RetryBehavior,
    pub(crate) riders: usize,
    /// Riders matched at least once.
    pub(crate) matched: usize,
}

/// The load and state of the service.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ServiceStats {
    pub(crate) requests: u64,
    pub(crate) requests_per_second: f64,
    pub(crate) ride_requests: u64,
    pub(crate) matched: u64,
    pub(crate) turned_away: u64,
    /// Share of busy workers after the first quarter of the phase, when all riders have arrived.
    pub(crate) pool_use: f64,
    pub(crate) wait: LatencySummary,
    pub(crate) deepest_queue: u64,
    pub(crate) positions_written: u64,
    /// The largest backlog of the position index, in milliseconds.
    pub(crate) index_behind: f64,
}

/// One second of a phase.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TimelinePoint {
    /// Milliseconds of the riders' requests that were due in this second and that no limit refused; `None` without any.
    pub(crate) median: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    /// Riders waiting for a worker at the end of the second.
    pub(crate) queue: u64,
}

impl PhaseResults {
    pub(crate) fn new(
        phase: Phase,
        context: &RunContext<'_>,
        request_log: &RequestLog,
        observations: &Observations<'_>,
    ) -> Self {
        let Observations { service, admissions, rules, samples, cpu, elapsed } = *observations;
        let duration = elapsed.min(context.scenario.phase_duration);
        let stats = |name, clients: &[ClientKind], endpoint| {
            RequestStats::new(name, &request_log.count(clients, endpoint), duration)
        };
        let has_flood = phase.shares_limits() && context.scenario.flood_connections > 0;
        Self {
            phase: phase.number(),
            title: phase.title(),
            rules: phase.rule_file(),
            instances: context.instances,
            seconds: duration.as_secs_f64(),
            endpoints: Endpoint::ALL.map(|endpoint| stats(endpoint.name(), &ClientKind::ALL, Some(endpoint))).into(),
            riders: stats("riders", &[ClientKind::Rider], None),
            bot: stats("bot", &[ClientKind::Bot], None),
            flood: stats("flood", &[ClientKind::Flood], None),
            crowd: RiderStats::new(&request_log.rides),
            refusals_at_server: LatencySummary::new(&admissions.refusals),
            service: ServiceStats::new(service, samples, duration),
            limits: admissions.audit(rules),
            flood_limit: audit_flood(admissions, rules).filter(|_| has_flood),
            store_failures: admissions.store_failures,
            overloads: admissions.overloads,
            undecided: admissions.undecided,
            load: LoadStats::new(request_log, cpu),
            timeline: timeline(request_log, samples, duration),
        }
    }

    /// The title of the phase in plots.
    pub(crate) const fn short_title(&self) -> &'static str {
        ["no limits", "limits in each gateway", "shared limits", "shared + one for all"][self.phase - 1]
    }

    /// The CSS class of the phase, which decides its color.
    pub(crate) const fn css_class(&self) -> &'static str {
        ["one", "two", "three", "four"][self.phase - 1]
    }

    /// The audit of the ride-request rule, if it applied to any request.
    pub(crate) fn ride_limit(&self) -> Option<&LimitAudit> {
        self.limits.iter().find(|audit| audit.rule == RIDE_RULE)
    }

    /// The largest number of requests that one subject got over a limit.
    pub(crate) fn overshoot(&self) -> u64 {
        self.limits.iter().map(|audit| audit.overshoot).max().unwrap_or(0)
    }

    /// Reasons to doubt the results that lie with the machine or the store.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let Self { phase, undecided, store_failures, overloads, .. } = self;
        let mut warnings: Vec<String> = self.load.disturbance().into_iter().collect();
        if *undecided > 0 {
            warnings.push(format!(
                "{undecided} requests were decided without the store, which failed {store_failures} times, while a gateway was \
                 overloaded {overloads} times"
            ));
        }
        warnings.into_iter().map(|warning| format!("phase {phase}: {warning}")).collect()
    }
}

// === impl RequestStats ===

impl RequestStats {
    fn new(name: &'static str, counts: &OutcomeCounts, duration: Duration) -> Self {
        let requests = counts.allowed.len() + counts.refused.len();
        Self {
            name,
            requests,
            per_second: requests as f64 / duration.as_secs_f64().max(0.001),
            allowed: LatencySummary::new(&counts.allowed),
            served: counts.count(&[Served]),
            failures: counts.failures(),
            timed_out: counts.count(&[TimedOut]),
            failure_rate: counts.failure_rate(),
            cut_off: counts.count(&[CutOff]),
            refused: LatencySummary::new(&counts.refused),
        }
    }
}

// === impl LatencySummary ===

impl LatencySummary {
    pub(crate) fn new(histogram: &Histogram<u64>) -> Self {
        let millis = |micros: u64| micros as f64 / 1000.0;
        Self {
            count: histogram.len(),
            average: histogram.mean() / 1000.0,
            median: millis(histogram.value_at_quantile(0.5)),
            min: millis(if histogram.is_empty() { 0 } else { histogram.min() }),
            max: millis(histogram.max()),
            p95: millis(histogram.value_at_quantile(0.95)),
            p99: millis(histogram.value_at_quantile(0.99)),
        }
    }
}

// === impl RiderStats ===

impl RiderStats {
    /// `rides` are those of each rider, by number.
    fn new(rides: &[u32]) -> Self {
        let groups = RetryBehavior::ALL.map(|behavior| {
            let of_group = (0..).zip(rides).filter(|(number, _)| RetryBehavior::from_number(*number) == behavior);
            let (riders, matched) = (of_group.clone().count(), of_group.filter(|(_, rides)| **rides > 0).count());
            RiderGroup { behavior, riders, matched }
        });
        let mut sorted = rides.to_vec();
        sorted.sort_unstable();
        let sum: u64 = sorted.iter().copied().map(u64::from).sum();
        let squares: f64 = sorted.iter().map(|rides| f64::from(*rides).powi(2)).sum();
        let fairness = if sum == 0 { 0.0 } else { (sum as f64).powi(2) / (sorted.len() as f64 * squares) };
        let points = sorted.len().min(MAX_CURVE_POINTS);
        let curve = (0..points).map(|point| sorted[point * (sorted.len() - 1) / (points - 1).max(1)]).collect();
        let matched = sorted.iter().filter(|rides| **rides > 0).count();
        Self { riders: sorted.len(), matched, rides: sum, fairness, curve, groups: groups.into() }
    }
}

// === impl ServiceStats ===

impl ServiceStats {
    fn new(service: &ServiceComponents, samples: &[ServiceSample], duration: Duration) -> Self {
        let matching = service.matching.state();
        let requests: u64 = Endpoint::ALL.into_iter().map(|endpoint| service.request_count(endpoint)).sum();
        // Riders are still arriving in the first quarter.
        let crowded = &samples[samples.len() / 4..];
        let busy: u64 = crowded.iter().map(|sample| u64::from(sample.busy_workers)).sum();
        let backlog = samples.iter().map(|sample| sample.index_backlog).max().unwrap_or_default();
        Self {
            requests,
            requests_per_second: requests as f64 / duration.as_secs_f64().max(0.001),
            ride_requests: service.request_count(Endpoint::Ride),
            matched: matching.matched,
            turned_away: matching.rejected,
            pool_use: busy as f64 / (crowded.len().max(1) as f64 * f64::from(WORKERS)),
            wait: LatencySummary::new(&matching.waits),
            deepest_queue: samples.iter().map(|sample| sample.waiting).max().unwrap_or(0),
            positions_written: service.index.written(),
            index_behind: backlog.as_secs_f64() * 1000.0,
        }
    }
}

/// What the ride-request rule admitted of the flood.
fn audit_flood(admissions: &LogEntries, rules: &RuleSet) -> Option<LimitAudit> {
    let request = flood::ride_request();
    let plan = rules.resolve(&request);
    let check = plan.checks().iter().find(|check| check.gate().rule().id == RIDE_RULE)?;
    admissions.audit_subject(rules, RIDE_RULE, check.key().subject())
}

fn timeline(request_log: &RequestLog, samples: &[ServiceSample], duration: Duration) -> Vec<TimelinePoint> {
    let seconds = &request_log.seconds;
    // There are ten samples a second; the last of each second counts.
    let per_second = (samples.len() / seconds.len().max(1)).max(1);
    let count = usize::try_from(duration.as_secs_f64().ceil() as u64).unwrap_or(usize::MAX);
    let points = seconds.iter().take(count).enumerate().map(|(number, second)| {
        let sample = samples.get(((number + 1) * per_second - 1).min(samples.len().saturating_sub(1)));
        let millis = |quantile| {
            let micros = second.allowed.value_at_quantile(quantile);
            (!second.allowed.is_empty()).then_some(micros as f64 / 1000.0)
        };
        TimelinePoint {
            median: millis(0.5),
            p99: millis(0.99),
            served: second.count(&[Served]),
            refused: second.count(&[Refused]),
            failed: second.count(&[Failed, TimedOut, CutOff]),
            queue: sample.map_or(0, |sample| sample.waiting),
        }
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_for_equal_shares_and_one_nth_if_one_rider_gets_everything() {
        let index = |rides: &[u32]| (RiderStats::new(rides).fairness * 1000.0).round();
        assert_eq!((index(&[3, 3, 3, 3]), index(&[0, 0, 8, 0]), index(&[0, 0])), (1000.0, 250.0, 0.0));
    }

    #[test]
    fn the_curve_runs_from_fewest_to_most_rides_for_any_number_of_riders() {
        let rides: Vec<u32> = (0..5000).rev().collect();
        let crowd = RiderStats::new(&rides);
        assert_eq!((crowd.curve.len(), crowd.curve[0], crowd.curve[MAX_CURVE_POINTS - 1]), (MAX_CURVE_POINTS, 0, 4999));
        assert_eq!((crowd.matched, crowd.riders), (4999, 5000));
        let groups: Vec<_> = crowd.groups.iter().map(|group| (group.riders, group.matched)).collect();
        assert_eq!(groups, [(3000, 2999), (1500, 1500), (500, 500)], "the last rider has no ride and is patient");
        assert_eq!(RiderStats::new(&[2]).curve, [2]);
    }
}
